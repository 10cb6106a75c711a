"""Requests about questions over documents, rendered as messages.

All requests about the same documents begin with the same message, so that endpoints compute it once.
"""

from collections.abc import Iterable

from agentflow.models import Message
from agentflow.questions import (
    FUNCTIONS,
    HiddenRequest,
    OthersRequest,
    ProposalRequest,
    ReadingRequest,
    RecallRequest,
    RepairRequest,
    ShownDocument,
)
from agentflow.team._messages import seed_text
from agentflow.team._rendering import bullets, escape_marks, json_text, prompt, system, user


def proposal_messages(request: ProposalRequest) -> tuple[Message, ...]:
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
    return (_documents(request.documents), user(now))


def repair_messages(request: RepairRequest) -> tuple[Message, ...]:
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
    return (_documents(request.documents), user(now))


def hidden_messages(request: HiddenRequest) -> tuple[Message, ...]:
    """Ask a reader from whom some documents are hidden."""
    now = prompt("reader_hidden", "now", question=escape_marks(request.question))
    return (_documents(request.documents), user(now))


def reading_messages(request: ReadingRequest) -> tuple[Message, ...]:
    """Ask a reader for answers from documents."""
    questions = "\n".join(f"{each.number}. {escape_marks(each.question)}" for each in request.questions)
    sample = request.sample + 1 if request.sample else ""
    now = prompt("reader_questions", "now", questions=questions, sample=sample)
    return (_documents(request.documents), user(now))


def recall_messages(request: RecallRequest) -> tuple[Message, ...]:
    """Ask a question without any text."""
    sample = request.sample + 1 if request.sample else ""
    now = prompt("reader_recall", "now", question=escape_marks(request.question), sample=sample)
    return (system(prompt("reader_recall", "system")), user(now))


def others_messages(request: OthersRequest) -> tuple[Message, ...]:
    """Ask a reader for other answers."""
    now = prompt(
        "reader_others",
        "now",
        question=escape_marks(request.question),
        answer=escape_marks(request.answer),
        candidates=escape_marks(", ".join(request.candidates)) or "those that come to mind",
    )
    return (_documents(request.documents), user(now))


def _documents(documents: Iterable[ShownDocument]) -> Message:
    return system(prompt("documents", "system", documents="\n\n".join(map(shown_document, documents))))


def shown_document(document: ShownDocument) -> str:
    """Return a document as roles are shown it: numbered passages, each below its headings."""
    extent = "result of a tool" if document.computed else "complete" if document.complete else "extract"
    lines: list[str] = []
    heading = ""
    for passage in document.passages:
        if passage.heading != heading:
            heading = passage.heading
            lines.append(f"## {escape_marks(heading)}" if heading else "##")
        lines.append(f"[{passage.number}] {escape_marks(passage.text)}")
    name = escape_marks(document.title or document.id).replace('"', "'")
    body = "\n".join(lines)
    return f'<document number="{document.number}" title="{name}" extent="{extent}">\n{body}\n</document>'
