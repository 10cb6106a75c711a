"""Difficulty of questions and tasks, measured: a single agent tries each of them several times."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from agentflow.actors import together
from agentflow.engine import EpisodeEngine, fixed_names
from agentflow.errors import ModelFailureKind, ToolFailure
from agentflow.journal import Page
from agentflow.runs import image_file
from agentflow.sandbox import Sandbox
from agentflow.scoring import confidence_interval
from agentflow.tasks import TaskVerifiers, VerifiableTask, rollout_task
from agentflow.text import contains_phrase
from agentflow.trace import ChatBuilder, ChatMessage, Episode, Task, Usage
from agentflow.values import DateValue, ListValue, Value, answer_agrees, show_value


class Triage(StrEnum):
    """Reason that a question which passed every check is not in the file of pairs. The set is closed."""

    NEVER_SOLVED = "never_solved"
    """No attempt was right: it may be broken."""
    ALWAYS_SOLVED = "always_solved"
    """All attempts were right."""
    OUTSIDE = "outside"
    """The share of right attempts is outside the window."""


class Attempt(Struct, frozen=True, kw_only=True):
    """An attempt at a question."""

    number: int
    """Number, from 0."""
    correct: bool
    """The answer is right."""
    answer: str
    """Answer; empty if there is none."""
    turns: int
    """Number of tool calls: the cost of solving it."""
    hit: int = 0
    """Number of the call by which results have shown the answer, or all items of a list, from 1; 0: none does."""
    messages: tuple[ChatMessage, ...] = ()
    """The conversation of a right attempt, as chat messages."""


class Difficulty(Struct, frozen=True, kw_only=True):
    """Measured difficulty of a question."""

    attempts: int
    """Number of attempts."""
    correct: int
    """Number of right ones."""
    rate: float
    """Share of right ones."""
    interval: tuple[float, float]
    """Wilson interval of the share, at 95 %."""
    turns: float
    """Average number of tool calls of the right attempts, the cost of solving it; 0 without any."""
    hit: float = 0.0
    """Average number of the call by which results have shown the answer, in right attempts; 0: none does."""

    @classmethod
    def of(cls, attempts: Sequence[Attempt]) -> "Difficulty":
        """Return the difficulty that attempts show."""
        right = [attempt for attempt in attempts if attempt.correct]
        hits = [attempt.hit for attempt in right if attempt.hit]
        interval = confidence_interval([float(attempt.correct) for attempt in attempts])
        return cls(
            attempts=len(attempts),
            correct=len(right),
            rate=round(len(right) / len(attempts), 4),
            interval=(round(interval.low, 4), round(interval.high, 4)),
            turns=round(sum(attempt.turns for attempt in right) / len(right), 2) if right else 0.0,
            hit=round(sum(hits) / len(hits), 2) if hits else 0.0,
        )

    def triage(self, window: tuple[float, float]) -> Triage | None:
        """Return the reason that a question with this difficulty is not kept; `None` if it is."""
        if self.correct == 0:
            return Triage.NEVER_SOLVED
        if window[0] <= self.rate <= window[1]:
            return None
        return Triage.ALWAYS_SOLVED if self.correct == self.attempts else Triage.OUTSIDE


_OUTAGES = frozenset(map(str, ModelFailureKind))


class AttemptPort(Protocol):
    """Agent that tries questions; what is on the page is not repeated."""

    async def attempt(self, question: str, page: Page) -> Episode:
        """Try a question."""
        ...


class TaskAttemptPort(Protocol):
    """Agent that tries tasks; what is on the page is not repeated."""

    async def attempt_task(self, task: VerifiableTask, page: Page) -> Episode:
        """Try a task from its initial state; the episode has the verdict of its verifier."""
        ...


async def attempt_question(
    agent: AttemptPort, question: str, answer: Value, page: Page, count: int
) -> tuple[tuple[Attempt, ...], Usage]:
    """Have an agent try a question several times; return the attempts and their usage."""

    def is_right(episode: Episode) -> bool:
        return answer_agrees(answer, episode.answer, question=question)

    parts = answer.items if isinstance(answer, ListValue) else (answer,)
    return await _attempt_all(partial(agent.attempt, question), is_right, page, count, parts)


async def attempt_task(
    agent: TaskAttemptPort, task: VerifiableTask, page: Page, count: int
) -> tuple[tuple[Attempt, ...], Usage]:
    """Have an agent try a task several times; return the attempts and their usage."""

    def is_right(episode: Episode) -> bool:
        return episode.verdict is not None and episode.verdict.passed

    return await _attempt_all(partial(agent.attempt_task, task), is_right, page, count)


async def _attempt_all(
    attempt: Callable[[Page], Awaitable[Episode]],
    is_right: Callable[[Episode], bool],
    page: Page,
    count: int,
    parts: Sequence[Value] = (),
) -> tuple[tuple[Attempt, ...], Usage]:
    """Make attempts. One that an outage of the model, the tools or the verifier ended says nothing and is left out."""

    async def one(number: int) -> tuple[Attempt | None, Usage]:
        try:
            episode = await attempt(page.section(str(number)))
        except ToolFailure:
            return None, Usage()
        usage = sum((exchange.usage for exchange in episode.exchanges), Usage())
        if _says_nothing(episode):
            return None, usage
        correct = is_right(episode)
        made = Attempt(
            number=number,
            correct=correct,
            answer=episode.answer,
            turns=len(episode.turns),
            hit=_hit(episode, parts),
            messages=chat_of(episode) if correct else (),
        )
        return made, usage

    made = await together(partial(one, number) for number in range(count))
    attempts = tuple(attempt for attempt, _ in made if attempt is not None)
    return attempts, sum((usage for _, usage in made), Usage())


def _hit(episode: Episode, parts: Sequence[Value]) -> int:
    """Return the number of the call by which results have shown all parts of an answer; 0: none does."""
    left = list(parts)
    for turn in episode.turns if parts else ():
        left = [part for part in left if not _shows(turn.result, part)]
        if not left:
            return turn.number
    return 0


def _shows(text: str, value: Value) -> bool:
    if isinstance(value, DateValue) and f"{value.year:04}-{value.month:02}-{value.day:02}" in text:
        return True
    return contains_phrase(text, show_value(value))


def _says_nothing(episode: Episode) -> bool:
    """Tell whether an outage ended an episode, or its verifier could not work."""
    if episode.solution is None and episode.failure is not None and episode.failure.kind in _OUTAGES:
        return True
    return episode.verdict is not None and bool(episode.verdict.error)


def chat_of(episode: Episode) -> tuple[ChatMessage, ...]:
    """Return an episode as chat messages; failed calls have `"trainable": False`.

    A result with images is a list of parts, the images by the paths of their files.
    """
    chat = ChatBuilder(episode.task.question)
    for turn in episode.turns:
        if turn.action is not None:
            fixed = fixed_names(turn.action.arguments, episode.task.kwargs)
            chat.call(
                turn.action.tool,
                {name: value for name, value in turn.action.arguments.items() if name not in fixed},
                turn.step.justification,
                turn.result,
                images=[image_file(blob) for blob in turn.images],
                failed=turn.failed,
            )
    chat.answer(episode.answer)
    return tuple(chat.messages)


@dataclass(frozen=True, kw_only=True)
class AttemptMaker:
    """Has an agent try questions and tasks, each attempt in a sandbox of its own."""

    engine: EpisodeEngine
    fresh: "FreshSandbox"
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    verifiers: TaskVerifiers = field(default_factory=lambda: TaskVerifiers({}))

    async def attempt(self, question: str, page: Page) -> Episode:
        """See `AttemptPort`."""
        task = Task(index=0, id="attempt", question=question, kwargs=dict(self.kwargs))
        return await self._work(task, page)

    async def attempt_task(self, task: VerifiableTask, page: Page) -> Episode:
        """See `TaskAttemptPort`."""
        return await self._work(rollout_task(task), page)

    async def _work(self, task: Task, page: Page) -> Episode:
        async with self.fresh() as sandbox:
            return await self.verifiers.run(task, sandbox, page, self.engine.solve)


class FreshSandbox(Protocol):
    """Makes an unused sandbox for the time of a block."""

    def __call__(self) -> AbstractAsyncContextManager[Sandbox]: ...
