"""Scripted planners without a language model: a correct one, one with bad habits, and one that guesses."""

import re
from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple, TypeVar, cast

import msgspec

from agentflow.errors import ModelFailure, ModelFailureKind
from agentflow.models import Call, Completion, Message, TextPart
from agentflow.trace import NextStep, NextStepRequest, Usage
from examples.first_training.plan import Strays

__all__ = ["CODE", "SEARCH", "Guesser", "Teacher", "TeacherStep"]

T = TypeVar("T")

SEARCH, CODE = "rag_search", "code_run"
"""Available tools."""

_NAME = r"[A-Z]\w+ [A-Z]\w+"
_ASKED = re.compile(rf"(?:the mayor of|home port of the|does the) (?P<name>{_NAME})")
_PORT = re.compile(rf"The home port of the {_NAME} is (?P<town>{_NAME})\.")
_CRATES = re.compile(r"crates: (?P<crates>\d+) \* (?P<each>\d+) ")

Mistake = Literal["", "broken", "unknown", "again", "crossed"]
"""Mistakes of the teacher: truncated JSON, an unknown tool, a repeated first search, a product that is not a program. None
is a wrong name: names that a model learns to copy are always right.
"""


class TeacherStep(NamedTuple):
    """A step of a teacher."""

    episode: str
    """The question; consecutive steps with the same question form an episode."""
    messages: list[dict[str, str]]
    """The prompt, as messages of a chat template."""
    answer: str
    """The teacher's output."""


class Teacher:
    """A scripted planner; without habits it is always right."""

    name = "teacher"
    """Name of the planner."""
    vision = False
    """It accepts no images."""

    def __init__(self, habits: Strays | None = None, seed: int = 0) -> None:
        """Make a teacher; the same seed gives the same mistakes."""
        self._habits = habits
        self._seed = seed
        self.shown: list[TeacherStep] = []
        """Every step it took."""

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Return the next step.

        :raises ModelFailure: if it writes invalid JSON.
        """
        request = cast("NextStepRequest", call.request)
        turn = len(request.memory.turns)
        random = Random(f"{self._seed} {request.question} {turn}")
        mistake = _mistake(self._habits, _seen(request), random) if self._habits else ""
        step = _step(request, mistake, random)
        text = msgspec.json.encode(step).decode()
        if mistake == "broken":
            text = text[:-1]
        self.shown.append(TeacherStep(request.question, _said(call.messages), text))
        if mistake == "broken":
            raise ModelFailure(ModelFailureKind.GARBAGE, "the answer is no nextstep")
        return Completion(value=cast("T", step), text=text, usage=Usage(1), model=self.name)


class Guesser:
    """A planner that knows only the format: any tool, and any words or numbers it has read."""

    name = "guesser"
    """Name of the planner."""
    vision = False
    """It accepts no images."""

    def __init__(self, seed: int = 0) -> None:
        """Make a guessing planner; the same seed gives the same guesses."""
        self._seed = seed

    async def complete(self, call: Call[T]) -> Completion[T]:
        """Return a random step."""
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
    """Return all observations."""
    return "\n".join(turn.result for turn in request.memory.turns)


def _mistake(habits: Strays, seen: str, random: Random) -> Mistake:
    """Return the mistake of this step."""
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
    """Return the right step, or the mistake."""
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
    # Each part on its own lines, as the engine renders it, so that prompts equal the training examples.
    return [
        {
            "role": each.role,
            "content": "\n".join(part.text for part in each.parts if isinstance(part, TextPart)),
        }
        for each in messages
    ]
