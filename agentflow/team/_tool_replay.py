"""Actions of an episode in its sandbox, replayed in a fresh one when the old one is lost."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import anyio

from agentflow.errors import ErrorKind
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, Tool
from agentflow.trajectory import Action, ActionOutcome

Act = Callable[[Sandbox, Action], Awaitable[ActionOutcome]]
"""Calls a tool; a failed call is an outcome."""


class _TurnAction(NamedTuple):
    turn: int
    action: Action
    outcome: ActionOutcome


class ToolReplay:
    """Runs the actions of one episode.

    Actions recorded on the page may have changed a sandbox that no longer exists. The first action that needs its
    state replays them. If a replayed action returns something else, the recorded outcome counts and the turn is
    reported as diverged.
    """

    def __init__(self, sandbox: Sandbox, tools: Mapping[str, Tool], act: Act, page: Page) -> None:
        self._sandbox = sandbox
        self._tools = tools
        self._act = act
        self._page = page
        self._history: list[_TurnAction] = []
        self._replayed = 0
        self._lock = anyio.Lock()

    @property
    def diverged(self) -> tuple[int, ...]:
        """Turns whose action returned something else when it was replayed."""
        turns = dict.fromkeys(past.turn for past in self._history)
        return tuple(turn for turn in turns if f"diverged/{turn}" in self._page)

    async def act(self, action: Action) -> ActionOutcome:
        """Run an action in the current state."""
        tool = self._tools[action.tool]
        if tool.hints.changes_world:
            # A crash must not lose the decision that led to an external effect.
            await self._page.settle()
        if not tool.stateful:
            return await self._act(self._sandbox, action)
        await self._catch_up()
        outcome = await self._act(self._sandbox, action)
        if outcome.failure is not None and outcome.failure.kind == ErrorKind.SESSION_NOT_FOUND:
            # The session ended before the action ran; the next call starts another one.
            await self._sandbox.destroy_session()
            self._replayed = 0
            await self._catch_up()
            outcome = await self._act(self._sandbox, action)
        return outcome

    def add(self, turn: int, action: Action, outcome: ActionOutcome, *, current: bool) -> None:
        """Add an action to the history.

        :param current: it ran in the current sandbox, not in an earlier one.
        """
        if self._tools[action.tool].stateful:
            self._history.append(_TurnAction(turn, action, outcome))
            self._replayed += current

    async def _catch_up(self) -> None:
        async with self._lock:
            while self._replayed < len(self._history):
                past = self._history[self._replayed]
                outcome = await self._act(self._sandbox, past.action)
                self._replayed += 1
                same = (outcome.observation, outcome.lost) == (past.outcome.observation, past.outcome.lost)
                if not same and f"diverged/{past.turn}" not in self._page:
                    await self._page.record(f"diverged/{past.turn}", True)
