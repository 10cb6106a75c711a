"""Planners that are no language model: one that knows how, one with bad habits to learn from, and one that guesses."""

import re
from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple, TypeVar, cast

import msgspec

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.models import Call, Completion, Message, Text
from agentflow.trajectory import NextStep, NextStepRequest, Usage
from examples.first_training.plan import Strays

__all__ = ["CODE", "SEARCH", "Demonstration", "Guesser", "Teacher"]

T = TypeVar("T")

SEARCH, CODE = "rag_search", "code_run"
"""The tools that there are."""

_NAME = r"[A-Z]\w+ [A-Z]\w+"
_ASKED = re.compile(rf"(?:the mayor of|home port of the|does the) (?P<name>{_NAME})")
_PORT = re.compile(rf"The home port of the {_NAME} is (?P<town>{_NAME})\.")
_CRATES = re.compile(r"crates: (?P<crates>\d+) \* (?P<each>\d+) ")

Mistake = Literal["", "broken", "unknown", "again", "crossed"]
"""What a teacher does instead of the right thing: JSON that is cut short; a tool that there is not; the first search once
more; a product that is no program. None of it is a wrong name: what a model learns to copy is always right."""


class Demonstration(NamedTuple):
    """A step that a teacher took."""

    episode: str
    """The question: what follows from each other is of one episode."""
    messages: list[dict[str, str]]
    """What it was shown, as a chat template takes it."""
    answer: str
    """What it wrote."""


class Teacher:
    """A scripted planner; without habits it is always right."""

    name = "teacher"
    """What it is called."""
    vision = False
    """It takes no pictures."""

    def __init__(self, habits: Strays | None = None, seed: int = 0) -> None:
        """Make it; the same seed errs at the same places."""
        self._habits = habits
        self._seed = seed
        self.shown: list[Demonstration] = []
        """Every step that it took."""

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Say what comes next.

        :raises ModelFailure: where it writes no JSON.
        """
        request = cast("NextStepRequest", call.request)
        turn = len(request.memory.turns)
        random = Random(f"{self._seed} {request.question} {turn}")
        mistake = _mistake(self._habits, _seen(request), random) if self._habits else ""
        step = _step(request, mistake, random)
        text = msgspec.json.encode(step).decode()
        if mistake == "broken":
            text = text[:-1]
        self.shown.append(Demonstration(request.question, _said(call.messages), text))
        if mistake == "broken":
            raise ModelFailure(ModelFailureKind.GARBAGE, "the answer is no nextstep")
        return Completion(value=cast("T", step), text=text, usage=Usage(1), model=self.name)


class Guesser:
    """A planner that knows the form and nothing else: any tool, and any words or numbers that it has read."""

    name = "guesser"
    """What it is called."""
    vision = False
    """It takes no pictures."""

    def __init__(self, seed: int = 0) -> None:
        """Make it; the same seed guesses the same."""
        self._seed = seed

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Say anything."""
        request = cast("NextStepRequest", call.request)
        read = [request.question, *(turn.result for turn in request.memory.turns)]
        random = Random(f"{self._seed} {read}")
        words = [word for text in read for word in re.findall(r"\w+", text)]
        numbers = [word for word in words if word.isdigit()] or ["0"]
        start = random.randrange(len(words))
        step = random.choice(
            [
                _search(" ".join(words[start : start + 2])),
                _compute(f"{random.choice(numbers)} * {random.choice(numbers)}"),
            ]
        )
        return Completion(
            value=cast("T", step),
            text=msgspec.json.encode(step).decode(),
            usage=Usage(1),
            model=self.name,
        )


def _seen(request: NextStepRequest) -> str:
    """Everything that came back."""
    return "\n".join(turn.result for turn in request.memory.turns)


def _mistake(habits: Strays, seen: str, random: Random) -> Mistake:
    """What goes wrong in this step."""
    habit = random.random()
    if habit < habits.broken:
        return "broken"
    if habit < habits.broken + habits.unknown:
        return "unknown"
    if _PORT.search(seen) is None:
        return ""
    if random.random() < habits.idle:
        return "again"
    return "crossed" if random.random() < habits.crossed else ""


def _step(request: NextStepRequest, mistake: Mistake, random: Random) -> NextStep:
    """The right step, or the mistake."""
    question, seen = request.question, _seen(request)
    asked = _ASKED.search(question)
    name = asked["name"] if asked else question
    port, crates = _PORT.search(seen), _CRATES.search(seen)
    right = _search(name)
    if "home port" in question and port:
        right = _search(port["town"])
    elif question.startswith("How many") and crates:
        right = _compute(f"{crates['crates']} * {crates['each']}")
    match mistake:
        case "unknown":
            return NextStep("", right.context, "", random.choice(["web_search", "calculator"]))
        case "crossed" if right.tool_name == CODE and crates:
            return _compute(f"{crates['crates']} x {crates['each']}")
        case "again":
            return _search(name)
        case _:
            return right


def _search(query: str) -> NextStep:
    # Words after a blank, as in the question: for a model they are the same tokens.
    return NextStep("", f"query: {query}", "", SEARCH)


def _compute(code: str) -> NextStep:
    return NextStep("", f"code: {code}", "", CODE)


def _said(messages: Sequence[Message]) -> list[dict[str, str]]:
    # Each part on lines of its own: so the engine puts them together, and a model is asked what it was taught.
    return [
        {"role": each.role, "content": "\n".join(part.text for part in each.parts if isinstance(part, Text))}
        for each in messages
    ]
