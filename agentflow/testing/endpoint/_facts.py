"""Facts and questions of the fake model: the same shallow reading answers all requests about them, so that they agree.

A sentence with a name and, behind it, another name or a number is a fact: the verb before the name, or the noun behind the
number, is the relation. A
question is its program in words, so that it can be read back.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from agentflow.testing.endpoint._prompt import Prompt

_SENTENCE = re.compile(r"[^.!?\n]{10,300}[.!?](?=\s|$)")
_NAME = re.compile(r"\b[A-Z][\w'’-]+(?: (?:of the |of )?[A-Z][\w'’-]+)*")
_VALUE = re.compile(
    r"\b(?P<verb>[a-z]{4,})(?: [a-z]{1,3}){0,2} (?P<thing>[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)"
    r"|(?P<number>\d[\d,]*\d|\d) (?P<unit>[a-z]{4,})"
)
_ADDRESS = re.compile(r"https?://\S+")
_PASSAGE = re.compile(r'<passage number="\d+">\n(.*?)\n?</passage>', re.DOTALL)
_OBSERVATION = re.compile(r"<observation>\n(.*)\n</observation>", re.DOTALL)
_QUESTION = re.compile(r"<question>\n(.*?)\n</question>", re.DOTALL)
_PROGRAM = re.compile(r"^The program:\n(.*?)(?=\n\n)", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"\((\d+)\) (.*?)(?=; \(\d+\) |\?$)")
_FOLLOW = re.compile(r"the (?P<relation>\w+) of (?P<of>.+)")
_FIND = re.compile(r"(?:everything with|what has) (?P<of>.+) as its (?P<relation>\w+)")
_STOP = frozenset(["were", "their", "with", "from", "that", "which", "when", "where"])


_OPENERS = frozenset(
    [
        "The",
        "A",
        "An",
        "It",
        "Its",
        "He",
        "She",
        "His",
        "Her",
        "They",
        "Their",
        "In",
        "Of",
        "This",
        "There",
        "Explore",
    ]
)
"""Words that open a sentence and are no names."""


class ShallowFact(NamedTuple):
    """A fact as the fake model reads it."""

    subject: str
    relation: str
    value: str
    quote: str


def extract(prompt: Prompt) -> dict[str, object]:
    """Return the facts of the observation in a prompt."""
    text = _OBSERVATION.search(prompt.text)
    facts: list[dict[str, object]] = [
        {
            "subject": fact.subject,
            "relation": fact.relation,
            "value": fact.value,
            "kind": "number" if fact.value[0].isdigit() else "entity",
            "quote": fact.quote,
            "unit": "",
            "time": "",
            "aliases": [],
            "region": None,
        }
        for fact in _read(text[1] if text else "")
    ]
    return {"facts": facts[:60], "sets": []}


def word(prompt: Prompt) -> dict[str, object]:
    """Return a question that lists the steps of its program."""
    program = _PROGRAM.search(prompt.text)
    steps = "; ".join(program[1].splitlines()) if program else ""
    return {"question": f"What is the last result of {steps}?" if steps else ""}


def translate(prompt: Prompt) -> dict[str, object]:
    """Return the program that a question of `word` lists."""
    return {"steps": _steps(prompt)}


def answer(prompt: Prompt) -> dict[str, object]:
    """Return the answers that the passages in a prompt allow."""
    known: dict[tuple[str, str], dict[str, ShallowFact]] = {}
    inverse: dict[tuple[str, str], dict[str, ShallowFact]] = {}
    for passage in _PASSAGE.findall(prompt.text):
        for fact in _read(passage):
            known.setdefault((fact.subject, fact.relation), {})[fact.value] = fact
            inverse.setdefault((fact.value, fact.relation), {})[fact.subject] = fact
    results: list[list[str]] = []
    quotes: list[str] = []
    for step in _steps(prompt):
        source = known if step["operator"] == "follow" else inverse
        found: dict[str, ShallowFact] = {}
        for given in step["inputs"]:
            names = results[int(given[1:]) - 1] if given.startswith("#") else [given]
            for name in names:
                found |= source.get((name, step["relation"]), {})
        results.append(list(found))
        quotes += [fact.quote for fact in found.values()]
    answers = results[-1] if results else []
    derivation = f"The passages give {len(answers)} answers."
    return {"quotes": quotes[:8], "derivation": derivation, "answers": answers[:4]}


def _steps(prompt: Prompt) -> list[dict[str, Any]]:
    question = _QUESTION.search(prompt.text)
    steps: list[dict[str, Any]] = []
    for _, words in _STEP.findall(question[1] if question else ""):
        for operator, pattern in (("follow", _FOLLOW), ("find", _FIND)):
            if match := pattern.fullmatch(words):
                given = re.sub(r"^\((\d+)\)$", r"#\1", match["of"])
                steps.append(
                    {
                        "operator": operator,
                        "inputs": [given],
                        "relation": match["relation"],
                        "comparison": "equal",
                    }
                )
                break
        else:
            return []
    return steps


def _read(text: str) -> Iterator[ShallowFact]:
    for sentence in _SENTENCE.findall(text):
        name = _first_name(sentence)
        if name is None:
            continue
        subject, end = name
        for match in _VALUE.finditer(sentence, end):
            relation, value = match["verb"] or match["unit"], match["thing"] or match["number"]
            if relation not in _STOP and value not in (subject, *_OPENERS):
                yield ShallowFact(subject, relation, value, sentence.strip())


def names_in(text: str) -> Iterator[str]:
    """Yield the names in a text, without words that only open a sentence; addresses have none."""
    for match in _NAME.finditer(_ADDRESS.sub(" ", text)):
        words = match[0].split()
        while words and words[0] in _OPENERS:
            words = words[1:]
        if words:
            yield " ".join(words)


def _first_name(sentence: str) -> tuple[str, int] | None:
    """Return the first name of a sentence, without a word that only opens it, and its end."""
    for match in _NAME.finditer(sentence):
        words = match[0].split()
        if words[0] in _OPENERS:
            words = words[1:]
        if words:
            return " ".join(words), match.end()
    return None
