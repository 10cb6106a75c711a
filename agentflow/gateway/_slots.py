"""Slots of episodes that no step has used or dropped: offered ones wait for a client, ended ones for the trainer."""

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import anyio
import msgspec
from msgspec import structs

from agentflow.actors import Clock
from agentflow.gateway._store import Change, EpisodeSlot, EpisodeStore
from agentflow.gateway._types import (
    EndedEpisode,
    EpisodeMode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeState,
    GatewayError,
    check_finite,
)
from agentflow.trace import Task

_FAILED = (EpisodeState.ABORTED, EpisodeState.EXPIRED)
_SCORABLE = (EpisodeState.SEALED, EpisodeState.SCORED)
_MAX_ENDED = 256
_MAX_ID = 200
_OWN = "own/"
_encode = msgspec.msgpack.Encoder().encode


class SlotQueue:
    """Slots by id, the queue of those that wait for a client, and those that ended, in order. See docs/gateway.md."""

    def __init__(
        self,
        store: EpisodeStore,
        agents: Mapping[str, object],
        clock: Clock,
        revoke: Callable[[EpisodeSlot, str], Awaitable[None]],
    ) -> None:
        """Start empty.

        :param revoke: ends the open attempt of a slot, for a reason.
        """
        self.slots: dict[str, EpisodeSlot] = {}
        """Slots by id."""
        self.changed = anyio.Event()
        """Set at the next change of a state."""
        self._store = store
        self._agents = agents
        self._clock = clock
        self._revoke = revoke
        self._waiting: dict[str, OrderedDict[str, None]] = {}
        self._ended: dict[int, str] = {}
        self._next_number = 1
        self._done: Counter[str] = Counter()
        """Number of slots that were used or dropped, since the start of this process."""

    def load(self, slots: Iterable[EpisodeSlot], next_number: int) -> list[EpisodeSlot]:
        """Restore the slots of the journal; return those that were open, which wait again.

        :param next_number: number of the next end.
        """
        self._next_number = next_number
        was_open: list[EpisodeSlot] = []
        for slot in slots:
            self.slots[slot.offer.id] = slot
            if slot.state is EpisodeState.OPEN:
                was_open.append(slot)
            if slot.state in (EpisodeState.OPEN, EpisodeState.OFFERED):
                self.enqueue(slot)
            else:
                self._ended[slot.number] = slot.offer.id
        self._ended = dict(sorted(self._ended.items()))
        return was_open

    def notify(self) -> None:
        """Wake everybody who waits for a change."""
        self.changed.set()
        self.changed = anyio.Event()

    def enqueue(self, slot: EpisodeSlot, *, first: bool = False) -> None:
        """Let a slot wait for a client."""
        slot.state = EpisodeState.OFFERED
        queue = self._waiting.setdefault(_queue_of(slot.offer), OrderedDict())
        queue[slot.offer.id] = None
        queue.move_to_end(slot.offer.id, last=not first)

    def take(self, task: Task | None, mode: EpisodeMode | None) -> EpisodeSlot | None:
        """Take the next slot that waits: of a client's own task, or of any."""
        # Validation first: a step waits for it.
        modes = [kind for kind in ("validate", "train") if mode in (None, kind)]
        for name in modes if task is None else [f"{_OWN}{task.id}"]:
            if queue := self._waiting.get(name):
                id = next(iter(queue))
                self._dequeue(name, id)
                return self.slots[id]
        return None

    def number(self, slot: EpisodeSlot) -> None:
        """Give an end its number, the next one; the trainer can collect it once it is published."""
        self._ended.pop(slot.number, None)
        slot.number, self._next_number = self._next_number, self._next_number + 1

    def publish(self, slot: EpisodeSlot) -> None:
        """Let the trainer collect an end."""
        self._ended[slot.number] = slot.offer.id
        self.notify()

    def states(self) -> dict[str, int]:
        """Count the slots by state."""
        counts = Counter(slot.state.value for slot in self.slots.values()) + self._done
        return dict(sorted(counts.items()))

    async def offer(self, offers: Sequence[EpisodeOffer], *, only: bool = False) -> None:
        """Offer slots. Those that wait or are open stay as they are; ended ones are reported again.

        :param only: drop the other slots that nobody has begun.
        :raises GatewayError: 409 if a step has used one, or it was dropped; then none is offered.
        """
        ids = {offer.id for offer in offers}
        for offer in offers:
            _check_id("offers", offer.id, is_own=False)
            _check_storable("offers", offer)
        for id, slot in (await self._store.slots(ids - self.slots.keys())).items():
            raise GatewayError(409, f"offers: {id!r} is {slot.state} already; offer another id", code="used")
        changes: list[Change] = []
        for offer in offers:
            slot = self.slots.get(offer.id)
            if slot is None:
                slot = self.slots[offer.id] = EpisodeSlot(offer)
                # States of tools are kept for branches.
                self.enqueue(slot, first=bool(offer.origin))
            elif slot.number not in self._ended:
                continue
            elif slot.state in _FAILED:
                del self._ended[slot.number]
                slot.failures, slot.outcome = 0, None
                self.enqueue(slot)
            else:
                self.number(slot)
                self.publish(slot)
            changes.append(slot.change())
        if only:
            waiting = [id for id, slot in self.slots.items() if slot.state is EpisodeState.OFFERED]
            changes += [self._drop(id, "not offered again") for id in waiting if id not in ids]
        await self._store.commit(*changes)
        self.notify()

    async def offer_own(self, task: Task, mode: EpisodeMode, size: int) -> None:
        """Offer the slots of a client's own task, the first time.

        :raises GatewayError: 409 if the id is another task's, or all its episodes were played.
        """
        _check_id("task.id", task.id)
        _check_storable("task", task)
        group = f"{_OWN}{task.id}"
        ids = [f"{group}/{member}" for member in range(size if mode == "train" else 1)]
        stored = {} if ids[0] in self.slots else await self._store.slots(ids[:1])
        first = self.slots.get(ids[0]) or stored.get(ids[0])
        if first is None:
            slots = [
                EpisodeSlot(EpisodeOffer(id=id, group=group, task=task, mode=mode, seed=id)) for id in ids
            ]
            for slot in slots:
                self.slots[slot.offer.id] = slot
                self.enqueue(slot)
            await self._store.commit(*[slot.change() for slot in slots])
        elif first.offer.task != task or first.offer.mode != mode:
            problem = f"task.id: {task.id!r} is another task already; give each its own id"
            raise GatewayError(409, problem, code="other_task")
        elif not any(
            id in self.slots and self.slots[id].state in (EpisodeState.OFFERED, EpisodeState.OPEN)
            for id in ids
        ):
            problem = f"task.id: all episodes of {task.id!r} were played; give each task its own id"
            raise GatewayError(409, problem, code="complete")

    async def ended(self, after: int = 0, wait: float = 0.0) -> list[EndedEpisode]:
        """Return ended episodes that no step used, in the order of their numbers; at most 256 at once.

        :param after: number of the last one that is known.
        :param wait: seconds to wait for one.
        """
        with self._clock.deadline(max(0.0, wait)):
            while wait > 0 and all(number <= after for number in self._ended):
                await self.changed.wait()
        ids = [id for number, id in self._ended.items() if number > after]
        return [self.slots[id].report() for id in ids[:_MAX_ENDED]]

    async def score(self, id: str, attempt: int, outcome: EpisodeOutcome) -> None:
        """Give an ended episode its outcome.

        :raises GatewayError: 409 if it is used or has not ended.
        """
        await self._judge(await self._ended_slot(id, attempt), outcome)

    async def put_reward(self, id: str, attempt: int, reward: float | dict[str, float]) -> None:
        """Set or replace the reward of an ended episode; the trainer collects it again.

        :raises GatewayError: 409 if it is used or has not ended.
        """
        slot = await self._ended_slot(id, attempt)
        await self._judge(slot, structs.replace(slot.outcome or EpisodeOutcome(), reward=reward), again=True)

    async def use(self, ids: Sequence[str], step: int) -> None:
        """Mark episodes as used by a step; return once that is on disk. The same step again changes nothing.

        :raises GatewayError: 409 if one has not ended, or was used by another step; then none is changed.
        """
        ids = tuple(dict.fromkeys(ids))
        stored = await self._store.slots([id for id in ids if id not in self.slots])
        # From here to the change nothing else runs.
        for id in ids:
            slot = self.slots.get(id) or stored.get(id)
            if slot is not None and self._is_scorable(slot):
                continue
            if id not in self.slots and slot and (slot.state, slot.step) == (EpisodeState.USED, step):
                continue
            state = "unknown" if slot is None else slot.state.value
            by_step = f" by step {slot.step}" if slot is not None and slot.step else ""
            problem = f"episode {id!r} is {state}{by_step}; only ended ones can be used, by one step"
            raise GatewayError(409, problem, code="not_usable")
        slots = [self.slots[id] for id in ids if id in self.slots]
        for slot in slots:
            slot.state, slot.step = EpisodeState.USED, step
            self._forget(slot)
        await self._store.commit(*[slot.change() for slot in slots], durable=True)
        self.notify()

    async def withdraw(self, ids: Sequence[str], why: str = "stale") -> None:
        """Drop slots in any state but used; their clients get 410. Unknown ids are ignored."""
        changes: list[Change] = []
        for slot in [self.slots[id] for id in dict.fromkeys(ids) if id in self.slots]:
            async with slot.changing:
                if slot.live is not None:
                    await self._revoke(slot, f"dropped: {why}")
                if self.slots.get(slot.offer.id) is slot:
                    changes.append(self._drop(slot.offer.id, why))
        await self._store.commit(*changes, durable=True)
        self.notify()

    async def _ended_slot(self, id: str, attempt: int) -> EpisodeSlot:
        slot = self.slots.get(id)
        if slot is not None and slot.attempt == attempt and self._is_scorable(slot):
            return slot
        slot = slot or (await self._store.slots([id])).get(id)
        state = "unknown" if slot is None else slot.state.value
        raise GatewayError(409, f"episode {id!r} is {state}; its reward can't be set", code="not_scorable")

    async def _judge(self, slot: EpisodeSlot, outcome: EpisodeOutcome, *, again: bool = False) -> None:
        check_outcome(outcome, self._agents)
        slot.judge(outcome)
        if again:
            self.number(slot)
            self.publish(slot)
        await self._store.commit(slot.change(), durable=True)
        self.notify()

    def _is_scorable(self, slot: EpisodeSlot) -> bool:
        """Return whether an episode ended with an outcome that the trainer can collect."""
        return slot.state in _SCORABLE and slot.number in self._ended

    def _drop(self, id: str, why: str) -> Change:
        """Leave a slot out; return the statement that stores it."""
        slot = self.slots[id]
        self._dequeue(_queue_of(slot.offer), id)
        slot.outcome = structs.replace(slot.outcome or EpisodeOutcome(), failure=f"dropped: {why}")
        slot.state = EpisodeState.DROPPED
        self._forget(slot)
        return slot.change()

    def _dequeue(self, name: str, id: str) -> None:
        if (queue := self._waiting.get(name)) is not None:
            queue.pop(id, None)
            if not queue:
                del self._waiting[name]

    def _forget(self, slot: EpisodeSlot) -> None:
        self._ended.pop(slot.number, None)
        del self.slots[slot.offer.id]
        self._done[slot.state.value] += 1


def check_outcome(outcome: EpisodeOutcome, agents: Mapping[str, object]) -> None:
    """Refuse rewards that are not finite, or of unknown agents.

    :raises GatewayError: 400.
    """
    check_finite(outcome)
    rewards = outcome.reward if isinstance(outcome.reward, dict) else {}
    if unknown := sorted(rewards.keys() - agents.keys()):
        known = ", ".join(map(repr, agents))
        raise GatewayError(
            400, f"reward: there is no agent {unknown[0]!r}; there is {known}", code="unknown_agent"
        )


def _check_id(name: str, id: str, *, is_own: bool = True) -> None:
    """Refuse ids that can't be printed, or are reserved.

    :raises GatewayError: 400.
    """
    if not id or not id.isprintable() or len(id) > _MAX_ID:
        problem = f"{name}: {id[:40]!r} can't be used; write 1 to {_MAX_ID} visible characters"
        raise GatewayError(400, problem, code="bad_id")
    if not is_own and id.startswith(_OWN):
        problem = f"{name}: {id[:40]!r} begins with {_OWN}, which names tasks of clients; write another id"
        raise GatewayError(400, problem, code="bad_id")


def _check_storable(name: str, value: object) -> None:
    """Refuse values that the journal can't store.

    :raises GatewayError: 400.
    """
    try:
        _encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError) as error:
        raise GatewayError(
            400, f"{name}: can't be stored ({error}); change it", code="not_storable"
        ) from None


def _queue_of(offer: EpisodeOffer) -> str:
    return offer.id.rpartition("/")[0] if offer.id.startswith(_OWN) else offer.mode
