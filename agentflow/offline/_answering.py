"""Answering a question from observations: all questions that they can answer are generated, and compared with it."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations, product
from typing import NamedTuple

from rapidfuzz import fuzz, process

from agentflow.offline._chains import Hop, Knowledge, know_texts, ways
from agentflow.offline._facts import SLOT, Fact
from agentflow.offline._language import bounded, passages, terms

_SAME = 92.0
"""Minimum similarity, of 100, for two wordings of one question."""
_LIKE = 75.0
"""Minimum similarity for an answer that is a guess."""
_TWENTY_FOUR = re.compile(r"\b24\b")
_OPTION = re.compile(r"^\W*(?P<letter>[A-Z])[.):] +(?P<text>\S.*)$", re.MULTILINE)
_ASKING = re.compile(r"[^\s.!?:][^.!?\n]*\?")
_YEARS = "How many years passed between the year in which {} and the year in which {}?"


class ShortAnswer(NamedTuple):
    """An answer, and its certainty."""

    answer: str
    """The answer, as short as possible."""
    working: str
    """The sentence it is based on."""
    sure: bool
    """The observations answer this question; otherwise only a similar one."""


class _Candidate(NamedTuple):
    question: str
    answer: str
    working: str


def answer_from(question: str, texts: tuple[str, ...]) -> ShortAnswer | None:
    """Return the answer that the texts give to a question; `None` without one."""
    if (expression := _twenty_four(question)) is not None:
        return ShortAnswer(expression, f"{expression} = 24.", sure=True)
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
    return ShortAnswer(found.answer, found.working, sure=best[1] >= _SAME)


def asked_in(question: str) -> str:
    """Return the question without instructions on the format of the answer; the whole text if it has no question mark."""
    return " ".join(_ASKING.findall(question)) or question


def mentioned_by(question: str, texts: tuple[str, ...]) -> Iterator[str]:
    """Yield the names that the texts lead to from the question; those that share the most words with it come first."""
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
    """Return every question that these texts answer, over at most two intermediate facts."""
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


def _chosen(question: str, options: list[re.Match[str]], texts: tuple[str, ...]) -> ShortAnswer | None:
    """Return the option in the sentence that shares the most words with the question."""
    asked = set(terms(question))
    best: tuple[int, str, str] | None = None
    sentences = [sentence for text in texts for passage in passages(text) for sentence in passage.sentences]
    for option, sentence in product(options, sentences):
        if bounded(option["text"].strip(), sentence):
            shared = len(asked & set(terms(sentence)))
            if best is None or shared > best[0]:
                best = (shared, option["letter"], sentence)
    return None if best is None else ShortAnswer(best[1], best[2], sure=best[0] >= 2)


def _twenty_four(question: str) -> str | None:
    """Return the expression that makes 24 of four numbers."""
    aim = _TWENTY_FOUR.search(question)
    given = [
        int(word)
        for word in re.findall(r"(?<![\w.])\d{1,2}(?![\w.]*\w)", question[: aim.start()] if aim else "")
    ]
    if len(given) != 4:
        return None
    return _made(tuple((float(number), str(number)) for number in given))


def _made(numbers: tuple[tuple[float, str], ...]) -> str | None:
    """Combine numbers, each with its expression, two at a time until one is left."""
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
