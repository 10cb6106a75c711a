"""Sandboxes of episodes that branch: copies of the state before a decision are kept, and branches continue in copies of them.

On the way to its decision a branch gets the results that its origin got, as long as its calls are equal; nothing runs twice.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from agentflow.errors import AgentFlowError, ToolFailure
from agentflow.gateway import BegunEpisode, GatewayClient

if TYPE_CHECKING:
    from agentflow.sandbox import Sandbox, ToolResult

OpenSandbox: TypeAlias = Callable[[], AbstractAsyncContextManager["Sandbox"]]
"""Opens an unused sandbox."""
_READS: Final = frozenset(
    {"left_behind", "list_sessions", "read", "refresh_sessions", "start", "tools", "warmup"}
)
"""Members of a sandbox that leave its state as it is."""


class BranchDiverged(AgentFlowError):
    """A branch does not repeat the calls of its origin; the message is one line. It is played independently."""


@dataclass
class _PastCall:
    """A call of a tool, with copies of its arguments, which the agent may change."""

    tool: str
    arguments: Mapping[str, object] | None
    options: Mapping[str, object]
    result: "ToolResult | None" = None

    def equals(self, other: "_PastCall") -> bool:
        """Return whether it is the same call."""
        return (self.tool, self.arguments, self.options) == (other.tool, other.arguments, other.options)


@dataclass
class _KeptState:
    """State before a decision."""

    sandbox: "Sandbox | None"
    """Copy of the sandbox; `None`: it can't be copied."""
    reason: str
    """Reason that there is no copy."""
    calls: Sequence[_PastCall]
    """Calls that lead to the state."""
    claims: int
    """Number of branches that will continue from it."""

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
        """Open the sandbox of an episode of a tree: a fresh one, or one in the state of its origin.

        :raises BranchDiverged: if the state of its origin can be neither copied nor made again.
        """
        assert begun.branch, "only episodes of trees have states"
        if not begun.branch.origin:
            async with fresh() as sandbox:
                yield BranchSandbox(sandbox, self, begun)
            return
        key = (begun.branch.origin, begun.branch.attempt, begun.branch.calls)
        if (state := self._kept.get(key)) is None:
            raise BranchDiverged("branch: the state of its origin's sandbox is not kept any more")
        copy = None
        if state.sandbox is not None:
            try:
                copy = await state.sandbox.fork()
            except ToolFailure as failure:
                state.reason = failure.message
        state.claims -= 1
        if not state.claims:
            self._kept.pop(key, None)
            await state.close()
        async with fresh() if copy is None else copy as sandbox:
            if copy is None:
                await _repeat(sandbox, state)
            yield BranchSandbox(sandbox, self, begun, state.calls)

    async def decisions(self, begun: BegunEpisode) -> int:
        """Return the number of decisions that an episode has made."""
        return len(await self._gateway.calls(begun.episode, begun.attempt))

    async def keep(
        self, begun: BegunEpisode, decision: int, sandbox: "Sandbox", calls: Sequence[_PastCall]
    ) -> None:
        """Keep a copy of the state before a decision. If it can't be copied, its calls are made again."""
        assert begun.branch, "only episodes of trees have states"
        claims = [number for number, _ in begun.branch.splits].count(decision)
        state = _KeptState(None, "", calls, claims)
        try:
            state.sandbox = await sandbox.fork()
        except ToolFailure as failure:
            state.reason = failure.message
        self._kept[begun.episode, begun.attempt, decision] = state
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


class BranchSandbox:
    """Sandbox of an episode of a tree, with the methods of `Sandbox`."""

    def __init__(
        self, sandbox: "Sandbox", states: SandboxStates, begun: BegunEpisode, past: Sequence[_PastCall] = ()
    ) -> None:
        """:param past: calls of its origin that led to the state of the sandbox."""
        assert begun.branch, "only episodes of trees have states"
        self._sandbox = sandbox
        self._states = states
        self._begun = begun
        self._past = deque(past)
        self._calls: list[_PastCall] = []
        self._decisions = sorted({calls for calls, _ in begun.branch.splits})
        self._diverged = ""
        self._lock = anyio.Lock()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the sandbox has it
        if name not in _READS:
            self._diverged = f"branch: the agent uses {name} of its sandbox, which can't be repeated"
        return getattr(self._sandbox, name)

    async def execute(
        self,
        tool: str,
        arguments: Mapping[str, object] | None = None,
        **options: Any,  # noqa: ANN401 - as the sandbox
    ) -> "ToolResult":
        """Call a tool, or return the result of its origin's call. See docs/sandbox.md.

        :raises BranchDiverged: if its origin made another call.
        """
        kept = {name: value for name, value in options.items() if name != "on_progress"}
        call = _PastCall(tool, deepcopy(arguments), deepcopy(kept))
        # Calls that run concurrently have the order in which they began.
        async with self._lock:
            if self._past:
                if not self._past[0].equals(call):
                    self._diverged = f"branch: another call of {tool} than that of its origin"
                if self._diverged or (result := self._past[0].result) is None:
                    raise BranchDiverged(self._diverged)
                self._calls.append(self._past.popleft())
                return result
            await self._keep()
            if self._decisions:
                self._calls.append(call)
        call.result = await self._sandbox.execute(tool, arguments, **options)
        return call.result

    async def execute_batch(self, *calls: Any, **options: Any) -> "list[ToolResult]":  # noqa: ANN401 - as the sandbox
        """Make several calls. See docs/sandbox.md."""
        batch: Any = type(self._sandbox).execute_batch
        return await batch(self, *calls, **options)

    async def end(self) -> None:
        """Keep the states before decisions that no call followed; after it the episode makes no decision.

        :raises BranchDiverged: if it did not repeat the calls of its origin.
        """
        if self._past:
            raise BranchDiverged(
                self._diverged or "branch: the agent made fewer calls of tools than its origin"
            )
        await self._keep()
        self._decisions.clear()

    async def _keep(self) -> None:
        """Keep the state before each decision that was made since the last call."""
        if not self._decisions:
            return
        made = await self._states.decisions(self._begun)
        while self._decisions and self._decisions[0] < made:
            decision = self._decisions.pop(0)
            # A call that was cancelled has left an unknown state.
            if not self._diverged and all(call.result for call in self._calls):
                await self._states.keep(self._begun, decision, self._sandbox, tuple(self._calls))


async def _repeat(sandbox: "Sandbox", state: _KeptState) -> None:
    """Make the calls that lead to a state again, in a fresh sandbox.

    :raises BranchDiverged: if one returns something else, or may do harm that a fresh sandbox does not undo.
    """
    for call in state.calls:
        hints = (await sandbox.tools(call.tool))[0].hints
        if hints.open_world and not (hints.read_only or hints.idempotent):
            raise BranchDiverged(f"branch: {call.tool} can't be repeated safely ({state.reason})")
        if await sandbox.execute(call.tool, call.arguments, **dict[str, Any](call.options)) != call.result:
            raise BranchDiverged(
                f"branch: {call.tool} returned something else when repeated ({state.reason})"
            )
