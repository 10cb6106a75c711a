"""The offline generator: an extractive question over several observations, with its reasoning."""

import re
from collections.abc import Iterator

from agentflow.offline._chains import Chain, Knowledge, KnownFact, chains, know
from agentflow.offline._language import NUMBER, bounded, names, passages
from agentflow.offline._statements import SLOT
from agentflow.trajectory import Citation, Draft, DraftStep, Step, WriteRequest

LABEL = "years between:"
"""Label that the planner's programs print before a span of years."""
_SPAN = re.compile(r"(?P<later>[12]\d{3}) - (?P<earlier>[12]\d{3})\b")
_PRINTED = re.compile(rf"{LABEL} (?P<years>\d+)")
_FOREIGN = re.compile(
    r"\b(?:this|these|above|below|the (?:document|observation|passage|text|seed))\b", re.IGNORECASE
)
"""Words that would make a question depend on text that only the path shows."""
_NUMBER = re.compile(rf"(?<![\w.,\-]){NUMBER}(?![\w\-])")
_MAX_WORDS = 22
"""Maximum number of words in a sentence of a riddle."""


def write(request: WriteRequest) -> Draft:
    """Return the best question not rejected yet, preferring one with another answer; an empty one if there is none."""
    questions = {rejection.draft.question for rejection in request.rejected}
    answers = {rejection.draft.answer for rejection in request.rejected}
    second: Draft | None = None
    for draft in _drafts(request):
        if draft.question in questions or _FOREIGN.search(draft.question):
            continue
        if draft.answer not in answers:
            return draft
        second = second or draft
    return second or Draft("", "", ())


def _drafts(request: WriteRequest) -> Iterator[Draft]:
    """Yield all drafts, best first."""
    knowledge = know(step.observation for step in request.evidence)
    spans = list(computed(request.evidence, knowledge))
    # A value computed at the end of the path is its topic.
    fresh = [
        draft for draft in spans if draft.steps[-1].citations[-1].observation >= len(request.evidence) - 1
    ]
    yield from fresh
    for chain in chains(knowledge, request):
        yield _draft(chain, knowledge)
    yield from (draft for draft in spans if draft not in fresh)
    yield from riddles(request.evidence)


def _draft(chain: Chain, knowledge: Knowledge) -> Draft:
    steps: list[DraftStep] = []
    start = chain.hops[0]
    if len(chain.hops) == 1:
        sentence, number = knowledge.introductions.get(
            start.start, (start.found.fact.sentence, chain.cited[0])
        )
        class_ = knowledge.classes.get(start.start)
        known = (
            f", known as {'an' if class_[:1] in 'aeio' else 'a'} {class_}"
            if class_ and start.start in knowledge.introductions
            else ""
        )
        steps.append(
            DraftStep(f"The question starts from {start.start_shown}{known}.", (Citation(number, sentence),))
        )
    for hop, number in zip(chain.hops, chain.cited, strict=False):
        fact = hop.found.fact
        phrase = hop.phrase.replace(SLOT, hop.start_shown)
        shown = fact.value_shown if hop.end == fact.value else fact.shown
        steps.append(
            DraftStep(f"{phrase[0].upper()}{phrase[1:]}: {shown}.", _cite(number, fact.naming, fact.sentence))
        )
    fact = chain.target.fact
    steps.append(
        DraftStep(f"{fact.question} {fact.value}.", _cite(chain.cited[-1], fact.naming, fact.sentence))
    )
    return Draft(chain.question, fact.value, tuple(steps))


def _cite(number: int, *quotes: str) -> tuple[Citation, ...]:
    return tuple(Citation(number, quote) for quote in quotes if quote)


def computed(evidence: tuple[Step, ...], knowledge: Knowledge) -> Iterator[Draft]:
    """Yield a question about the years between two events for each computed span, newest first."""
    dated = {found.fact.value: found for found in reversed(knowledge.found) if found.fact.event}
    for number, step in reversed(list(enumerate(evidence, start=1))):
        span = _SPAN.search(" ".join(str(value) for value in step.action.arguments.values()))
        printed = _PRINTED.search(step.observation)
        if span is None or printed is None:
            continue
        earlier, later = dated.get(span["earlier"]), dated.get(span["later"])
        if earlier is None or later is None or earlier.fact.subject == later.fact.subject:
            continue
        yield Draft(
            f"How many years passed between the year in which {earlier.fact.event_shown}"
            f" and the year in which {later.fact.event_shown}?",
            printed["years"],
            (
                _dating(earlier),
                _dating(later),
                DraftStep(
                    f"{span['later']} - {span['earlier']} = {printed['years']}.",
                    (
                        *_dating(earlier).citations[-1:],
                        *_dating(later).citations[-1:],
                        Citation(number, printed[0]),
                    ),
                ),
            ),
        )


def _dating(found: KnownFact) -> DraftStep:
    fact = found.fact
    citations = _cite(found.places[0], fact.naming, fact.sentence)
    return DraftStep(f"{fact.question} {fact.value}.", citations)


def riddles(evidence: tuple[Step, ...]) -> Iterator[Draft]:
    """Yield `Which number is missing from “X has … gates”, where X stands for the same name as in “X lies by the sea”?`"""
    known: dict[str, list[tuple[int, str]]] = {}
    for number, step in enumerate(evidence, start=1):
        for sentence in _sentences(step.observation):
            for name in names(sentence):
                known.setdefault(name, []).append((number, sentence))
    for name, places in known.items():
        for number, sentence in reversed(places):
            found = _NUMBER.search(sentence.replace(name, " " * len(name)))
            if found is None:
                continue
            for other, clue in places:
                if other != number and clue != sentence and not bounded(found[0], clue):
                    draft = _riddle(name, (other, clue), (number, sentence), found)
                    if not bounded(draft.answer, draft.question) and not bounded(name, draft.question):
                        yield draft
                    break


def _sentences(text: str) -> Iterator[str]:
    for passage in passages(text):
        for sentence in passage.sentences:
            if sentence.endswith(".") and len(sentence.split()) <= _MAX_WORDS:
                yield sentence


def _riddle(name: str, clue: tuple[int, str], riddle: tuple[int, str], found: re.Match[str]) -> Draft:
    number, sentence = riddle
    blank = f"{sentence[: found.start()]}…{sentence[found.end() :]}".rstrip(".")
    told = clue[1].rstrip(".")
    masked, hint = _mask(name, blank), _mask(name, told)
    return Draft(
        f"Which number is missing from “{masked}”, where X stands for the same name as in “{hint}”?",
        found[0],
        (
            DraftStep(f"“{hint}” is said of {name}, so X is {name}.", (Citation(clue[0], clue[1]),)),
            DraftStep(
                f"The sentence with the missing number is one about {name}.", (Citation(number, sentence),)
            ),
            DraftStep(f"It reads {found[0]} where the number is missing.", (Citation(number, sentence),)),
        ),
    )


def _mask(name: str, text: str) -> str:
    return re.sub(rf"(?:\b[Tt]he )?(?<!\w){re.escape(name)}(?!\w)", "X", text)
