"""Registry of episodes: places that the trainer offers, attempts that clients play, and their ends."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import msgspec

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import unwrap_group
from agentflow.gateway._answers import Answerer
from agentflow.gateway._collector import EpisodeCollector
from agentflow.gateway._keys import (
    ClientIdentity,
    ClientIds,
    ClientRole,
    agent_of,
    digest_of,
    new_key,
    page_of,
    same,
)
from agentflow.gateway._live import LiveEpisode, ended_error
from agentflow.gateway._places import PageBegin, PageEnd, Place, PlaceBook, check_outcome, decode_calls
from agentflow.gateway._settings import GatewaySettings
from agentflow.gateway._store import EpisodeStore, PageRow, begin_page, end_page, put_meta
from agentflow.gateway._types import (
    BegunEpisode,
    EpisodeMode,
    EpisodeOutcome,
    EpisodeReceipt,
    EpisodeState,
    GatewayError,
    GatewayStatus,
    RecordedCall,
)
from agentflow.trace import Task

EXPIRY_SECONDS = 1.0
"""Interval of the search for expired episodes."""
_OLD_KEYS = 4096
_encode = msgspec.msgpack.Encoder().encode


class EpisodeRegistry:
    """All episodes of one run, used inside `async with`. See docs/gateway.md.

    A place is offered, begun, ended, scored, and used by a step or dropped. Only places that are neither used nor dropped
    are in memory.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        store: EpisodeStore,
        models: Mapping[str, Answerer],
        *,
        base_url: Callable[[], str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a registry.

        :param models: the model of each agent.
        :param base_url: returns the address that episodes are told.
        """
        self._settings = settings
        self._store = store
        self._agents = settings.agents_or_one()
        self._models = models
        self._base_url = base_url
        self._clock = clock
        self._book = PlaceBook()
        self._pages: dict[int, LiveEpisode] = {}
        self._old_keys: OrderedDict[int, dict[str, bytes]] = OrderedDict()
        self._next_page = 1
        self._version = 0
        self._finished = False
        self._gate = anyio.Event()
        self._gate.set()
        self._tasks: anyio.abc.TaskGroup
        self.clients: ClientIds
        """Issues and checks ids of clients."""
        self.collector = EpisodeCollector(self._book, store, self._agents, clock, self._revoke)
        """The trainer's part: offers, ended episodes, their scores and use."""

    async def __aenter__(self) -> Self:
        await self._load()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._expire_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        try:
            if isinstance(error, Exception):
                # It is raised as itself, not in a group.
                await self._tasks.__aexit__(None, None, None)
                return None
            return await self._tasks.__aexit__(kind, error, trace)
        except ExceptionGroup as group:
            raise unwrap_group(group) from None

    def find(self, key: str) -> tuple[LiveEpisode, str]:
        """Return the open episode and the agent of a key.

        :raises GatewayError: 401 for an unknown key, 410 for one whose episode has ended.
        """
        page = page_of(key)
        live = None if page is None else self._pages.get(page)
        if live is not None and (agent := agent_of(key, live.digests)) is not None:
            if live.sealed:
                raise ended_error()
            return live, agent
        if page is not None and agent_of(key, self._old_keys.get(page, {})) is not None:
            raise ended_error()
        raise GatewayError(
            401, "this key belongs to no episode; take one from a begun episode", code="unknown_key"
        )

    async def begin(
        self,
        who: ClientIdentity,
        *,
        task: Task | None = None,
        mode: EpisodeMode | None = None,
        agents: Sequence[str] = (),
        wait: float = 0.0,
    ) -> BegunEpisode | None:
        """Begin the next offered episode; `None`: there is nothing now.

        :param task: a task of the client's own; its id names its group.
        :param mode: use of the episode; `None`: any.
        :param agents: agents that get keys; empty: all.
        :param wait: seconds to wait for an offer.
        :raises GatewayError: 410 once the run is over; 400 for an unknown agent; 409 if a task's episodes were all played.
        """
        if unknown := sorted(set(agents) - self._agents.keys()):
            told = f"agents: there is no {unknown[0]!r}; there is {', '.join(map(repr, self._agents))}"
            raise GatewayError(400, told, code="unknown_agent")
        self._check_running()
        if task is not None:
            await self._open_group(task, mode or "train")
        place: Place | None = None
        with self._clock.deadline(max(0.0, wait)):
            while (place := self._book.take(task, mode)) is None and wait > 0:
                await self._book.changed.wait()
                self._check_running()
        return None if place is None else await self._begin(place, who, tuple(agents) or tuple(self._agents))

    async def end(
        self, who: ClientIdentity, id: str, attempt: int, outcome: EpisodeOutcome, end_id: str = ""
    ) -> EpisodeReceipt:
        """End an episode; return once its record is on disk. The same end again returns the same receipt.

        :raises GatewayError: 403 for another client, 409 for another end, 410 if it was aborted or has expired.
        """
        check_outcome(outcome, self._agents)
        body = digest_of(msgspec.json.encode(outcome, order="deterministic").decode())
        if (place := self._book.places.get(id)) is not None:
            async with place.changing:
                if (live := self._live(place, who, attempt)) is not None:
                    if unknown := sorted(call for call in outcome.turn_rewards if not live.has_call(call)):
                        told = f"turn_rewards: there is no call {unknown[0]!r}"
                        raise GatewayError(400, told, code="unknown_call")
                    return await self._seal(place, live, outcome, end_id, body)
        end = await self._end_of(who, id, attempt)
        if end.receipt is None:
            raise _gone(id, end)
        if (end.end_id, end.body) != (end_id, body):
            raise GatewayError(409, f"episode {id!r} has ended with another result", code="ended_otherwise")
        return end.receipt

    async def abort(
        self, who: ClientIdentity, id: str, attempt: int, why: str = "", *, blame: bool = True
    ) -> None:
        """Give an episode up: its place is offered again.

        :param blame: count it as a failed attempt.
        :raises GatewayError: 403 for another client, 410 if it has expired, 409 if it has ended.
        """
        if (place := self._book.places.get(id)) is not None:
            async with place.changing:
                if self._live(place, who, attempt) is not None:
                    await self._lose(place, EpisodeState.ABORTED, why or "aborted by its client", blame=blame)
                    return
        end = await self._end_of(who, id, attempt)
        if end.receipt is not None:
            raise GatewayError(409, f"episode {id!r} has ended", code="ended_otherwise")
        if end.state != EpisodeState.ABORTED:
            raise _gone(id, end)

    async def alive(self, who: ClientIdentity, id: str, attempt: int) -> float:
        """Count as activity; return the seconds after which the episode expires.

        :raises GatewayError: 403 for another client, 410 if it has ended.
        """
        place = self._book.places.get(id)
        live = None if place is None else self._live(place, who, attempt)
        if live is None:
            raise _gone(id, await self._end_of(who, id, attempt))
        live.alive()
        limits = self._settings.limits
        return min(limits.idle_seconds, live.began + limits.total_seconds - self._clock.now())

    async def put_reward(
        self, who: ClientIdentity, id: str, attempt: int, reward: float | dict[str, float]
    ) -> None:
        """Set or replace the reward of an ended episode, until a step uses it.

        :raises GatewayError: 403 for another client, 409 if it is used or has not ended.
        """
        await self._end_of(who, id, attempt)
        await self.collector.put_reward(id, attempt, reward)

    async def calls(self, who: ClientIdentity, id: str, attempt: int) -> list[RecordedCall]:
        """Return the record of an attempt.

        :raises GatewayError: 403 for a worker that did not begin it; 404 if there is no such attempt.
        """
        page = await self._page(who, id, attempt)
        bodies = await self._store.calls(page.page)
        return decode_calls(bodies, page.end)

    async def set_version(self, version: int) -> None:
        """Set the version of the weights, which episodes get at their beginning."""
        self._version = version
        await self._store.commit(put_meta("version", str(version).encode()))

    def hold(self) -> None:
        """Let calls wait, while weights change."""
        if self._gate.is_set():
            self._gate = anyio.Event()

    def go_on(self) -> None:
        """Let waiting calls continue."""
        self._gate.set()

    async def finish(self, finished: bool = True) -> None:
        """End the run: nothing is begun any more, and open episodes are aborted.

        :param finished: false continues it.
        """
        if self._finished is finished:
            return
        self._finished = finished
        self.go_on()
        for place in [place for place in self._book.places.values() if place.live is not None]:
            async with place.changing:
                if finished and place.live is not None:
                    await self._lose(place, EpisodeState.ABORTED, "the run is over", blame=False)
        await self._store.commit(put_meta("finished", b"1" if finished else b""), durable=True)
        self._book.notify()

    def status(self) -> GatewayStatus:
        """Return figures of the moment."""
        return GatewayStatus(
            states=self._book.states(),
            in_flight=sum(live.in_flight for live in self._pages.values()),
            calls=sum(live.recorded for live in self._pages.values()),
            version=self._version,
            held=not self._gate.is_set(),
            finished=self._finished,
        )

    async def expire(self) -> None:
        """End the episodes whose clients stayed away too long."""
        limits, now = self._settings.limits, self._clock.now()
        for place in [place for place in self._book.places.values() if place.live is not None]:
            if (live := place.live) is None:
                continue
            idle = not live.in_flight and now - live.last_seen >= limits.idle_seconds
            if idle or now - live.began >= limits.total_seconds:
                why = (
                    f"no call for {limits.idle_seconds:g} s"
                    if idle
                    else f"open for {limits.total_seconds:g} s"
                )
                async with place.changing:
                    if place.live is live:
                        await self._lose(place, EpisodeState.EXPIRED, why)

    async def _expire_all(self) -> None:
        while True:
            await self._clock.sleep(EXPIRY_SECONDS)
            await self.expire()

    async def _load(self) -> None:
        """Restore what is on disk. Open episodes expire, as the answers of their running calls are lost."""
        secret = await self._store.meta("secret") or secrets.token_bytes(32)
        self.clients = ClientIds(secret)
        self._version = int(await self._store.meta("version") or b"0")
        self._finished = bool(await self._store.meta("finished"))
        page, number = await self._store.highest()
        self._next_page, self._book.next_number = page + 1, number + 1
        changes = [put_meta("secret", secret)]
        end = _encode(PageEnd(EpisodeState.EXPIRED, "the gateway was restarted"))
        for place in self._book.load(await self._store.live_places()):
            changes += [end_page(place.page, end), place.change()]
        for old in await self._store.last_pages(_OLD_KEYS):
            self._old_keys[old.page] = msgspec.msgpack.decode(old.begin, type=PageBegin).digests
        await self._store.commit(*changes, durable=True)

    async def _opened(self) -> None:
        """Wait while calls are held."""
        while not self._gate.is_set():
            await self._gate.wait()

    def _check_running(self) -> None:
        if self._finished:
            raise GatewayError(410, "the run is over", code="run_over")

    async def _open_group(self, task: Task, mode: EpisodeMode) -> None:
        """Offer the places of a client's own task, once."""
        fresh = await self._book.own_group(task, mode, self._settings.group_size, self._store)
        # Two clients may bring the same task at once.
        fresh = [place for place in fresh if place.offer.id not in self._book.places]
        for place in fresh:
            self._book.places[place.offer.id] = place
            self._book.set_free(place)
        await self._store.commit(*[place.change() for place in fresh])

    async def _begin(self, place: Place, who: ClientIdentity, agents: Sequence[str]) -> BegunEpisode:
        client = who.client or self.clients.issue()
        page, self._next_page = self._next_page, self._next_page + 1
        keys = {agent: new_key(page) for agent in agents}
        digests = {agent: digest for agent, (_, digest) in keys.items()}
        place.state, place.page, place.attempt = EpisodeState.OPEN, page, place.attempt + 1
        place.version, place.client = self._version, digest_of(client)
        place.live = self._pages[page] = LiveEpisode(
            place.offer,
            attempt=place.attempt,
            page=page,
            digests=digests,
            models=self._models,
            trained=[name for name, agent in self._agents.items() if agent.trained],
            temperature=self._settings.temperature,
            limits=self._settings.limits,
            clock=self._clock,
            tasks=self._tasks,
            opened=self._opened,
            record=self._store.add_call,
            records=self._store.calls,
            images=self._store.images,
        )
        begin = _encode(PageBegin(digests, place.client, self._version))
        with anyio.CancelScope(shield=True):
            await self._store.commit(begin_page(page, place.offer.id, place.attempt, begin), place.change())
        return BegunEpisode(
            episode=place.offer.id,
            attempt=place.attempt,
            mode=place.offer.mode,
            task=place.offer.task,
            base_url=self._base_url(),
            keys={agent: key for agent, (key, _) in keys.items()},
            model=self._models[agents[0]].models[0],
            version=place.version,
            expires=self._settings.limits.idle_seconds,
            client=client,
        )

    def _live(self, place: Place, who: ClientIdentity, attempt: int) -> LiveEpisode | None:
        """Return the open attempt; `None`: that attempt has ended.

        :raises GatewayError: 403 for another client.
        """
        if place.live is None or attempt != place.attempt or place.live.sealed:
            return None
        if who.role is not ClientRole.OWNER and not same(place.client, who.digest):
            raise _not_yours(place.offer.id)
        return place.live

    async def _seal(
        self, place: Place, live: LiveEpisode, outcome: EpisodeOutcome, end_id: str, body: bytes
    ) -> EpisodeReceipt:
        with anyio.CancelScope(shield=True):
            cancelled = await live.seal()
            self._close(place, live)
            place.judge(outcome)
            self._book.number(place)
            receipt = live.receipt(cancelled)
            end = PageEnd(EpisodeState.SEALED, "", end_id, body, receipt, live.lost())
            await self._store.commit(place.change(), end_page(place.page, _encode(end)), durable=True)
            self._book.publish(place)
            return receipt
        raise ended_error()

    async def _revoke(self, place: Place, why: str) -> None:
        await self._lose(place, EpisodeState.ABORTED, why, again=False)

    async def _lose(
        self, place: Place, state: EpisodeState, why: str, *, blame: bool = True, again: bool = True
    ) -> None:
        """End the open attempt without a result. The place is offered again, up to the limit of attempts."""
        if (live := place.live) is None:
            return
        with anyio.CancelScope(shield=True):
            await live.seal()
            self._close(place, live)
            place.failures += blame
            end = end_page(place.page, _encode(PageEnd(state, why, lost=live.lost())))
            if again and place.failures < self._settings.limits.attempts:
                self._book.set_free(place, first=True)
                await self._store.commit(end, place.change())
                self._book.notify()
            else:
                place.state, place.outcome = state, EpisodeOutcome(failure=why)
                self._book.number(place)
                await self._store.commit(end, place.change())
                self._book.publish(place)

    def _close(self, place: Place, live: LiveEpisode) -> None:
        """Take the keys of an attempt out of use."""
        place.live = None
        del self._pages[live.page]
        self._old_keys[live.page] = live.digests
        if len(self._old_keys) > _OLD_KEYS:
            self._old_keys.popitem(last=False)

    async def _page(self, who: ClientIdentity, id: str, attempt: int) -> PageRow:
        page = await self._store.page_of(id, attempt)
        if page is None:
            told = f"there is no attempt {attempt} of episode {id!r}"
            raise GatewayError(404, told, code="unknown_episode")
        begin = msgspec.msgpack.decode(page.begin, type=PageBegin)
        if who.role is ClientRole.WORKER and not same(begin.client, who.digest):
            raise _not_yours(id)
        return page

    async def _end_of(self, who: ClientIdentity, id: str, attempt: int) -> PageEnd:
        """Return the end of an attempt that is not open.

        :raises GatewayError: 403 for another client, 404 if there is no such attempt, 409 if it is open.
        """
        page = await self._page(who, id, attempt)
        if page.end is None:
            raise GatewayError(409, f"episode {id!r} has not ended", code="open")
        return PageEnd.of(page)


def _gone(id: str, end: PageEnd) -> GatewayError:
    why = end.why or end.state
    return GatewayError(410, f"this attempt of episode {id!r} is over: {why}", code="episode_ended")


def _not_yours(id: str) -> GatewayError:
    return GatewayError(403, f"episode {id!r} was begun by another client", code="other_client")
