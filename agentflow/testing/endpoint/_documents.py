"""Questions over documents of the fake model: the same shallow reading answers all requests about them, so that they agree.

A sentence with a name and, behind it, another name or a number is a fact: the verb before the name, or the noun behind the
number, is the relation. A question asks for two facts of different documents in a row, so that it can be read back.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from agentflow.testing.endpoint._prompt import Prompt

_DOCUMENT = re.compile(r'<document number="(\d+)"[^>]*>\n(.*?)\n?</document>', re.DOTALL)
_PASSAGE = re.compile(r"^\[(\d+)\] (.*?)(?=^\[\d+\] |^## |\Z)", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r"[^.!?\n]{10,300}[.!?](?=\s|$)")
_NAME = re.compile(r"\b[A-Z][\w'’-]+(?: (?:of the |of )?[A-Z][\w'’-]+)*")
_VALUE = re.compile(
    r"\b(?P<verb>[a-z]{4,})(?: [a-z]{1,3}){0,2} (?P<thing>[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)"
    r"|(?P<number>\d[\d,]*\d|\d) (?P<unit>[a-z]{4,})"
)
_ADDRESS = re.compile(r"https?://\S+")
_ASKED = re.compile(r"(?:^|\n)(?:(\d+)\. )?(What comes first and second: [^\n]*\?)")
_PARTS = re.compile(r"What comes first and second: the (\w+) of (.+?), or the (\w+) of (.+)\?")
_STOP = frozenset(["were", "their", "with", "from", "that", "which", "when", "where"])
_OPENERS = frozenset([
    "The", "A", "An", "It", "Its", "He", "She", "His", "Her", "They", "Their", "In", "Of", "This", "There", "Explore",
])  # fmt: skip
"""Words that open a sentence and are no names."""


class ShallowFact(NamedTuple):
    """A fact as the fake model reads it."""

    subject: str
    relation: str
    value: str
    quote: str
    document: int
    passage: int


def propose(prompt: Prompt) -> dict[str, object]:
    """Return drafts about the documents of a prompt."""
    facts = list({(fact.subject, fact.relation): fact for fact in _facts(prompt)}.values())
    drafts: list[dict[str, object]] = []
    used = set[ShallowFact]()
    for first in facts:
        second = next(
            (each for each in facts if each.document != first.document and not {first, each} & used), None
        )
        if second is not None and len(drafts) < 6:
            used |= {first, second}
            drafts.append(_draft(first, second))
    return {"people": [], "connections": [], "drafts": drafts}


def _draft(first: ShallowFact, second: ShallowFact) -> dict[str, object]:
    question = f"What comes first and second: the {first.relation} of {first.subject}, or the {second.relation} of {second.subject}?"
    steps = [
        {
            "statement": fact.quote,
            "passage": fact.passage,
            "quote": fact.quote[:400],
            "value": fact.value,
            "computes": "",
            "region": None,
        }
        for fact in (first, second)
    ]
    last = {
        "statement": "Both in a row.",
        "passage": 0,
        "quote": "",
        "value": "",
        "computes": "order(s1, s2)",
        "region": None,
    }
    return {
        "kind": "order",
        "asker": "somebody who tries the pipeline",
        "question": question,
        "answer": _answer(first, second),
        "answer_type": "text",
        "unit": "",
        "precision": "",
        "documents": [first.document, second.document],
        "steps": [*steps, last],
        "reasoning": "",
        "rivals": [],
    }


def _answer(first: ShallowFact, second: ShallowFact) -> str:
    return f"{first.value}, then {second.value}"


def read_hidden(prompt: Prompt) -> dict[str, object]:
    """Return the answer to the question of a prompt from the documents that it shows."""
    found = _read(prompt, _question(prompt))
    if found is None:
        return {"answer": "", "basis": "guessed", "documents": []}
    return {"answer": _answer(*found), "basis": "stated", "documents": [fact.document for fact in found]}


def read_all(prompt: Prompt) -> dict[str, object]:
    """Return the answers to all questions of a prompt."""
    readings: list[dict[str, object]] = []
    for number, question in _ASKED.findall(prompt.text):
        found = _read(prompt, question)
        readings.append(
            {
                "number": int(number or 1),
                "documents": [] if found is None else [fact.document for fact in found],
                "derivation": "It is stated.",
                "answers": [] if found is None else [_answer(*found)],
                "naturalness": 3,
            }
        )
    return {"readings": readings}


def find_others(prompt: Prompt) -> dict[str, object]:
    """Return that nothing else fits."""
    return {"others": [], "ended": "", "one_document": 0}


def _question(prompt: Prompt) -> str:
    asked = _ASKED.search(prompt.text.partition("<question>")[2])
    return "" if asked is None else asked[2]


def _read(prompt: Prompt, question: str) -> tuple[ShallowFact, ShallowFact] | None:
    """Return the two facts that a question asks for; `None` if one is not shown."""
    parts = _PARTS.fullmatch(question)
    if parts is None:
        return None
    known: dict[tuple[str, str], ShallowFact] = {}
    for fact in _facts(prompt):
        known.setdefault((fact.relation, fact.subject), fact)
    first, second = known.get((parts[1], parts[2])), known.get((parts[3], parts[4]))
    return None if first is None or second is None else (first, second)


def _facts(prompt: Prompt) -> Iterator[ShallowFact]:
    """Yield the facts of the documents in a prompt."""
    for number, body in _DOCUMENT.findall(prompt.system):
        for passage, text in _PASSAGE.findall(body):
            for sentence in _SENTENCE.findall(text):
                name = _first_name(sentence)
                if name is None:
                    continue
                subject, end = name
                for match in _VALUE.finditer(sentence, end):
                    relation, value = match["verb"] or match["unit"], match["thing"] or match["number"]
                    if relation not in _STOP and value not in (subject, *_OPENERS):
                        yield ShallowFact(
                            subject, relation, value, sentence.strip(), int(number), int(passage)
                        )


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
