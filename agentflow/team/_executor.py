"""The executor: writes the arguments of a tool call, makes the call, and turns the result into an observation."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from agentflow.actors import SYSTEM_CLOCK, Backoff, Clock
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.models import Model
from agentflow.sandbox import Image, Sandbox, TextContent, ToolResult
from agentflow.team._messages import command_messages
from agentflow.team._model_calls import answer_request, measure_usage
from agentflow.team._observing import observed_text, trouble_of
from agentflow.team._pool import Role, WorkerCrashed, in_worker
from agentflow.team._schemas import command_schema, drop_unused_nulls
from agentflow.trajectory import (
    Action,
    ActionOutcome,
    Blob,
    Command,
    CommandRequest,
    Failure,
    Observation,
    Reply,
    Text,
)

PutBlob: TypeAlias = Callable[[bytes, str], Awaitable[Blob]]
"""Stores bytes of a MIME type as a blob."""

RETRIES = 3
PAUSE = Backoff(initial=0.2, factor=2.0, maximum=2.0)

_TRANSIENT = (ErrorKind.BUSY, ErrorKind.UNAVAILABLE)


class Executor(Role):
    """Role that calls tools. A failed call is an outcome; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(self, put_blob: PutBlob, model: Model, *, workers: int) -> None:
        """Create the role.

        :param put_blob: stores images that tools return.
        :param model: model that writes the arguments of calls.
        :param workers: maximum number of workers.
        """
        super().__init__("executors", workers=workers)
        self._put_blob = put_blob
        self._model = model

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool in a sandbox. A call that could do harm twice is never repeated."""
        try:
            return await self.pool.ask(
                lambda clock: call_tool(sandbox, action, self._put_blob, clock),
                again=partial(is_repeatable, sandbox, action),
            )
        except WorkerCrashed as crash:
            return ActionOutcome(Observation(), Failure(ErrorKind.FAILED, str(crash)))

    @in_worker
    async def command(self, request: CommandRequest) -> Reply[Command]:
        """Write the arguments of a tool call."""
        reply = await answer_request(
            self._model,
            request,
            Command,
            command_messages(request),
            role="executor",
            schema=command_schema(request.tool),
        )
        if reply.value is None:
            return reply
        arguments = drop_unused_nulls(reply.value.arguments, request.tool)
        return replace(reply, value=Command(reply.value.analysis, arguments))


async def call_tool(
    sandbox: Sandbox, action: Action, put_blob: PutBlob, clock: Clock = SYSTEM_CLOCK
) -> ActionOutcome:
    """Call a tool; a failed call is an outcome with its partial output. Images go to the blob store."""
    with measure_usage() as meter:
        result = await _call(sandbox, action, clock)
    failure = None if result.error is None else Failure(result.error.kind, result.error.message)
    return ActionOutcome(
        observation=await _observation(result, put_blob),
        failure=failure,
        trouble="" if failure is not None else trouble_of(result.data),
        lost=result.data.get("state_lost") is True,
        usage=meter.usage,
    )


async def is_repeatable(sandbox: Sandbox, action: Action) -> bool:
    """Tell whether the tool declares itself read-only or idempotent."""
    try:
        tools = await sandbox.tools(action.tool)
    except ToolFailure:
        return False
    return bool(tools) and all(tool.hints.read_only or tool.hints.idempotent for tool in tools)


async def _call(sandbox: Sandbox, action: Action, clock: Clock) -> ToolResult:
    """Call a tool, and retry if it could not be reached and the call is repeatable."""
    result = await sandbox.execute(action.tool, action.arguments)
    for failures in range(1, RETRIES + 1):
        if (
            result.error is None
            or result.error.kind not in _TRANSIENT
            or not await is_repeatable(sandbox, action)
        ):
            break
        await clock.sleep(PAUSE.delay(failures))
        result = await sandbox.execute(action.tool, action.arguments)
    return result


async def _observation(result: ToolResult, put_blob: PutBlob) -> Observation:
    shown: list[Text | Blob] = []
    for part in result.parts:
        if isinstance(part, TextContent):
            shown.append(Text(part.text))
        elif isinstance(part, Image):
            shown.append(await put_blob(part.data, part.mime))
    if not any(isinstance(part, Text) for part in shown):
        text = observed_text(result.data)
        if text:
            shown.insert(0, Text(text))
    return Observation(tuple(shown))
