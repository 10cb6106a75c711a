"""Riddles, the last kind of question: a number missing from one sentence, whose subject another observation gives."""

import re
from collections.abc import Iterator

from agentflow.offline._language import NUMBER, bounded, names, passages
from agentflow.trajectory import Citation, Draft, DraftStep, Step

__all__ = ["riddles"]

_NUMBER = re.compile(rf"(?<![\w.,\-]){NUMBER}(?![\w\-])")
_LONGEST = 22
"""Maximum number of words in a sentence of a riddle."""


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
            if sentence.endswith(".") and len(sentence.split()) <= _LONGEST:
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
