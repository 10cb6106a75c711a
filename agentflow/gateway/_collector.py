"""The trainer's part of the registry: offers, ended episodes, their scores and use."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import structs

from agentflow.actors import Clock
from agentflow.gateway._places import WAITING, Place, PlaceBook, check_id, check_outcome, check_storable
from agentflow.gateway._store import Change, EpisodeStore
from agentflow.gateway._types import (
    EndedEpisode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeState,
    GatewayError,
)

_FAILED = (EpisodeState.ABORTED, EpisodeState.EXPIRED)


class EpisodeCollector:
    """Offers places, and collects what was played. See docs/gateway.md."""

    def __init__(
        self,
        book: PlaceBook,
        store: EpisodeStore,
        agents: Mapping[str, object],
        clock: Clock,
        revoke: Callable[[Place, str], Awaitable[None]],
    ) -> None:
        """Make it.

        :param revoke: ends the open attempt of a place.
        """
        self._book = book
        self._store = store
        self._agents = agents
        self._clock = clock
        self._revoke = revoke

    async def offer(self, offers: Sequence[EpisodeOffer], *, only: bool = False) -> None:
        """Offer places. Those that wait or are open stay as they are; ended ones are reported again.

        :param only: drop the other places that nobody has begun.
        :raises GatewayError: 409 if a step has used one, or it was dropped; then none is offered.
        """
        book, ids = self._book, {offer.id for offer in offers}
        for offer in offers:
            check_id("offers", offer.id, own=False)
            check_storable("offers", offer)
        for id in ids - book.places.keys():
            if (row := await self._store.place(id)) is not None:
                raise GatewayError(
                    409, f"offers: {id!r} is {row.state} already; offer another id", code="used"
                )
        changes: list[Change] = []
        for offer in offers:
            place = book.places.get(offer.id)
            if place is None:
                place = book.places[offer.id] = Place(offer)
                book.set_free(place)
            elif place.state in WAITING and book.is_published(place):
                book.number(place)
                book.publish(place)
            elif place.state in _FAILED and book.is_published(place):
                book.retry(place)
            else:
                continue
            changes.append(place.change())
        if only:
            changes += book.drop([id for id in book.waiting() if id not in ids], "not offered again")
        await self._store.commit(*changes)
        book.notify()

    async def ended(self, after: int = 0, wait: float = 0.0) -> list[EndedEpisode]:
        """Return ended episodes that no step used, in the order of their numbers; at most 256 at once.

        :param after: number of the last one that is known.
        :param wait: seconds to wait for one.
        """
        with self._clock.deadline(max(0.0, wait)):
            while wait > 0 and not self._book.after(after):
                await self._book.changed.wait()
        return [place.report() for place in self._book.after(after)]

    async def score(self, id: str, attempt: int, outcome: EpisodeOutcome) -> None:
        """Give an ended episode its outcome.

        :raises GatewayError: 409 if it is used or has not ended.
        """
        await self._judge(await self._ended_place(id, attempt), outcome)

    async def put_reward(self, id: str, attempt: int, reward: float | dict[str, float]) -> None:
        """Set or replace the reward of an ended episode; the trainer collects it again.

        :raises GatewayError: 409 if it is used or has not ended.
        """
        place = await self._ended_place(id, attempt)
        await self._judge(
            place, structs.replace(place.outcome or EpisodeOutcome(), reward=reward), again=True
        )

    async def use(self, ids: Sequence[str], step: int) -> None:
        """Mark episodes as used by a step; return once that is on disk. The same step again changes nothing.

        :raises GatewayError: 409 if one has not ended, or was used by another step; then none is changed.
        """
        book, wanted = self._book, tuple(dict.fromkeys(ids))
        rows = {id: await self._store.place(id) for id in wanted if id not in book.places}
        # From here to the change nothing else runs.
        for id in wanted:
            place, row = book.places.get(id), rows.get(id)
            if place is not None and place.state in WAITING and book.is_published(place):
                continue
            if place is None and row is not None and (row.state, row.step) == (EpisodeState.USED, step):
                continue
            state = place.state.value if place is not None else row.state if row is not None else "unknown"
            told = f"{state} by step {row.step}" if row is not None and row.step else state
            raise GatewayError(
                409, f"episode {id!r} is {told}; only ended ones can be used, by one step", code="not_usable"
            )
        places = [book.places[id] for id in wanted if id in book.places]
        for place in places:
            book.use(place, step)
        await self._store.commit(*[place.change() for place in places], durable=True)
        book.notify()

    async def withdraw(self, ids: Sequence[str], why: str = "stale") -> None:
        """Drop places in any state but used; their clients get 410. Unknown ids are ignored."""
        changes: list[Change] = []
        for place in [self._book.places[id] for id in dict.fromkeys(ids) if id in self._book.places]:
            async with place.changing:
                if place.live is not None:
                    await self._revoke(place, f"dropped: {why}")
                if self._book.places.get(place.offer.id) is place:
                    changes += self._book.drop([place.offer.id], why)
        await self._store.commit(*changes, durable=True)
        self._book.notify()

    async def _ended_place(self, id: str, attempt: int) -> Place:
        place = self._book.places.get(id)
        if (
            place is not None
            and place.attempt == attempt
            and place.state in WAITING
            and self._book.is_published(place)
        ):
            return place
        row = None if place is not None else await self._store.place(id)
        state = place.state.value if place is not None else row.state if row is not None else "unknown"
        raise GatewayError(409, f"episode {id!r} is {state}; its reward can't be set", code="not_scorable")

    async def _judge(self, place: Place, outcome: EpisodeOutcome, *, again: bool = False) -> None:
        check_outcome(outcome, self._agents)
        place.judge(outcome)
        if again:
            self._book.number(place)
            self._book.publish(place)
        await self._store.commit(place.change(), durable=True)
        self._book.notify()
