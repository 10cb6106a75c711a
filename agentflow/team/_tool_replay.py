"""Doing an episode's actions in its sandbox, whose state follows from what was done there."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import anyio

from agentflow.errors import ErrorKind
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, Tool
from agentflow.trajectory import Action, Outcome

__all__ = ["Act", "Hands"]

Act = Callable[[Sandbox, Action], Awaitable[Outcome]]
"""Calls a tool. A failed call is an outcome."""


class _Past(NamedTuple):
    turn: int
    action: Action
    outcome: Outcome


class Hands:
    """Does what an episode wants done.

    What stands on the page was done in a sandbox that may be gone. The first action that needs its state does it again
    before; if it comes out otherwise, what stands on the page counts, and the turn is named as diverged.
    """

    def __init__(self, sandbox: Sandbox, tools: Mapping[str, Tool], act: Act, page: Page) -> None:
        self._sandbox = sandbox
        self._tools = tools
        self._act = act
        self._page = page
        self._history: list[_Past] = []
        self._done = 0
        self._turn = anyio.Lock()

    @property
    def diverged(self) -> tuple[int, ...]:
        """Turns that came out otherwise when they were done again."""
        turns = dict.fromkeys(past.turn for past in self._history)
        return tuple(turn for turn in turns if f"diverged/{turn}" in self._page)

    async def act(self, action: Action) -> Outcome:
        """Do it now."""
        tool = self._tools[action.tool]
        if tool.hints.changes_world:
            # Who decided on it must not be forgotten by a crash.
            await self._page.settle()
        if not tool.stateful:
            return await self._act(self._sandbox, action)
        await self._catch_up()
        outcome = await self._act(self._sandbox, action)
        if outcome.failure is not None and outcome.failure.kind == ErrorKind.SESSION_NOT_FOUND:
            # It ended behind our back, and nothing was done in it: the next call makes another one.
            await self._sandbox.destroy_session()
            self._done = 0
            await self._catch_up()
            outcome = await self._act(self._sandbox, action)
        return outcome

    def remember(self, turn: int, action: Action, outcome: Outcome, *, now: bool) -> None:
        """It was done.

        :param now: in this sandbox, not in one before it.
        """
        if self._tools[action.tool].stateful:
            self._history.append(_Past(turn, action, outcome))
            self._done += now

    async def _catch_up(self) -> None:
        async with self._turn:
            while self._done < len(self._history):
                past = self._history[self._done]
                outcome = await self._act(self._sandbox, past.action)
                self._done += 1
                alike = (outcome.observation, outcome.lost) == (past.outcome.observation, past.outcome.lost)
                if not alike and f"diverged/{past.turn}" not in self._page:
                    await self._page.record(f"diverged/{past.turn}", True)
