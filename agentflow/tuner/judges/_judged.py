"""An ended episode as a judge sees it, the interface of judges, and the check of what they return."""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from agentflow._typeguards import is_mapping
from agentflow.gateway import EpisodeOutcome, RecordedCall
from agentflow.models import Message, TextPart
from agentflow.scoring import Scored
from agentflow.trace import Task, Tokens

SANDBOX: Final = "sandbox"
"""Parameter of a function that gets the sandbox of the episode."""


class Judged(Struct, frozen=True, kw_only=True):
    """An ended episode as a judge sees it. See docs/judges.md."""

    task: Task
    """Task."""
    outcome: EpisodeOutcome = EpisodeOutcome()
    """Result that the workflow returned."""
    calls: tuple[RecordedCall, ...] = ()
    """Model calls, in the order of their answers; empty while the episode is open."""
    episode: str = ""
    """Id of the episode."""
    sandbox: object = None
    """Open sandbox of the episode; `None` unless the judge asks for it."""

    @property
    def answer(self) -> str:
        """Answer that the workflow returned, or else the text of the last call."""
        if self.outcome.answer is not None:
            return self.outcome.answer
        return _text_of(self.calls[-1].answer) if self.calls else ""

    @property
    def reward(self) -> float | dict[str, float] | None:
        """Reward that the workflow returned."""
        return self.outcome.reward

    def transcript(self, agent: str | None = None) -> tuple[Message, ...]:
        """Return the messages of the last call of an agent, and of those before it that it continues.

        :param agent: name of the agent; `None`: the one that called last.

        Example::

            turns = [message.role for message in judged.transcript("wolf")]
        """
        own = [call for call in self.calls if agent is None or call.agent == agent]
        if not own:
            return ()
        known = {call.id: call for call in self.calls}
        chain: list[RecordedCall] = []
        last: RecordedCall | None = own[-1]
        while last is not None and last not in chain:
            chain.append(last)
            last = known.get(last.parent)
        messages: list[Message] = []
        for call in reversed(chain):
            messages = [*messages[: call.before], *call.messages, call.answer]
        return tuple(messages)

    def tokens(self, agent: str | None = None) -> tuple[Tokens, ...]:
        """Return the exact tokens of the calls of an agent; a call that continues another has only its new prompt tokens.

        :param agent: name of the agent; `None`: all.

        Example::

            sampled = sum(len(tokens.sampled) for tokens in judged.tokens())
        """
        chosen = (call.tokens for call in self.calls if agent is None or call.agent == agent)
        return tuple(tokens for tokens in chosen if tokens is not None)


class EpisodeJudge(Protocol):
    """Gives ended episodes their rewards. See docs/judges.md."""

    @property
    def name(self) -> str:
        """Name in messages and reports."""
        ...

    @property
    def needs_sandbox(self) -> bool:
        """It inspects the sandbox of the episode, while that is open."""
        ...

    async def prepare(self, tasks: Sequence[Task]) -> None:
        """Get ready for the tasks of a run.

        :raises ConfigurationError: one line, if it can't judge them.
        :raises RunStopped: if a model that it needs can't be used.
        """
        ...

    async def judge(self, judged: Judged) -> EpisodeOutcome:
        """Return the outcome with a reward, or with a `failure`.

        :raises ConfigurationError: one line, if no episode can be judged.
        :raises RunStopped: if a model that it needs can't be used any more.
        """
        ...


def as_outcome(result: object, answer: str | None = None) -> EpisodeOutcome:
    """Return the result of user code as an outcome: a number, rewards by agent, an answer, `Scored` or `EpisodeOutcome`.

    :param answer: answer to keep with a reward.
    :raises TypeError: one line, if it is anything else, or no finite number.

    Example::

        assert as_outcome(2.5) == EpisodeOutcome(reward=2.5)
    """
    match result:
        case EpisodeOutcome():
            return checked_outcome(result)
        case Scored():
            if result.failure is not None:
                return EpisodeOutcome(answer=answer, failure=result.failure.message or "it was not judged")
            return EpisodeOutcome(answer=answer, reward=_number(result.score))
        case bool():
            raise TypeError(f"{result} is no number; return 1.0 or 0.0")
        case int() | float():
            return EpisodeOutcome(answer=answer, reward=_number(result))
        case str():
            return EpisodeOutcome(answer=result)
        case _ if is_mapping(result) and result:
            return EpisodeOutcome(
                answer=answer, reward={name: _number(one, name) for name, one in result.items()}
            )
        case _:
            said = _short(result)
            raise TypeError(
                f"{said} is no outcome; return a number, rewards by agent, an answer, or an EpisodeOutcome"
            )


def checked_outcome(outcome: EpisodeOutcome) -> EpisodeOutcome:
    """Return an outcome whose numbers are all finite.

    :raises TypeError: one line, if one is not, as with `nan`, `inf` and `True`.

    Example::

        checked_outcome(EpisodeOutcome(reward=float("nan")))  # TypeError: reward: nan is not a finite number
    """
    if isinstance(outcome.reward, dict):
        for agent, reward in outcome.reward.items():
            _number(reward, agent)
    elif outcome.reward is not None:
        _number(outcome.reward)
    for named in (outcome.turn_rewards, outcome.metrics):
        for name, value in named.items():
            _number(value, name)
    return outcome


def _number(value: object, name: str = "") -> float:
    where = f"reward of {_short(name)}" if name else "reward"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{where}: {_short(value)} is no number; return any finite number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise TypeError(f"{where}: {_short(value)} is not a finite number")
    return number


def merged(reported: EpisodeOutcome, judged: EpisodeOutcome) -> EpisodeOutcome:
    """Return a judged outcome with what the workflow reported besides its reward."""
    return structs.replace(
        judged,
        answer=reported.answer if judged.answer is None else judged.answer,
        success=reported.success if judged.success is None else judged.success,
        turn_rewards={**reported.turn_rewards, **judged.turn_rewards},
        metrics={**reported.metrics, **judged.metrics},
    )


def takes_sandbox(function: Callable[..., object]) -> bool:
    """Return true if a function has a parameter named `sandbox`. See docs/judges.md."""
    try:
        return SANDBOX in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


async def call_any(
    function: Callable[..., object],
    *arguments: object,
    limiter: anyio.CapacityLimiter | None = None,
    **named: object,
) -> object:
    """Call a function of a user: a coroutine function in this event loop, any other in a thread. See docs/judges.md.

    :param limiter: limits the number of threads; `None`: the default of anyio, 40.
    """
    called = getattr(function, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        result = function(*arguments, **named)
    else:
        call = partial(function, *arguments, **named)
        result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
    return await result if inspect.isawaitable(result) else result


def transcript_text(messages: Sequence[Message], longest: int = 40_000) -> str:
    """Return a conversation as text; the middle of a long one is left out. See docs/judges.md."""
    lines = [f"{message.role}: {_text_of(message)}" for message in messages]
    text = "\n\n".join(lines)
    if len(text) <= longest:
        return text
    left_out = len(text) - longest
    return f"{text[: longest // 2]}\n[{left_out} characters left out]\n{text[-longest // 2 :]}"


def _text_of(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _short(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= 80 else f"{text[:80]}…"
