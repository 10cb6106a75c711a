"""Doing what a level chose: each branch in a sandbox of its own path."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from agentflow.actors import together
from agentflow.errors import ErrorKind, RunStopped, StopCause
from agentflow.growth._asking import Choice
from agentflow.growth._branch_sandboxes import CannotBranch, Greenhouse, Past, Place, Plot
from agentflow.growth._ports import Executor
from agentflow.growth._settings import Unforkable
from agentflow.journal import Page
from agentflow.sandbox import Sandbox
from agentflow.trajectory import Action, Failure, Isolation, Observation, Outcome

__all__ = ["Acted", "Arrival", "Doer"]

TRIES = 5
"""How often an action is tried whose end may have come from outside."""
ALIKE = 3
"""So often in a row it has to end alike to be its own doing: somebody may kill what it runs in twice."""

_FROM_OUTSIDE = frozenset(
    {
        ErrorKind.SESSION_NOT_FOUND,
        ErrorKind.UNAVAILABLE,
        ErrorKind.FAILED,
        ErrorKind.CANCELLED,
        ErrorKind.BUSY,
    }
)
_KILLED = frozenset({"exit code 137", "exit code 143", "exit code -9", "exit code -15"})


class Acted(Struct, frozen=True):
    """An action that was done, as it stands in the journal."""

    outcome: Outcome
    """What came of it."""
    isolation: Isolation
    """How it was kept apart."""


class Arrival(NamedTuple):
    """Where a branch is after its action."""

    acted: Acted
    """What it did."""
    place: Place
    """From where it goes on, with its claim."""


Job = Callable[[], Awaitable[Arrival]]
"""What is left to do for one branch."""


class Doer:
    """Does what was chosen, for one tree."""

    def __init__(
        self, page: Page, executor: Executor, greenhouse: Greenhouse, plot: Plot, unforkable: Unforkable
    ) -> None:
        self._page = page
        self._executor = executor
        self._greenhouse = greenhouse
        self._plot = plot
        self._unforkable = unforkable

    async def act(self, place: Place, spots: Sequence[str], choices: Sequence[Choice]) -> list[Arrival]:
        """Do what the children of one node chose; the parent's claim on its place is used up.

        :param spots: the children, as their paths.
        """
        if not choices:
            await self._plot.release(place)
            return []
        place.share(len(choices))
        arrivals: dict[str, Arrival] = {}
        for spot, choice in zip(spots, choices, strict=True):
            known = self._page.recall(f"act/{spot}", Acted)
            if known is not None:
                arrivals[spot] = await self._arrive(place, spot, choice.action, known)
        ahead = [pair for pair in zip(spots, choices, strict=True) if pair[0] not in arrivals]
        jobs = await self._prepare(place, ahead)
        done = await together(jobs)
        arrivals.update(zip((spot for spot, _ in ahead), done, strict=True))
        return [arrivals[spot] for spot in spots]

    async def _prepare(self, place: Place, ahead: Sequence[tuple[str, Choice]]) -> list[Job]:
        """What each of them has to do, in order: every branch has its sandbox before the first one acts."""
        jobs: list[Job] = []
        given_up = ""
        for index, (spot, choice) in enumerate(ahead):
            if not self._stateful(choice):
                jobs.append(partial(self._act_shared, place, spot, choice.action))
            elif given_up:
                jobs.append(partial(self._give_up, place, spot, choice.action, given_up))
            else:
                try:
                    jobs.append(await self._branch(place, spot, choice.action))
                except CannotBranch as error:
                    given_up = f"its sandbox can't be forked: {error}"
                    others = sum(self._stateful(sibling) for _, sibling in ahead[index + 1 :])
                    jobs.append(await self._go_on_alone(place, spot, choice.action, others, given_up))
        return jobs

    def _stateful(self, choice: Choice) -> bool:
        return self._greenhouse.tools[choice.action.tool].stateful

    async def _branch(self, place: Place, spot: str, action: Action) -> Job:
        sandbox, isolation = await self._plot.branch(place, self._replay)
        return partial(self._act_apart, place.history, sandbox, isolation, spot, action)

    async def _go_on_alone(self, place: Place, spot: str, action: Action, others: int, reason: str) -> Job:
        """Where branches can't be kept apart: the first one in its parent's sandbox, or none."""
        for _ in range(others):
            await self._plot.release(place)
        if self._unforkable is Unforkable.CHAIN and place.claims == 1:
            return await self._branch(place, spot, action)
        await self._plot.release(place)
        return partial(self._give_up, place, spot, action, reason)

    async def _act_shared(self, place: Place, spot: str, action: Action) -> Arrival:
        outcome = await self._do(self._greenhouse.base, action)
        return await self._settle(spot, Acted(outcome, Isolation.SHARED), place)

    async def _act_apart(
        self, history: tuple[Past, ...], sandbox: Sandbox, isolation: Isolation, spot: str, action: Action
    ) -> Arrival:
        outcome = await self._do(sandbox, action)
        alike = 1
        for _ in range(1, TRIES):
            if alike == ALIKE or not self._from_outside(action, outcome):
                break
            # Somebody may have killed what it ran in. From the same state again: if it ends alike, it is its own doing.
            await self._plot.discard(sandbox)
            sandbox = await self._plot.rebuild(history, self._replay)
            before, outcome = outcome, await self._executor.act(sandbox, action)
            alike = alike + 1 if outcome == before else 1
        if outcome.failure is not None and outcome.failure.kind == ErrorKind.UNAVAILABLE:
            message = f"no sandbox can be had: {outcome.failure.message} Run the same command to go on."
            raise RunStopped(StopCause.SANDBOX, message)
        place = Place((*history, Past(spot, action, outcome)), sandbox)
        return await self._settle(spot, Acted(outcome, isolation), place)

    async def _do(self, sandbox: Sandbox, action: Action) -> Outcome:
        if self._greenhouse.tools[action.tool].hints.changes_world:
            # Who decided on it must not be forgotten by a crash, also where doing the very same again does no harm.
            await self._page.settle()
        return await self._executor.act(sandbox, action)

    async def _give_up(self, place: Place, spot: str, action: Action, reason: str) -> Arrival:
        """Its claim has been given back: if anything goes on from here, then from the history."""
        outcome = Outcome(Observation(), Failure(ErrorKind.CANNOT_FORK, f"not tried: {reason}"))
        return await self._settle(spot, Acted(outcome, Isolation.SHARED), Place(place.history))

    async def _arrive(self, place: Place, spot: str, action: Action, known: Acted) -> Arrival:
        """It was done before the last crash: its claim leads to a place that has only a history."""
        failure = known.outcome.failure
        given_up = failure is not None and failure.kind == ErrorKind.CANNOT_FORK
        if known.isolation is Isolation.SHARED and not given_up:
            return Arrival(known, place)
        await self._plot.release(place)
        if given_up:
            return Arrival(known, Place(place.history))
        return Arrival(known, Place((*place.history, Past(spot, action, known.outcome))))

    async def _settle(self, spot: str, acted: Acted, place: Place) -> Arrival:
        await self._page.note(f"act/{spot}", acted)
        return Arrival(acted, place)

    async def _replay(self, sandbox: Sandbox, past: Past, last: bool) -> bool:
        outcome = await self._executor.act(sandbox, past.action)
        alike = (outcome.observation, outcome.lost) == (past.outcome.observation, past.outcome.lost)
        if alike or not (last or self._matters_outside(past.action)):
            return alike
        key = f"diverged/{past.spot}"
        if key not in self._page:
            await self._page.record(key, True)
        return True

    def _from_outside(self, action: Action, outcome: Outcome) -> bool:
        """Whether its end may be the work of somebody else; and doing it again can do no harm out there."""
        if self._matters_outside(action):
            return False
        failed = outcome.failure is not None and outcome.failure.kind in _FROM_OUTSIDE
        return failed or outcome.lost or outcome.trouble in _KILLED

    def _matters_outside(self, action: Action) -> bool:
        """Doing it once more may do harm in the world, which no fresh sandbox undoes."""
        return self._greenhouse.tools[action.tool].hints.open_world and not self._greenhouse.harmless(action)
