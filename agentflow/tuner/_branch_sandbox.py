"""Sandboxes of episodes that branch: the state before a decision is kept, and an episode that repeats the calls up to it
continues in a copy.

On the way to its decision a branch gets the results that its origin got, if its calls are equal; nothing runs twice.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from agentflow.errors import AgentFlowError, ToolFailure
from agentflow.gateway import BegunEpisode, GatewayClient
from agentflow.telemetry import get_logger

if TYPE_CHECKING:
    from agentflow.sandbox import Sandbox

logger = get_logger(__name__)

OpenSandbox: TypeAlias = Callable[[], AbstractAsyncContextManager["Sandbox"]]
"""Opens an unused sandbox."""
_REPEATED: Final = frozenset({
    "create_session", "destroy_session", "execute", "execute_batch", "list_sessions", "read", "refresh_sessions", "tools",
    "warmup",
})  # fmt: skip
"""Methods of a sandbox whose results are repeated."""
_NO_RESULT: Final = object()


class BranchStrayed(AgentFlowError):
    """A branch does not repeat the calls of its origin; the message is one line. It is played independently."""


@dataclass
class _SandboxCall:
    """A call of a method of a sandbox."""

    method: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]
    result: object = _NO_RESULT

    def equals(self, other: "_SandboxCall") -> bool:
        """Return whether it is the same call."""
        return (self.method, self.arguments, self.options) == (other.method, other.arguments, other.options)


@dataclass
class _KeptState:
    """State before a decision."""

    sandbox: "Sandbox | None"
    """Sandbox in this state; `None`: it can't be copied."""
    calls: Sequence[_SandboxCall]
    """Calls that lead to it."""
    reason: str
    """Reason that there is no copy."""
    claims: int
    """Number of branches that will continue from it."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    async def close(self) -> None:
        """Close its sandbox, even if it has already ended."""
        if self.sandbox is not None:
            with suppress(ToolFailure):
                await self.sandbox.close()


class SandboxStates:
    """States of sandboxes before decisions, for the branches that continue from them."""

    def __init__(self, gateway: GatewayClient, most: int) -> None:
        """:param most: maximum number of states; the oldest is closed."""
        self._gateway = gateway
        self._most = most
        self._kept: OrderedDict[tuple[str, int, int], _KeptState] = OrderedDict()
        """By episode, attempt and number of calls."""

    @asynccontextmanager
    async def open(self, begun: BegunEpisode, fresh: OpenSandbox) -> "AsyncGenerator[BranchSandbox]":
        """Open the sandbox of an episode of a tree: a fresh one, or a copy of its origin's.

        :raises BranchStrayed: if the state of its origin can be neither copied nor made again.
        """
        assert begun.branch, "only episodes of trees have states"
        branch = begun.branch
        state = self._kept.get((branch.origin, branch.attempt, branch.calls))
        if branch.origin and state is None:
            raise BranchStrayed("branch: the state of its origin's sandbox is not kept any more")
        copy = None if state is None else await self._take(state)
        if copy is not None:
            try:
                yield BranchSandbox(copy, self._gateway, self, begun, () if state is None else state.calls)
            finally:
                with anyio.CancelScope(shield=True), suppress(ToolFailure):
                    await copy.close()
            return
        async with fresh() as sandbox:
            calls = () if state is None else state.calls
            if state is not None:
                await _repeat(sandbox, state)
            yield BranchSandbox(sandbox, self._gateway, self, begun, calls)

    async def keep(
        self,
        begun: BegunEpisode,
        decision: int,
        sandbox: "Sandbox",
        calls: Sequence[_SandboxCall],
    ) -> None:
        """Keep a copy of the state before a decision. If it can't be copied, its calls are made again."""
        assert begun.branch, "only episodes of trees have states"
        copy, reason = None, ""
        try:
            copy = await sandbox.fork()
        except ToolFailure as failure:
            reason = failure.message
            logger.info("state not copied", episode=begun.episode, decision=decision, reason=reason)
        claims = [number for number, _ in begun.branch.splits].count(decision)
        self._kept[begun.episode, begun.attempt, decision] = _KeptState(copy, calls, reason, claims)
        while len(self._kept) > self._most:
            await self._kept.popitem(last=False)[1].close()

    async def drop(self, begun: BegunEpisode) -> None:
        """Close the states of an attempt that was aborted."""
        for key in [key for key in self._kept if key[:2] == (begun.episode, begun.attempt)]:
            await self._kept.pop(key).close()

    async def close(self) -> None:
        """Close all states."""
        with anyio.CancelScope(shield=True):
            while self._kept:
                await self._kept.popitem()[1].close()

    async def _take(self, state: _KeptState) -> "Sandbox | None":
        """Return a sandbox in a state: a copy or, for the last branch, its own; `None`: there is none."""
        async with state.lock:
            state.claims -= 1
            if state.claims > 0 and state.sandbox is not None:
                try:
                    return await state.sandbox.fork()
                except ToolFailure as failure:
                    state.reason = failure.message
                    return None
            taken, state.sandbox = state.sandbox, None
            if state.claims <= 0:
                for key in [key for key, kept in self._kept.items() if kept is state]:
                    del self._kept[key]
            return taken


class BranchSandbox:
    """Sandbox of an episode of a tree, with the methods of `Sandbox`."""

    def __init__(
        self,
        sandbox: "Sandbox",
        gateway: GatewayClient,
        states: SandboxStates,
        begun: BegunEpisode,
        repeated: Iterable[_SandboxCall],
    ) -> None:
        """:param repeated: calls of its origin that led to the state of the sandbox."""
        assert begun.branch, "only episodes of trees have states"
        self._sandbox = sandbox
        self._gateway = gateway
        self._states = states
        self._begun = begun
        self._left = deque(repeated)
        self._calls: list[_SandboxCall] = []
        first = begun.branch.calls if begun.branch.origin else 0
        self._decisions = sorted({calls for calls, _ in begun.branch.splits if calls > first})
        self._strayed = ""
        self._lock = anyio.Lock()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the sandbox has it
        if name in _REPEATED:
            return partial(self._call, name)
        if name in ("fork", "close"):
            # A state that lives on elsewhere can't be kept.
            self._strayed = f"branch: the agent calls {name} of its sandbox"
        return getattr(self._sandbox, name)

    async def end(self) -> None:
        """Keep the states before decisions that no call followed.

        :raises BranchStrayed: if it did not repeat the calls of its origin.
        """
        if self._left:
            raise BranchStrayed(
                self._strayed or "branch: the agent made fewer calls of tools than its origin"
            )
        await self._keep()
        self._decisions.clear()

    async def _call(self, method: str, *arguments: object, **options: object) -> object:
        call = _call_of(method, arguments, options)
        # Calls that run concurrently have the order in which they began.
        async with self._lock:
            if self._left:
                if self._strayed or not self._left[0].equals(call):
                    self._strayed = (
                        self._strayed or f"branch: another call of {method} than that of its origin"
                    )
                    raise BranchStrayed(self._strayed)
                call = self._left.popleft()
                self._calls.append(call)
                return call.result
            await self._keep()
            if self._decisions:
                self._calls.append(call)
        call.result = await getattr(self._sandbox, method)(*arguments, **options)
        return call.result

    async def _keep(self) -> None:
        """Keep the state before each decision that was made since the last call."""
        if not self._decisions:
            return
        made = len(await self._gateway.calls(self._begun.episode, self._begun.attempt))
        while self._decisions and self._decisions[0] < made:
            decision = self._decisions.pop(0)
            if not self._strayed and all(call.result is not _NO_RESULT for call in self._calls):
                await self._states.keep(self._begun, decision, self._sandbox, tuple(self._calls))


def _call_of(method: str, arguments: tuple[object, ...], options: Mapping[str, object]) -> _SandboxCall:
    """Return a call with copies of its arguments, which the agent may change; its listener is no part of it."""
    kept = {name: value for name, value in options.items() if name != "on_progress"}
    return _SandboxCall(method, deepcopy(arguments), deepcopy(kept))


async def _repeat(sandbox: "Sandbox", state: _KeptState) -> None:
    """Make the calls that lead to a state again, in a fresh sandbox.

    :raises BranchStrayed: if one returns something else, or may do harm that a fresh sandbox does not undo.
    """
    for call in state.calls:
        for tool in await sandbox.tools(_tools_of(call)):
            if tool.hints.open_world and not (tool.hints.read_only or tool.hints.idempotent):
                raise BranchStrayed(f"branch: {tool.name} can't be repeated safely ({state.reason})")
        if await getattr(sandbox, call.method)(*call.arguments, **call.options) != call.result:
            raise BranchStrayed(f"branch: {call.method} returned something else ({state.reason})")


def _tools_of(call: _SandboxCall) -> list[str]:
    """Return the names of the tools that a call uses."""
    named: dict[str, Any] = dict(zip(("tool", "arguments"), call.arguments, strict=False), **call.options)
    if call.method == "execute":
        return [named["tool"]]
    if call.method != "execute_batch":
        return []
    entries: Any = call.options.get("calls") or call.arguments[0]
    return [
        entry[0] if isinstance(entry, tuple) else entry.get("tool") or entry["action"] for entry in entries
    ]
