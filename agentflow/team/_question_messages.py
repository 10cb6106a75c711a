"""Requests about facts and questions, rendered as messages for a language model."""

from agentflow.facts import (
    AliasRequest,
    ClosedBookRequest,
    EvidenceRequest,
    ExtractionRequest,
    TranslationRequest,
    ValueKind,
    WordingRequest,
)
from agentflow.models import ImagePart, Message, TextPart
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

_ANSWERS = {
    ValueKind.ENTITY: "a name",
    ValueKind.NUMBER: "a number",
    ValueKind.DATE: "a date",
    ValueKind.TEXT: "a few words",
    ValueKind.BOOL: "yes or no",
    ValueKind.LIST: "a list",
}


def extraction_messages(request: ExtractionRequest, images: Images) -> tuple[Message, ...]:
    """Ask for the facts of a chunk of an observation."""
    shown = image_parts(request.images, images)
    now = prompt(
        "generator_facts",
        "now",
        seed=escape_marks(seed_text(request.seed, request.kwargs)),
        call=call_line(request.action),
        start=f"{request.start:,}",
        end=f"{request.start + len(request.text):,}",
        length=f"{max(request.length, len(request.text)):,}",
        text=escape_marks(request.text) or "(no text)",
        images=len(shown) or "",
    )
    head = prompt("generator_facts", "system", seed_description=request.seed_description)
    return (system(head), user(now, shown))


def alias_messages(request: AliasRequest) -> tuple[Message, ...]:
    """Ask which names mean the same thing."""
    pairs = "\n\n".join(
        f"{number}. {json_text(pair.first)} in {json_text(pair.first_context)}\n"
        f"   {json_text(pair.second)} in {json_text(pair.second_context)}"
        for number, pair in enumerate(request.pairs, start=1)
    )
    return (
        system(prompt("generator_aliases", "system")),
        user(prompt("generator_aliases", "now", pairs=pairs)),
    )


def wording_messages(request: WordingRequest) -> tuple[Message, ...]:
    """Ask for the words of a question; after a rejection, for other ones."""
    examples = "\n\n".join(f"Question: {each.question}\nAnswer: {each.answer}" for each in request.examples)
    head = prompt(
        "generator_wording",
        "system",
        max_words=request.max_words,
        answer=answer_words(request.answer_kind, request.unit),
        seed_description=request.seed_description,
        tips=request.tips,
        examples=examples,
    )
    now = prompt(
        "generator_wording",
        "now",
        seed=escape_marks(seed_text(request.seed, request.kwargs)),
        kind=request.kind.replace("_", " or "),
        program="\n".join(request.program),
        facts=escape_marks("\n".join(request.facts)),
        given=bullets(request.given) or "(none)",
    )
    messages = [system(head), user(now)]
    for rejection in request.rejected:
        messages.append(Message("assistant", (TextPart(json_text({"question": rejection.question})),)))
        reasons = bullets(rejection.reasons) or "- unusable"
        messages.append(user(prompt("generator_wording", "rejected", reasons=reasons)))
    return tuple(messages)


def translation_messages(request: TranslationRequest) -> tuple[Message, ...]:
    """Ask for the program that a question means."""
    now = prompt(
        "reader_program",
        "now",
        relations=bullets(request.relations) or "(none)",
        sets=bullets(request.sets) or "(none)",
        question=escape_marks(request.question),
        sample=_attempt(request.sample),
    )
    return (system(prompt("reader_program", "system")), user(now))


def evidence_messages(request: EvidenceRequest, images: Images) -> tuple[Message, ...]:
    """Ask a reader for the answer that passages determine."""
    passages: list[str] = []
    shown: dict[str, ImagePart] = {}
    for passage in request.passages:
        numbers: list[str] = []
        for blob in passage.images:
            if blob.hash in images:
                shown.setdefault(blob.hash, ImagePart(images[blob.hash], blob.mime))
                numbers.append(str(1 + list(shown).index(blob.hash)))
        label = f"\n(image {', '.join(numbers)} of the images below)" if numbers else ""
        passages.append(
            f'<passage number="{passage.number}">\n{escape_marks(passage.text)}{label}\n</passage>'
        )
    now = prompt(
        "reader_answer",
        "now",
        passages="\n\n".join(passages),
        question=escape_marks(request.question),
        answer=answer_words(request.answer_kind, ""),
        sample=_attempt(request.sample),
    )
    return (system(prompt("reader_answer", "system")), user(now, shown.values()))


def closed_book_messages(request: ClosedBookRequest) -> tuple[Message, ...]:
    """Ask a question without any text."""
    return (
        system(prompt("reader_closed_book", "system")),
        user(prompt("reader_closed_book", "now", question=request.question, sample=_attempt(request.sample))),
    )


def _attempt(sample: int) -> str:
    """Return the number of a sample, from 2; the first one needs none. Samples have different prompts, so none is cached."""
    return str(sample + 1) if sample else ""


def answer_words(kind: ValueKind, unit: str) -> str:
    """Return the type of an answer in words, for prompts."""
    return f"a number of {unit}" if kind is ValueKind.NUMBER and unit else _ANSWERS[kind]
