"""Rules for drafts, checked without a model: quotes, computations, time, completeness, form.

Rules that need English (month names, number words, words such as `only` and `current`) are off for other languages.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agentflow.questions._agreement import ComputationError, compute, value_of
from agentflow.questions._documents import Passage, ShownDocument, is_english, quoted
from agentflow.questions._drafts import Draft, DraftFault, DraftKind, DraftStep, GateCheck
from agentflow.text import contains_phrase, instructs, normalise, plain_quantities, word_count
from agentflow.trace import Region
from agentflow.values import (
    BoolValue,
    EntityValue,
    ListValue,
    NumberValue,
    Value,
    ValueKind,
    show_value,
    values_agree,
)

_CELLS: Final = " | "
"""Separator of the cells of a row."""
_DIGITS: Final = re.compile(r"(?:(?<![\w)-])-)?(?<!\w)(?<!\w[.,:/-])\d+(?:[.,:/-]\d+)*")
"""Numbers; digits within a word belong to a name."""
_ORDINAL: Final = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
_POSSESSIVE: Final = re.compile(r"['’]s$")
_MONTH: Final = re.compile(
    r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December)\b"
)
_NAME: Final = re.compile(r"(?<!^)(?<![.!?:] )\b[A-Z][\w'’.+-]*\w|\b[A-Z]{2,}\w*\b|\b[A-Za-z]+\d\w*\b")
"""Capitalised words that do not begin a sentence, acronyms, and words with digits."""
_NEGATION: Final = re.compile(
    r"(?<![\w-])(?:not|no|never|neither|nor|without|cannot|none|except|unless)\b|n['’]t\b", re.IGNORECASE
)
"""Words that negate; an option such as `--no-edit` has none."""
_BOUND: Final = re.compile(
    r"\b(?:(?:more|less|fewer) than|at least|at most|(?:up to|about|around|roughly|nearly|almost|approximately|over|under)"
    r"(?=\s+(?:[$€£]?\d|one|two|three|four|five|six|seven|eight|nine|ten|half|hundred)))\b",
    re.IGNORECASE,
)
_ABSOLUTE: Final = re.compile(
    r"\b(?:only|ever|first|last|most|least|never|always|sole|earliest|latest|newest|oldest)\b", re.IGNORECASE
)
_SUPERLATIVE_ORDER: Final = re.compile(
    r"\b\w+est first\b|\bfrom (?:the )?\w+est to (?:the )?\w+est\b|\bonly once\b|\b(?:did|does|do)\b[^,;?]*\blast\b|\bat (?:least|most|first|last)\b",
    re.IGNORECASE,
)
"""Absolute words that tell an order or a bound."""
_MEMBERS: Final = re.compile(
    r"(?:\b(?:of|among):? |: )(?P<members>(?:[^?.;:]|\.\d)+(?:,| and| or) (?:[^?.;:,]|\.\d)+)"
)
"""Things that a question names: `Which of A, B and C`, `which of these fell: A, B or C`."""
_BETWEEN_MEMBERS: Final = re.compile(r",? (?:and|or) |, ")
_CURRENT: Final = re.compile(
    r"\b(?:current(?:ly)?|nowadays|today|at present|present-day|recent(?:ly)?|so far|to date|(?:is|are|does|do) (?:still|now)|latest|this (?:year|month|week)|up[- ]to[- ]date)\b",
    re.IGNORECASE,
)
_TEXTUAL: Final = re.compile(
    r"\b(?:according to|(?:the|these|this|given|provided|above|following) (?:passages?|documents?|texts?|excerpts?|articles?|sources?)"
    r"|as (?:stated|mentioned|described|noted) in)\b",
    re.IGNORECASE,
)
_SECOND: Final = re.compile(
    r"\?(?=\s[^?]*\?)|\band (?:what|when|where|who|why|how (?:many|much|long))\b", re.IGNORECASE
)
_FULL: Final = re.compile(r"\b(?:full|whole|complete|completed) (?:months|years)\b", re.IGNORECASE)
_HOW_MANY: Final = re.compile(
    r"\b(?:how many(?! (?:more |fewer |other )?(?:seconds|minutes|hours|days|weeks|months|years)\b)|number of|count of|all of)\b",
    re.IGNORECASE,
)
_ABSENT: Final = re.compile(r"\b(?:none of|which .{0,40}\bdo(?:es)? not|never)\b", re.IGNORECASE)
_FILLER: Final = re.compile(
    r"^(?:so|thus|hence|therefore|finally)?,?\s*the (?:final )?answer (?:is|to)\b", re.IGNORECASE
)
_LISTED: Final = re.compile(r"[,:(].*\b(?:or|and)\b|\b(?:which|what) of\b", re.IGNORECASE | re.DOTALL)
_UNITS: Final = re.compile(
    r"\bhow (?:many|much|long|old|far|often|high|tall|large|big|fast|heavy)\b|\bpercent(?:age)?\b|%",
    re.IGNORECASE,
)
_MAX_ANSWER_WORDS: Final = 16
_MAX_LIST_WORDS: Final = 32
_MAX_ITEMS: Final = 8
_NEAR: Final = 600
"""Characters around a quote in which instructions to a model make it useless."""


class RuleSettings(Struct, frozen=True, kw_only=True):
    """Limits of the rules."""

    max_words: int = 85
    """Maximum number of words of a question."""
    min_steps: int = 3
    """Minimum number of steps; fillers do not count. 0: a draft may have none."""
    min_documents: int = 2
    """Minimum number of documents that a question needs; a result of a tool counts."""
    with_values: bool = False
    """A question may ask for a thing and its value: `which …, and what was that rate?`"""


class CheckedDraft(Struct, frozen=True):
    """A draft as the rules leave it."""

    draft: Draft
    """Without fillers and superfluous documents, with the passages that hold its quotes."""
    findings: tuple[DraftFault, ...]
    """Faults; none: it passes."""


def check_rules(draft: Draft, documents: Sequence[ShownDocument], settings: RuleSettings) -> CheckedDraft:
    """Check a draft against the passages that it was written from, and correct small slips.

    See docs/questions.md.
    """
    passages = {passage.number: passage for document in documents for passage in document.passages}
    by_number = {document.number: document for document in documents}
    named = draft.documents if settings.min_steps == 0 else ()
    draft = _corrected(draft, by_number, passages, named)
    english = is_english(" ".join(passage.text for passage in passages.values()))
    findings = [
        *_form(draft, settings, english=english),
        *_quotes(draft, by_number, passages, english=english),
        *_computations(draft),
        *(_time(draft) if english else ()),
        *(_completeness(draft, by_number) if english else ()),
        *_size(draft, settings),
    ]
    return CheckedDraft(draft, tuple(findings))


def _corrected(
    draft: Draft, documents: dict[int, ShownDocument], passages: dict[int, Passage], named: Sequence[int]
) -> Draft:
    """Return a draft without fillers, with each quote's passage, and with the documents that its steps cite.

    :param named: documents that it needs in any case.
    """
    steps: list[DraftStep] = []
    for step in draft.steps:
        if step.quote and (passage := _passage_of(step, passages)) is not None:
            step = replace(step, passage=passage.number)
        steps.append(step)
    kept = [step for step in steps if step.quote or step.computes]
    # Numbers of steps in expressions must not change: only fillers at the end are left out.
    while steps and not (steps[-1].quote or steps[-1].computes or not _is_filler(steps[-1], draft)):
        steps.pop()
    quoted_in = [passages[step.passage].document for step in kept if step.quote and step.passage in passages]
    # The one that states the answer, or the last figure that it is computed from, stands last.
    cited = [*dict.fromkeys(document for document in quoted_in if document != quoted_in[-1]), *quoted_in[-1:]]
    cited = [*(number for number in named if number not in cited), *cited]
    documents_of_draft = tuple(number for number in cited if number in documents)
    return replace(
        draft,
        question=" ".join(draft.question.split()),
        answer=" ".join(draft.answer.split()),
        steps=tuple(steps),
        documents=documents_of_draft or draft.documents,
    )


def _is_filler(step: DraftStep, draft: Draft) -> bool:
    """Return whether a step only restates the answer."""
    return bool(_FILLER.match(step.statement)) or normalise(step.statement).strip(".") == normalise(
        draft.answer
    )


def is_region(region: Region) -> bool:
    """Return whether a region lies in its image and is not empty.

    See docs/questions.md.
    """
    return 0 <= region.left < region.right <= 1 and 0 <= region.top < region.bottom <= 1


def _passage_of(step: DraftStep, passages: dict[int, Passage]) -> Passage | None:
    """Return the passage that holds a quote: the named one, else one of its document, else any."""
    named = passages.get(step.passage)
    if named is not None and named.image is not None:
        return named
    same = [other for other in passages.values() if named is not None and other.document == named.document]
    for passage in [*([named] if named else []), *same, *passages.values()]:
        if quoted(passage.text, step.quote):
            return passage
    return None


def asks_twice(question: str) -> str:
    """Return the words with which a second question begins; empty: there is only one.

    >>> asks_twice("Which lamp is older, and what is its height?")
    'and what'
    """
    match = _SECOND.search(question)
    return "" if match is None else match[0].strip()


def _form(draft: Draft, settings: RuleSettings, *, english: bool) -> Iterator[DraftFault]:
    question, answer = draft.question, draft.answer
    if not question or not answer or not (draft.steps or settings.min_steps == 0):
        yield DraftFault(GateCheck.FORM, "it has no question, no answer or no steps", repairable=False)
        return
    if word_count(question) > settings.max_words:
        yield DraftFault(GateCheck.FORM, f"the question has more than {settings.max_words} words")
    if not question.rstrip().endswith(("?", "？", ".")):
        yield DraftFault(GateCheck.FORM, "the question does not end as a question")
    if word_count(answer) > (_MAX_LIST_WORDS if re.search(r"[,;] ", answer) else _MAX_ANSWER_WORDS):
        yield DraftFault(GateCheck.FORM, "the answer is not short")
    value = value_of(draft)
    if len(getattr(value, "items", ())) > _MAX_ITEMS:
        yield DraftFault(GateCheck.FORM, f"the answer lists more than {_MAX_ITEMS} things")
    if _leaks(draft, value):
        yield DraftFault(GateCheck.FORM, "the question contains its answer")
    if not english:
        return
    if match := _TEXTUAL.search(question):
        yield DraftFault(
            GateCheck.FORM, f"the question refers to a text that its reader does not have: {match[0]}"
        )
    if not settings.with_values and (match := asks_twice(question)):
        yield DraftFault(GateCheck.FORM, f"it asks two questions: {match}")
    if isinstance(value, NumberValue) and draft.unit and not (
        contains_phrase(question, draft.unit) or contains_phrase(question, draft.unit.rstrip("s")) or _UNITS.search(question)
    ):  # fmt: skip
        yield DraftFault(
            GateCheck.FORM, f"the question does not say in which unit the answer is: {draft.unit}"
        )


def _leaks(draft: Draft, value: Value) -> bool:
    """Return whether the question gives its answer away; one of several that it lists is a choice."""
    if draft.kind in (
        DraftKind.WHICH,
        DraftKind.COMPARISON,
        DraftKind.ORDER,
        DraftKind.STEP,
    ) or _LISTED.search(draft.question):
        return False
    if isinstance(value, BoolValue) or not contains_phrase(draft.question, draft.answer):
        return False
    return isinstance(value, EntityValue) or draft.answer_type in (
        ValueKind.ENTITY,
        ValueKind.TEXT,
        ValueKind.DATE,
    )


def _quotes(
    draft: Draft, documents: dict[int, ShownDocument], passages: dict[int, Passage], *, english: bool
) -> Iterator[DraftFault]:
    # What names a document, and what earlier steps have shown, need not be quoted once more.
    shown = [document.title for document in documents.values()]
    for number, step in enumerate(draft.steps, 1):
        if not step.quote:
            shown.append(step.value)
            if not step.computes and not _is_filler(step, draft):
                yield DraftFault(GateCheck.QUOTES, f"step {number} has neither a quote nor an expression")
            continue
        passage = passages.get(step.passage)
        if passage is not None and passage.image is not None:
            # A model that sees looks at it.
            if step.region is None or not is_region(step.region):
                yield DraftFault(GateCheck.QUOTES, f"step {number} names no region of the image")
            continue
        spans = quoted(passage.text, step.quote) if passage is not None else []
        if passage is None or not spans:
            yield DraftFault(
                GateCheck.QUOTES, f"no passage contains the quote of step {number}: {step.quote[:80]}"
            )
            continue
        around = passage.text[max(0, spans[0][0] - _NEAR) : spans[-1][1] + _NEAR]
        if instructs(around):
            yield DraftFault(
                GateCheck.QUOTES,
                f"the quote of step {number} stands beside instructions to a model",
                repairable=False,
            )
        document = documents[passage.document]
        above = f"{passage.heading} {document.title} {document.id} {_around(passage)}"
        quote = " … ".join(passage.text[slice(*span)] for span in spans)
        context = f"{above} {' '.join(shown)}"
        shown += [quote, step.value, passage.heading]
        if missing := _unstated(step, quote, context, draft.question, english=english):
            yield DraftFault(
                GateCheck.QUOTES,
                f"the quote of step {number} does not say {missing!r}, which its statement does",
            )
        if step.value and not contains_phrase(f"{quote} {above}", step.value):
            yield DraftFault(
                GateCheck.QUOTES, f"the quote of step {number} does not contain its value {step.value}"
            )


def _around(passage: Passage) -> str:
    """Return what names and numbers of a statement may come from besides the quote: its entry, or the columns of its table."""
    lines = [line for line in passage.text.splitlines() if line.strip()]
    rows = [line for line in lines if _CELLS in line]
    return rows[0].replace("_", " ") if 2 * len(rows) > len(lines) else passage.text


def _unstated(step: DraftStep, quote: str, context: str, question: str, *, english: bool) -> str:
    """Return a number, month, name, negation or bound of a statement that its quote lacks.

    :param context: text that may give the first three, too.
    :param question: text that may give names.
    """
    both = _ORDINAL.sub("", f"{quote} {context}")
    both = f"{both} {plain_quantities(both, numerals=english)}"
    whole = normalise(f"{both} {question}")
    patterns = [_DIGITS, _NAME, *([_MONTH] if english else [])]
    for pattern in patterns:
        for match in pattern.finditer(step.statement):
            word = _POSSESSIVE.sub("", match[0].rstrip("."))
            is_name = pattern is _NAME and any(
                normalise(form) in whole for form in (word, word.removesuffix("s"))
            )
            if not (is_name or contains_phrase(both, word)):
                return word
    if english and _CELLS not in quote:
        for pattern in (_NEGATION, _BOUND):
            wanted, had = pattern.search(step.statement), pattern.search(quote)
            if wanted and not had and not (pattern is _NEGATION and _CONTRARY.search(quote)):
                return wanted[0]
        lost = _NEGATION.search(quote)
        if (
            lost
            and not _NEGATION.search(step.statement)
            and not _CONTRARY.search(step.statement)
            and len(quote.split()) <= 14
        ):
            return f"without {lost[0]!r}"
    return ""


_CONTRARY: Final = re.compile(
    r"\b(?:remov|drop|fail|lack|refus|discontinu|disabl|prevent|repair|fix|clos|correct|wrong|incorrect|unable|un\w+ed\b|in\w+able\b|miss|exclud|omit|forbid|deprecat)\w*",
    re.IGNORECASE,
)
"""Words that deny without a negation."""


def _computations(draft: Draft) -> Iterator[DraftFault]:
    """Yield computed steps that give something else than they state."""
    try:
        results = compute(draft.steps, full=bool(_FULL.search(draft.question)))
    except ComputationError as error:
        yield DraftFault(GateCheck.COMPUTATION, str(error))
        return
    for number, value in results.items():
        step = draft.steps[number - 1]
        if isinstance(value, BoolValue):
            if not value.truth:
                yield DraftFault(GateCheck.COMPUTATION, f"{step.computes} of step {number} is false")
        elif number == len(draft.steps) and not _same(value, draft):
            yield DraftFault(
                GateCheck.COMPUTATION,
                f"step {number} gives {show_value(value)}, and the answer is {draft.answer}",
            )
        elif step.value and not _states(step.value, value):
            yield DraftFault(
                GateCheck.COMPUTATION, f"step {number} gives {show_value(value)}, not {step.value}"
            )


def _same(value: Value, draft: Draft) -> bool:
    answer = value_of(draft)
    if values_agree(value, answer):
        return True
    if isinstance(value, ListValue) and value.ordered:
        # `order` rises; a question may ask for the largest first.
        backwards = ListValue(value.items[::-1], ordered=True)
        return any(
            values_agree(candidate, answer) or contains_phrase(draft.answer, show_value(candidate))
            for candidate in (value, backwards)
        )
    if isinstance(value, NumberValue) and isinstance(answer, NumberValue):
        return value.amount == answer.amount and (
            not value.unit or not answer.unit or value.unit.rstrip("s") == answer.unit.rstrip("s")
        )
    return contains_phrase(draft.answer, show_value(value))


def _states(text: str, value: Value) -> bool:
    shown = f"{value.amount.normalize():f}" if isinstance(value, NumberValue) else show_value(value)
    return contains_phrase(text, shown)


_RANKING: Final = re.compile(r"\s*(?:arg)?(?:min|max|earliest|latest|order)\b")
"""Expression that finds what is first, last, most or least."""


def _time(draft: Draft) -> Iterator[DraftFault]:
    if match := _CURRENT.search(draft.question):
        yield DraftFault(GateCheck.TIME, f"the answer changes with time: {match[0]}")
    if any(_RANKING.match(step.computes) for step in draft.steps):
        return
    quotes = " ".join(step.quote for step in draft.steps)
    for match in _ABSOLUTE.finditer(_SUPERLATIVE_ORDER.sub("", draft.question)):
        if not contains_phrase(quotes, match[0]) and not _LISTED.search(draft.question):
            yield DraftFault(GateCheck.TIME, f"no quote says {match[0]!r}")
            return


def _completeness(draft: Draft, documents: dict[int, ShownDocument]) -> Iterator[DraftFault]:
    """Yield a finding if a count, a set or an absence rests on extracts."""
    is_stated = any(contains_phrase(step.quote, draft.answer) for step in draft.steps if step.quote)
    counts = (
        draft.kind in (DraftKind.COUNT, DraftKind.SET)
        or _ABSENT.search(draft.question)
        or (
            _HOW_MANY.search(draft.question)
            and not is_stated
            and draft.kind not in (DraftKind.DURATION, DraftKind.COMPUTATION, DraftKind.COMPARISON)
        )
    )
    parts = [
        documents[number]
        for number in draft.documents
        if number in documents and not documents[number].complete
    ]
    if counts and parts and not _lists_its_members(draft):
        yield DraftFault(
            GateCheck.COMPLETENESS,
            f"it counts or excludes over {parts[0].title or parts[0].id}, of which an extract is shown",
        )


def _lists_its_members(draft: Draft) -> bool:
    """Return whether a question names the things that it is about, and there are more quotes than these."""
    match = _MEMBERS.search(draft.question)
    if match is None:
        return False
    # The words of the question go on after the last member.
    *members, _ = _BETWEEN_MEMBERS.split(match["members"])
    counted = value_of(draft)
    if isinstance(counted, NumberValue) and counted.amount > len(members) + 1:
        return False
    return sum(bool(step.quote) for step in draft.steps) > len(members) > 0


def _size(draft: Draft, settings: RuleSettings) -> Iterator[DraftFault]:
    conclusions = {normalise(step.statement) for step in draft.steps if step.quote or step.computes}
    if len(conclusions) < settings.min_steps:
        yield DraftFault(GateCheck.STEPS, f"it has {len(conclusions)} steps, not {settings.min_steps}")
    # Without steps, readers find the documents of a draft that names none.
    if (draft.documents or draft.steps) and len(draft.documents) < settings.min_documents:
        yield DraftFault(
            GateCheck.STEPS,
            f"its quotes are from {len(draft.documents)} document, not {settings.min_documents}",
        )
