"""Facts and questions of the fake model: the same shallow reading answers all requests about them, so that they agree.

A sentence with a name and, behind it, another name or a number is a fact: the word before the value is the relation. A
question is its program in words, so that it can be read back.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from agentflow.testing.endpoint._prompt import Prompt

_SENTENCE = re.compile(r"[^.!?\n]{10,300}[.!?](?=\s|$)")
_NAME = re.compile(r"\b[A-Z][\w'’-]+(?: (?:of the |of )?[A-Z][\w'’-]+)*")
_VALUE = re.compile(
    r"(?P<word>[a-z]{3,}) (?P<value>\d[\d,.]*\d|\d+|[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)(?=[ .,;]|$)"
)
_PASSAGE = re.compile(r'<passage number="\d+">\n(.*?)\n?</passage>', re.DOTALL)
_OBSERVATION = re.compile(r"<observation>\n(.*)\n</observation>", re.DOTALL)
_QUESTION = re.compile(r"<question>\n(.*?)\n</question>", re.DOTALL)
_PROGRAM = re.compile(r"^The program:\n(.*?)(?=\n\n)", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"\((\d+)\) (.*?)(?=; \(\d+\) |\?$)")
_FOLLOW = re.compile(r"the (?P<relation>\w+) of (?P<of>.+)")
_FIND = re.compile(r"everything with (?P<of>.+) as its (?P<relation>\w+)")
_STOP = frozenset(
    ["the", "and", "was", "were", "its", "his", "her", "their", "for", "with", "from", "that", "which"]
)


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
    return {"facts": facts[:40], "sets": []}


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
        name = _NAME.search(sentence)
        if name is None:
            continue
        for match in _VALUE.finditer(sentence, name.end()):
            if match["word"] not in _STOP and match["value"] != name[0]:
                yield ShallowFact(name[0], match["word"], match["value"], sentence.strip())
                break
