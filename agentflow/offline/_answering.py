"""Answering a question from what observations say: every question that they could answer is made, and compared."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations, product
from typing import NamedTuple

from rapidfuzz import fuzz, process

from agentflow.offline._chains import Hop, Knowledge, know_texts, ways
from agentflow.offline._facts import SLOT, Fact
from agentflow.offline._language import bounded, passages, terms

__all__ = ["Answered", "answer_from", "asked_in", "mentioned_by"]

_SAME = 92.0
"""So alike are two wordings of one question, of 100."""
_LIKE = 75.0
"""So alike a question has to be for its answer to be worth a guess."""
_TWENTY_FOUR = re.compile(r"\b24\b")
_OPTION = re.compile(r"^\W*(?P<letter>[A-Z])[.):] +(?P<text>\S.*)$", re.MULTILINE)
_ASKING = re.compile(r"[^\s.!?:][^.!?\n]*\?")
_YEARS = "How many years passed between the year in which {} and the year in which {}?"


class Answered(NamedTuple):
    """An answer and how sure it is."""

    answer: str
    """As short as can be."""
    working: str
    """What it rests on."""
    sure: bool
    """The question is one that the observations answer; else it is only much like one."""


class _Candidate(NamedTuple):
    question: str
    answer: str
    working: str


def answer_from(question: str, texts: tuple[str, ...]) -> Answered | None:
    """What the texts answer to the question; `None`: nothing."""
    if (expression := _twenty_four(question)) is not None:
        return Answered(expression, f"{expression} = 24.", sure=True)
    if options := list(_OPTION.finditer(question)):
        return _chosen(question[: options[0].start()], options, texts)
    candidates = _candidates(texts)
    if not candidates:
        return None
    question = asked_in(question)
    best = process.extractOne(
        _words(question), [_words(each.question) for each in candidates], scorer=fuzz.token_sort_ratio
    )
    if best[1] < _LIKE:
        return None
    found = candidates[best[2]]
    return Answered(found.answer, found.working, sure=best[1] >= _SAME)


def asked_in(question: str) -> str:
    """The question itself, without what stands around it on how to answer; all of it where nothing ends in a mark."""
    return " ".join(_ASKING.findall(question)) or question


def mentioned_by(question: str, texts: tuple[str, ...]) -> Iterator[str]:
    """Names that the texts lead to on the way from the question, those first that share most words with it."""
    asked = set(terms(question))
    found: dict[str, int] = {}
    for hops in know_texts(texts).hops.values():
        for hop in hops:
            said = set(terms(hop.phrase.replace(SLOT, hop.start_shown)))
            shared = len(said & asked)
            if shared >= 2 or (shared and bounded(hop.start, question)):
                found[hop.end] = max(shared, found.get(hop.end, 0))
    yield from sorted(found, key=lambda name: -found[name])


@lru_cache(maxsize=64)
def _candidates(texts: tuple[str, ...]) -> tuple[_Candidate, ...]:
    """Every question that these texts answer, through up to two things on the way."""
    knowledge = know_texts(texts)
    return (*_single(knowledge), *_chained(knowledge), *_spans(knowledge))


def _single(knowledge: Knowledge) -> Iterator[_Candidate]:
    for found in knowledge.found:
        fact = found.fact
        yield _Candidate(fact.ask.replace(SLOT, fact.shown), fact.value, fact.sentence)


def _chained(knowledge: Knowledge) -> Iterator[_Candidate]:
    for found in knowledge.found:
        fact = found.fact
        for hops in ways(fact.subject, knowledge.hops):
            phrase = hops[0].start_shown
            for hop in hops:
                phrase = hop.phrase.replace(SLOT, phrase)
            working = " ".join([*(_told(hop) for hop in hops), fact.sentence])
            yield _Candidate(fact.ask.replace(SLOT, phrase), fact.value, working)


def _spans(knowledge: Knowledge) -> Iterator[_Candidate]:
    dated: dict[str, Fact] = {}
    for found in knowledge.found:
        if found.fact.event:
            dated.setdefault(found.fact.value, found.fact)
    for one, other in permutations(dated.values(), 2):
        years = int(other.value) - int(one.value)
        if years > 0 and one.subject != other.subject:
            question = _YEARS.format(_event(one), _event(other))
            working = f"{one.sentence} {other.sentence} {other.value} - {one.value} = {years}."
            yield _Candidate(question, str(years), working)


def _event(fact: Fact) -> str:
    return fact.event.replace(SLOT, fact.shown)


def _told(hop: Hop) -> str:
    return hop.found.fact.sentence


def _words(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def _chosen(question: str, options: list[re.Match[str]], texts: tuple[str, ...]) -> Answered | None:
    """The option that stands in the sentence which shares most words with the question."""
    asked = set(terms(question))
    best: tuple[int, str, str] | None = None
    sentences = [sentence for text in texts for passage in passages(text) for sentence in passage.sentences]
    for option, sentence in product(options, sentences):
        if bounded(option["text"].strip(), sentence):
            shared = len(asked & set(terms(sentence)))
            if best is None or shared > best[0]:
                best = (shared, option["letter"], sentence)
    return None if best is None else Answered(best[1], best[2], sure=best[0] >= 2)


def _twenty_four(question: str) -> str | None:
    """For four numbers that are to make 24: how they do."""
    aim = _TWENTY_FOUR.search(question)
    given = [
        int(word)
        for word in re.findall(r"(?<![\w.])\d{1,2}(?![\w.]*\w)", question[: aim.start()] if aim else "")
    ]
    if len(given) != 4:
        return None
    return _made(tuple((float(number), str(number)) for number in given))


def _made(numbers: tuple[tuple[float, str], ...]) -> str | None:
    """Four numbers with their wording, put together two at a time until one is left."""
    if len(numbers) == 1:
        return numbers[0][1] if abs(numbers[0][0] - 24) < 1e-9 else None
    for i, j in permutations(range(len(numbers)), 2):
        (one, said), (other, told) = numbers[i], numbers[j]
        rest = tuple(number for k, number in enumerate(numbers) if k not in (i, j))
        results = [(one + other, "+"), (one - other, "-"), (one * other, "*")]
        if other:
            results.append((one / other, "/"))
        for result, sign in results:
            if (made := _made((*rest, (result, f"({said} {sign} {told})")))) is not None:
                return made
    return None
