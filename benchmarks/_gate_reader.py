"""A scripted model behind the reader's prompts: it answers only from what the text of a request shows."""

import re
from random import Random
from typing import TypeVar

import msgspec

from agentflow.facts import (
    DateValue,
    Fact,
    FactSpan,
    FactStore,
    Translation,
    TranslationStep,
    new_fact,
    new_set,
    show_value,
)
from agentflow.facts import EvidenceAnswer as Answer
from agentflow.models import Call, Completion, TextPart
from agentflow.testing import oracle_answers
from agentflow.trajectory import Usage, digest
from benchmarks._gate_drafts import value_of_plain
from benchmarks._gate_language import read_page, read_question, typed_program

T = TypeVar("T")

_PASSAGE = re.compile(r'<passage number="\d+">\n(.*?)\n</passage>', re.DOTALL)
_QUESTION = re.compile(r"<question>\n(.*?)\n</question>", re.DOTALL)
_BULLET = re.compile(r"^- (.+)$", re.MULTILINE)
_SAID = re.compile(r"(?:it is|the answer is|answer) (?P<said>[^.?]+)", re.IGNORECASE)
_NAMES = re.compile(r"[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")


class ScriptedModel:
    """Model that reads the passages of its prompt with a few patterns. A share of its answers is wrong, by a seed."""

    name = "scripted"
    vision = False

    def __init__(self, error: float, seed: int) -> None:
        """Create the model.

        :param error: rate of wrong answers: misses, guesses, and agreement with whatever a request suggests.
        """
        self._error = error
        self._seed = seed
        self.memory: tuple[Fact, ...] = ()
        """Facts that it knows without evidence."""
        self.calls = 0
        """Calls answered."""
        self.prompts: list[str] | None = None
        """Prompts, if they are kept."""

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Answer a prompt."""
        system, user = ("".join(_text(part) for part in message.parts) for message in call.messages)
        self.calls += 1
        if self.prompts is not None:
            self.prompts.append(user)
        random = Random(digest([self._seed, system, user]))
        if system.startswith("You translate"):
            value: msgspec.Struct = self._translate(user, random)
        elif system.startswith("You answer a question from passages"):
            value = self._read(user, random)
        elif system.startswith("Answer the question from your own knowledge"):
            value = self._recall(user.partition("\n\nThis is an independent attempt")[0], random)
        else:
            raise ValueError(f"unknown prompt: {system[:80]}")
        text = msgspec.json.encode(value).decode()
        usage = Usage(1, len(system + user) // 4, len(text) // 4)
        return Completion(
            value=msgspec.json.decode(text, type=call.reply), text=text, usage=usage, model=self.name
        )

    def _translate(self, user: str, random: Random) -> Translation:
        relations, _, rest = user.partition("The complete sets:")
        sets, _, rest = rest.partition("The question:")
        (question,) = _QUESTION.findall(rest)
        known = _BULLET.findall(relations)
        steps = read_question(question, known, _BULLET.findall(sets))
        if random.random() >= self._error or not steps:
            return Translation(steps)
        # Misread a relation, or give up.
        place = random.randrange(len(steps))
        step = steps[place]
        if not step.relation or random.random() < 0.3:
            return Translation(())
        wrong = TranslationStep(step.operator, step.inputs, random.choice(known), step.comparison, step.time)
        return Translation((*steps[:place], wrong, *steps[place + 1 :]))

    def _read(self, user: str, random: Random) -> Answer:
        passages: list[str] = _PASSAGE.findall(user)
        (question,) = _QUESTION.findall(user)
        store = _store(passages)
        if random.random() < self._error:
            return self._wrong(question, [show_value(fact.value) for fact in store.facts], random)
        return _answer(question, store)

    def _recall(self, question: str, random: Random) -> Answer:
        if random.random() < self._error:
            return self._wrong(question, _NAMES.findall(question), random)
        if said := _SAID.search(question):
            # A question that states its answer needs no knowledge.
            return Answer((), "The question states it.", (said["said"].partition(", what")[0],))
        return _answer(question, FactStore(self.memory))

    def _wrong(self, question: str, values: list[str], random: Random) -> Answer:
        """Miss the answer, guess one, or agree with a suggestion."""
        how = random.randrange(3)
        said = _SAID.search(question)
        if how == 0 and said is not None:
            return Answer((), "It is suggested.", (said["said"],))
        if question.startswith("Is ") and how:
            return Answer((), "It seems so.", (random.choice(("yes", "no")),))
        if how and values:
            return Answer((), "It seems so.", (random.choice(values),))
        return Answer((), "It is not stated.", ())


def _text(part: object) -> str:
    return part.text if isinstance(part, TextPart) else ""


def _answer(question: str, store: FactStore) -> Answer:
    sets = {one.description: one.id for one in store.sets.values()}
    program = typed_program(read_question(question, store.relations, tuple(sets)), sets)
    found = oracle_answers(program, store) if program else frozenset[tuple[object, ...]]()
    said = sorted(show_value(value_of_plain(one)) for one in found)
    return Answer((), f"{len(store.facts)} statements were read.", tuple(said))


def _store(passages: list[str]) -> FactStore:
    """Return a store of the statements in some passages."""
    facts: dict[str, Fact] = {}
    sets: dict[str, tuple[str, ...]] = {}
    for text in passages:
        page = read_page(text)
        for one in page.statements:
            time = DateValue(one.year) if one.year else None
            fact = new_fact(one.subject, one.relation, one.value, (FactSpan("shown", 0, 1),), time)
            facts.setdefault(fact.id, fact)
        for what, members in page.sets:
            sets.setdefault(what, members)
    closed = [new_set(what, members, (FactSpan("shown", 0, 1),)) for what, members in sets.items()]
    return FactStore(facts.values(), closed)
