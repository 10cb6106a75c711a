"""Extraction of typed facts and complete enumerations, and judgements about names."""

import re
from collections.abc import Iterator
from functools import lru_cache

from agentflow.facts import (
    KIND,
    AliasJudgement,
    AliasPair,
    AliasRequest,
    ExtractedFact,
    ExtractedSet,
    Extraction,
    ExtractionRequest,
    ValueKind,
)
from agentflow.offline._language import NAME, TopicPassage, bare, passages
from agentflow.offline._statements import Statement, read_passage
from agentflow.offline._words import COUNTS, KINDS

_LIST = re.compile(
    rf"[Tt]he (?P<count>[a-z]+|\d{{1,2}}) (?P<noun>[a-z][a-z'’\-]*(?: [a-z'’\-]+){{0,4}}?)"
    rf"(?P<of> of (?:the )?{NAME})?(?: that (?:were|are) [a-z]+ (?:at|in|by) (?:the )?{NAME})? (?:are|were) "
    rf"(?P<members>(?:the )?{NAME}(?:, (?:the )?{NAME})*,? and (?:the )?{NAME})[.;]"
)
_BETWEEN = re.compile(r", (?:and )?(?:the )?| and (?:the )?")
_YEAR = re.compile(r"[12]\d{3}")


def extract(request: ExtractionRequest) -> Extraction:
    """Return the facts of a chunk of text; equal passages are read once."""
    return extracted(request.text)


@lru_cache(maxsize=512)
def extracted(text: str) -> Extraction:
    """Return the facts of a text."""
    facts: dict[ExtractedFact, None] = {}
    sets: dict[ExtractedSet, None] = {}
    for passage in passages(text):
        found = _extracted(passage)
        facts.update(dict.fromkeys(found.facts))
        sets.update(dict.fromkeys(found.sets))
    return Extraction(tuple(facts), tuple(sets))


@lru_cache(maxsize=4096)
def _extracted(passage: TopicPassage) -> Extraction:
    return Extraction(tuple(_facts(passage)), tuple(_sets(passage)))


def _facts(passage: TopicPassage) -> Iterator[ExtractedFact]:
    reading = read_passage(passage)
    title = bare(passage.topic)
    for name, class_ in reading.classes.items():
        sentence = reading.introductions[name]
        place = sentence.find(class_, sentence.find(name) + len(name) if name in sentence else 0)
        quote = sentence[: place + len(class_)] if place >= 0 else sentence
        head = class_.rpartition(" ")[2]
        kind = head if head in KINDS else class_
        yield ExtractedFact(name, KIND, kind, ValueKind.TEXT, quote, aliases=_aliases(name, title))
    for statement in reading.facts:
        # `She discovered the comet` doesn't hold the name of the discoverer.
        stated = statement.relation and statement.value != statement.subject
        if stated and (fact := _fact(statement, title)).value in fact.quote:
            yield fact


def _fact(statement: Statement, title: str) -> ExtractedFact:
    value, kind = statement.value, ValueKind.ENTITY
    if statement.unit:
        value, kind = value.removesuffix(f" {statement.unit}"), ValueKind.NUMBER
    elif _YEAR.fullmatch(value):
        kind = ValueKind.DATE
    unit = "" if statement.relation == f"number of {statement.unit}" else statement.unit
    return ExtractedFact(
        statement.subject,
        statement.relation,
        value,
        kind,
        statement.quote,
        unit or statement.unit,
        aliases=_aliases(statement.subject, title),
    )


def _aliases(subject: str, title: str) -> tuple[str, ...]:
    """Return the heading if it is a longer form of the name."""
    return (title,) if title != subject and _longer(title, subject) else ()


def _sets(passage: TopicPassage) -> Iterator[ExtractedSet]:
    for sentence in passage.sentences:
        for match in _LIST.finditer(sentence):
            members = tuple(bare(name) for name in _BETWEEN.split(match["members"].removeprefix("the ")))
            if COUNTS.get(match["count"], match["count"]) == str(len(members)) and len(set(members)) > 1:
                description = match[0][4 : match.start("members") - match.start()].strip()
                description = description.removesuffix(" are").removesuffix(" were")
                yield ExtractedSet(description, members, match[0].rstrip(".;"))


def judge_aliases(request: AliasRequest) -> AliasJudgement:
    """Return true only for names whose words are the same, or of which one is a longer form of the other."""
    return AliasJudgement(tuple(_same(pair) for pair in request.pairs))


def _same(pair: AliasPair) -> bool:
    first, second = _words(pair.first), _words(pair.second)
    if first == second:
        return True
    longer, shorter = sorted((pair.first, pair.second), key=len, reverse=True)
    # The longer form is used where the shorter one is introduced: `Great Flood of 1712`, `Great Flood`.
    contexts = (pair.first_context, pair.second_context)
    return (
        len(_words(shorter)) > 1
        and _longer(longer, shorter)
        and all(shorter.lower() in context.lower() for context in contexts)
    )


def _longer(longer: str, shorter: str) -> bool:
    """Return true if a name only adds a year, or something in parentheses, to another one."""
    rest = longer.removeprefix(shorter)
    return rest != longer and re.fullmatch(r" \(.+\)|(?: of|,)? [12]\d{3}", rest) is not None


def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in re.findall(r"\w+", name.lower()) if word not in {"the", "a", "an"})
