"""Requests about questions over documents, rendered as messages.

All requests about the same documents begin with the same message, so that endpoints compute it once.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from agentflow.models import Message
from agentflow.questions import (
    FUNCTIONS,
    HiddenRequest,
    ImageFactsRequest,
    OthersRequest,
    ProposalRequest,
    ReadingRequest,
    RecallRequest,
    RepairRequest,
    ShownDocument,
)
from agentflow.team._messages import seed_text
from agentflow.team._rendering import (
    Images,
    bullets,
    call_line,
    escape_marks,
    image_parts,
    json_text,
    prompt,
    system,
    user,
)

NO_IMAGES: Final[Images] = MappingProxyType({})


def proposal_messages(request: ProposalRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask for questions about documents."""
    examples = "\n\n".join(f"Question: {each.question}\nAnswer: {each.answer}" for each in request.examples)
    now = prompt(
        "generator_questions",
        "now",
        count=request.count,
        keep=request.keep,
        min_documents=request.min_documents,
        min_steps=request.min_steps,
        functions=FUNCTIONS,
        seed_description=request.seed_description,
        seed=escape_marks(seed_text(request.seed, request.kwargs)),
        kinds=", ".join(request.kinds),
        tips=request.tips,
        examples=examples,
        asked=bullets(map(escape_marks, request.asked)),
    )
    return _about(request.documents, now, images)


def repair_messages(request: RepairRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask for drafts without the faults that checks have found."""
    drafts = "\n\n".join(
        f"Draft {each.number}: {escape_marks(json_text(each.draft))}\nIts faults:\n{bullets(each.reasons)}"
        for each in request.fallen
    )
    now = prompt(
        "generator_question_repair",
        "now",
        max_words=request.max_words,
        min_steps=request.min_steps,
        functions=FUNCTIONS,
        drafts=drafts,
    )
    return _about(request.documents, now, images)


def image_fact_messages(request: ImageFactsRequest, images: Images) -> tuple[Message, ...]:
    """Ask for the facts that an image shows."""
    now = prompt(
        "generator_image_facts",
        "now",
        seed=escape_marks(seed_text(request.seed, request.kwargs)),
        call=call_line(request.action),
    )
    head = prompt("generator_image_facts", "system", seed_description=request.seed_description)
    return (system(head), user(now, image_parts([request.image], images)))


def hidden_messages(request: HiddenRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask a reader from whom some documents are hidden."""
    now = prompt("reader_hidden", "now", question=escape_marks(request.question))
    return _about(request.documents, now, images)


def reading_messages(request: ReadingRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask a reader for answers from documents."""
    questions = "\n".join(f"{each.number}. {escape_marks(each.question)}" for each in request.questions)
    sample = request.sample + 1 if request.sample else ""
    now = prompt("reader_questions", "now", questions=questions, sample=sample)
    return _about(request.documents, now, images)


def recall_messages(request: RecallRequest) -> tuple[Message, ...]:
    """Ask a question without any text."""
    sample = request.sample + 1 if request.sample else ""
    now = prompt("reader_recall", "now", question=escape_marks(request.question), sample=sample)
    return (system(prompt("reader_recall", "system")), user(now))


def others_messages(request: OthersRequest, images: Images = NO_IMAGES) -> tuple[Message, ...]:
    """Ask a reader for other answers."""
    now = prompt(
        "reader_others",
        "now",
        question=escape_marks(request.question),
        answer=escape_marks(request.answer),
        candidates=escape_marks(", ".join(request.candidates)) or "those that come to mind",
    )
    return _about(request.documents, now, images)


def _about(documents: Sequence[ShownDocument], now: str, images: Images) -> tuple[Message, ...]:
    """Return a message with documents, and one with a request and their images."""
    blobs = [blob for document in documents for blob in document.images]
    shown = image_parts(blobs, images)
    places = list(dict.fromkeys(blob.hash for blob in blobs if blob.hash in images))
    texts = (shown_document(document, places) for document in documents)
    return (system(prompt("documents", "system", documents="\n\n".join(texts))), user(now, shown))


def shown_document(document: ShownDocument, images: Sequence[str] = ()) -> str:
    """Return a document as roles are shown it: numbered passages, each below its headings.

    :param images: hashes of the images that the model sees, in order.
    """
    extent = "result of a tool" if document.computed else "complete" if document.complete else "extract"
    lines: list[str] = []
    heading = ""
    for passage in document.passages:
        if passage.heading != heading:
            heading = passage.heading
            lines.append(f"## {escape_marks(heading)}" if heading else "##")
        text = escape_marks(passage.text)
        if passage.image is not None:
            seen = passage.image.hash in images
            text = f"(image {images.index(passage.image.hash) + 1} of those below)" if seen else "(an image)"
        lines.append(f"[{passage.number}] {text}")
    name = escape_marks(document.title or document.id).replace('"', "'")
    body = "\n".join(lines)
    return f'<document number="{document.number}" title="{name}" extent="{extent}">\n{body}\n</document>'
