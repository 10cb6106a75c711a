"""Questions over documents of the fake model: the same shallow reading answers all requests about them, so that they agree.

A sentence with a name and, behind it, another name or a number is a fact: the verb before the name, or the noun behind the
number, is the relation. A question asks for facts of different documents in a row, as many as its steps need, so that it can be read back.
"""

import re
from collections.abc import Iterator, Sequence
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
_ASKS = "What comes first and second: "
_STEPS = re.compile(r"`steps`, at least (\d+)")
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
    steps_match = _STEPS.search(prompt.text)
    count = max(2, int(steps_match[1]) - 1) if steps_match else 2
    drafts: list[dict[str, object]] = []
    used = set[ShallowFact]()
    for first in facts:
        left = [fact for fact in facts if fact != first and fact not in used]
        second = next((other for other in left if other.document != first.document), None)
        if second is None or first in used or len(drafts) == 6:
            continue
        # After a name, a number would read as a property of it.
        more = [other for other in left if other != second and not other.value[0].isdigit()]
        chosen = [*more[: count - 2], first, second]
        used |= {*chosen}
        drafts.append(_draft(chosen))
    return {"people": [], "connections": [], "drafts": drafts}


def _draft(facts: Sequence[ShallowFact]) -> dict[str, object]:
    things = ", or ".join(f"the {fact.relation} of {fact.subject}" for fact in facts)
    question = f"{_ASKS}{things}?"
    steps = [
        {
            "statement": fact.quote,
            "passage": fact.passage,
            "quote": fact.quote[:400],
            "value": fact.value,
            "computes": "",
            "region": None,
        }
        for fact in facts
    ]
    last = {
        "statement": "All in a row.",
        "passage": 0,
        "quote": "",
        "value": "",
        "computes": f"order({', '.join(f's{number}' for number in range(1, len(facts) + 1))})",
        "region": None,
    }
    return {
        "kind": "order",
        "asker": "somebody who tries the pipeline",
        "question": question,
        "answer": _answer(facts),
        "answer_type": "text",
        "unit": "",
        "precision": "",
        "documents": list(dict.fromkeys(fact.document for fact in facts)),
        "steps": [*steps, last],
        "reasoning": "",
        "rivals": [],
    }


def _answer(facts: Sequence[ShallowFact]) -> str:
    return ", then ".join(fact.value for fact in facts)


def read_hidden(prompt: Prompt) -> dict[str, object]:
    """Return the answer to the question of a prompt from the documents that it shows."""
    facts = _read(prompt, _question(prompt))
    if facts is None:
        return {"answer": "", "basis": "guessed", "documents": []}
    return {"answer": _answer(facts), "basis": "stated", "documents": [fact.document for fact in facts]}


def read_all(prompt: Prompt) -> dict[str, object]:
    """Return the answers to all questions of a prompt."""
    readings: list[dict[str, object]] = []
    for number, question in _ASKED.findall(prompt.text):
        facts = _read(prompt, question)
        readings.append(
            {
                "number": int(number or 1),
                "documents": [] if facts is None else [fact.document for fact in facts],
                "derivation": "It is stated.",
                "answers": [] if facts is None else [_answer(facts)],
                "naturalness": 3,
            }
        )
    return {"readings": readings}


def find_others(prompt: Prompt) -> dict[str, object]:
    """Return that nothing else fits."""
    return {"others": [], "ended": "", "one_document": 0}


def _question(prompt: Prompt) -> str:
    match = _ASKED.search(prompt.text.partition("<question>")[2])
    return "" if match is None else match[2]


def _read(prompt: Prompt, question: str) -> list[ShallowFact] | None:
    """Return the facts that a question asks for; `None` if one is not shown."""
    if not question.startswith(_ASKS):
        return None
    fact_by_phrase: dict[str, ShallowFact] = {}
    for fact in _facts(prompt):
        fact_by_phrase.setdefault(f"the {fact.relation} of {fact.subject}", fact)
    facts = [
        fact_by_phrase.get(thing) for thing in question.removeprefix(_ASKS).removesuffix("?").split(", or ")
    ]
    return None if None in facts else [fact for fact in facts if fact is not None]


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
