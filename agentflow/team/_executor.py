"""The executor: calls the tool, and makes an observation of what comes back."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from agentflow.actors import Backoff
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Image, Sandbox, Text, ToolResult
from agentflow.team._observing import observed_text, trouble_of
from agentflow.team._pool import Pool, Worker
from agentflow.trajectory import Action, Blob, Failure, Observation, Outcome
from agentflow.trajectory import Text as TextPart

__all__ = ["Deed", "Executor", "Executors", "PutBlob"]

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


class Executor(Worker[Deed, Outcome]):
    """Calls one tool at a time. Pictures go to the blob store."""

    def __init__(self, put_blob: PutBlob) -> None:
        super().__init__()
        self._put_blob = put_blob

    async def work(self, about: Deed) -> Outcome:
        """Do it. A failed call is an outcome, with what there was of it."""
        result = await self._call(about)
        failure = None if result.error is None else Failure(result.error.kind, result.error.message)
        return Outcome(
            observation=await self._observation(result),
            failure=failure,
            trouble="" if failure is not None else trouble_of(result.data),
            lost=result.data.get("state_lost") is True,
        )

    async def _call(self, deed: Deed) -> ToolResult:
        """Call the tool: once, or a few times if it could not be reached and calling it again does no harm."""
        sandbox, action = deed.sandbox, deed.action
        result = await sandbox.execute(action.tool, action.arguments)
        for failures in range(1, RETRIES + 1):
            if result.error is None or result.error.kind not in _PASSING or not await may_repeat(deed):
                break
            await self._clock.sleep(PAUSE.delay(failures))
            result = await sandbox.execute(action.tool, action.arguments)
        return result

    async def _observation(self, result: ToolResult) -> Observation:
        shown: list[TextPart | Blob] = []
        for part in result.parts:
            if isinstance(part, Text):
                shown.append(TextPart(part.text))
            elif isinstance(part, Image):
                shown.append(await self._put_blob(part.data, part.mime))
        if not any(isinstance(part, TextPart) for part in shown):
            text = observed_text(result.data)
            if text:
                shown.insert(0, TextPart(text))
        return Observation(tuple(shown))


class Executors(Pool[Deed, Outcome]):
    """All executors."""

    async def act(self, sandbox: Sandbox, action: Action) -> Outcome:
        """Call the tool in that sandbox. A failed call is an outcome.

        :raises RunStopped: if the run can't go on.
        """
        deed = Deed(sandbox, action)
        return await self.ask(deed, again=partial(may_repeat, deed))

    def fallen(self, why: str) -> Outcome:
        """No outcome to speak of."""
        return Outcome(Observation(), Failure(ErrorKind.FAILED, why))


async def may_repeat(deed: Deed) -> bool:
    """Whether the tool says that calling it again does no harm."""
    try:
        tools = await deed.sandbox.tools(deed.action.tool)
    except ToolFailure:
        return False
    return bool(tools) and all(tool.hints.read_only or tool.hints.idempotent for tool in tools)
