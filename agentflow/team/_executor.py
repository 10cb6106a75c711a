"""The executor: writes the call of a tool, makes it, and makes an observation of what comes back."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import SYSTEM_CLOCK, Backoff, Clock
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.models import Call, Model
from agentflow.sandbox import Image, Sandbox, Text, ToolResult
from agentflow.team._asking import ask_model, broken
from agentflow.team._cards import without_idle_nulls
from agentflow.team._metering import metered
from agentflow.team._observing import observed_text, trouble_of
from agentflow.team._pool import Pool, Worker
from agentflow.team._schemas import command_schema
from agentflow.team._task_messages import command_messages
from agentflow.trajectory import (
    Action,
    Blob,
    Command,
    CommandRequest,
    Failure,
    Observation,
    Outcome,
    Reply,
)
from agentflow.trajectory import Text as TextPart

__all__ = ["Deed", "Executor", "Executors", "PutBlob", "carry_out"]

PutBlob: TypeAlias = Callable[[bytes, str], Awaitable[Blob]]
"""Keeps bytes of a type as a blob."""

RETRIES = 3
PAUSE = Backoff(initial=0.2, factor=2.0, maximum=2.0)

_PASSING = (ErrorKind.BUSY, ErrorKind.UNAVAILABLE)


class Deed(Struct, frozen=True):
    """An action, and where it is to be done."""

    sandbox: Sandbox
    """Where."""
    action: Action
    """What."""


Wish: TypeAlias = Deed | CommandRequest
Given: TypeAlias = Outcome | Reply[Command]


class Executor(Worker[Wish, Given]):
    """Calls one tool at a time, or asks a model for the arguments of a call."""

    def __init__(self, put_blob: PutBlob, model: Model) -> None:
        super().__init__()
        self._put_blob = put_blob
        self._model = model

    async def work(self, about: Wish) -> Given:
        """Do it, or write it."""
        if isinstance(about, Deed):
            return await carry_out(about, self._put_blob, self._clock)
        call = Call(
            role="executor",
            messages=command_messages(about),
            reply=Command,
            schema=command_schema(about.tool),
            request=about,
        )
        reply = await ask_model(self._model, call)
        if reply.value is None:
            return reply
        arguments = without_idle_nulls(reply.value.arguments, about.tool)
        command = Command(reply.value.analysis, arguments)
        return replace(reply, value=command)


class Executors(Pool[Wish, Given]):
    """All executors."""

    async def act(self, sandbox: Sandbox, action: Action) -> Outcome:
        """Call the tool in that sandbox. A failed call is an outcome.

        :raises RunStopped: if the run can't go on.
        """
        deed = Deed(sandbox, action)
        done = await self.ask(deed, again=partial(may_repeat, deed))
        if isinstance(done, Reply):
            why = done.failure.message if done.failure else ""
            return Outcome(Observation(), Failure(ErrorKind.FAILED, why))
        return done

    async def command(self, request: CommandRequest) -> Reply[Command]:
        """The arguments of a call. A failed call of the model is a reply.

        :raises RunStopped: if the run can't go on.
        """
        return cast("Reply[Command]", await self.ask(request))

    def fallen(self, why: str) -> Given:
        """Nothing to speak of."""
        failed: Reply[Command] = Reply(failure=broken(why))
        return failed


async def carry_out(deed: Deed, put_blob: PutBlob, clock: Clock = SYSTEM_CLOCK) -> Outcome:
    """Call the tool. A failed call is an outcome, with what there was of it; pictures go to the blob store."""
    with metered() as meter:
        result = await _call(deed, clock)
    failure = None if result.error is None else Failure(result.error.kind, result.error.message)
    return Outcome(
        observation=await _observation(result, put_blob),
        failure=failure,
        trouble="" if failure is not None else trouble_of(result.data),
        lost=result.data.get("state_lost") is True,
        usage=meter.usage,
    )


async def _call(deed: Deed, clock: Clock) -> ToolResult:
    """Call the tool: once, or a few times if it could not be reached and calling it again does no harm."""
    sandbox, action = deed.sandbox, deed.action
    result = await sandbox.execute(action.tool, action.arguments)
    for failures in range(1, RETRIES + 1):
        if result.error is None or result.error.kind not in _PASSING or not await may_repeat(deed):
            break
        await clock.sleep(PAUSE.delay(failures))
        result = await sandbox.execute(action.tool, action.arguments)
    return result


async def _observation(result: ToolResult, put_blob: PutBlob) -> Observation:
    shown: list[TextPart | Blob] = []
    for part in result.parts:
        if isinstance(part, Text):
            shown.append(TextPart(part.text))
        elif isinstance(part, Image):
            shown.append(await put_blob(part.data, part.mime))
    if not any(isinstance(part, TextPart) for part in shown):
        text = observed_text(result.data)
        if text:
            shown.insert(0, TextPart(text))
    return Observation(tuple(shown))


async def may_repeat(deed: Deed) -> bool:
    """Whether the tool says that calling it again does no harm."""
    try:
        tools = await deed.sandbox.tools(deed.action.tool)
    except ToolFailure:
        return False
    return bool(tools) and all(tool.hints.read_only or tool.hints.idempotent for tool in tools)
