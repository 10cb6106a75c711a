"""Registry of episodes: attempts that clients play, with their keys, and their ends.

Only digests of keys and client ids are stored, and comparisons take constant time.
"""

import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from hashlib import sha256
from types import TracebackType
from typing import NamedTuple, Self

import anyio
import anyio.abc
import msgspec
from msgspec import structs

from agentflow.actors import SYSTEM_CLOCK, Clock
from agentflow.errors import unwrap_group
from agentflow.gateway._answers import Answerer
from agentflow.gateway._live import AgentModel, LiveEpisode, ended_error
from agentflow.gateway._settings import GatewaySettings
from agentflow.gateway._slots import SlotQueue, check_outcome
from agentflow.gateway._store import (
    AttemptBegin,
    AttemptEnd,
    EpisodeAttempt,
    EpisodeSlot,
    EpisodeStore,
    begin_page,
    end_page,
    put_meta,
)
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
_KEY = re.compile(r"af_([0-9]{1,15})_([A-Za-z0-9_-]{43})", re.ASCII)
_CLIENT = re.compile(r"c_[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}", re.ASCII)


class ClientRole(IntEnum):
    """Rights of a token; each role has those of the roles below it."""

    VIEWER = 1
    """Reads the status and tokens."""
    WORKER = 2
    """Plays episodes."""
    OWNER = 3
    """Offers, scores and uses episodes: the trainer."""


class ClientIdentity(NamedTuple):
    """Sender of a request."""

    role: ClientRole
    """Its role."""
    client: str = ""
    """Its id as a client; empty if the request has none."""

    @property
    def digest(self) -> bytes:
        """Digest of its id, as it is stored with the episodes that it begins."""
        return digest_of(self.client)


def digest_of(secret: str) -> bytes:
    """Return the digest under which a secret is stored."""
    # A header may be in any encoding.
    return sha256(secret.encode(errors="surrogateescape")).digest()


class ClientIds:
    """Issues and checks ids of clients. An id carries a code of this journal, so that clients can't choose their own."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def issue(self) -> str:
        """Return a new id."""
        name = f"c_{secrets.token_urlsafe(16)}"
        return f"{name}.{self._code(name)}"

    def check(self, client: str) -> str:
        """Return an id that was issued here.

        :raises GatewayError: 401 for any other.
        """
        name, _, code = client.partition(".")
        if not _CLIENT.fullmatch(client) or not hmac.compare_digest(code.encode(), self._code(name).encode()):
            raise GatewayError(
                401,
                "X-AgentFlow-Client: this id was not issued here; leave it out to get one",
                code="unknown_client",
            )
        return client

    def _code(self, name: str) -> str:
        code = hmac.digest(self._secret, name.encode(), "sha256")
        return urlsafe_b64encode(code).rstrip(b"=").decode()


class EpisodeRegistry:
    """All episodes of one run, used inside `async with`. See docs/gateway.md.

    A slot is offered, begun, ended, scored, and used by a step or dropped. Only slots that are neither used nor dropped
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
        :param base_url: returns the address of the model APIs, for clients.
        """
        self._settings = settings
        self._store = store
        self._agents = {
            name: AgentModel(models[name], agent.trained) for name, agent in settings.agents_or_one().items()
        }
        self._base_url = base_url
        self._clock = clock
        self._live: dict[int, LiveEpisode] = {}
        """Open episodes by page."""
        self._old_keys: OrderedDict[int, dict[str, bytes]] = OrderedDict()
        self._next_page = 1
        self._version = 0
        self._finished = False
        self._gate = anyio.Event()
        self._gate.set()
        self._tasks: anyio.abc.TaskGroup
        self.clients: ClientIds
        """Issues and checks ids of clients."""
        self.slots = SlotQueue(store, self._agents, clock, self._revoke)
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
        match = _KEY.fullmatch(key)
        page = int(match[1]) if match else 0
        live = self._live.get(page)
        digests = self._old_keys.get(page, {}) if live is None else live.attempt.begin.digests
        sent, agent = digest_of(key), None
        for name, digest in digests.items():
            if hmac.compare_digest(sent, digest):
                agent = name
        if agent is None:
            raise GatewayError(
                401, "this key belongs to no episode; take one from a begun episode", code="unknown_key"
            )
        if live is None or live.sealed:
            raise ended_error()
        return live, agent

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
            problem = f"agents: there is no {unknown[0]!r}; there is {', '.join(map(repr, self._agents))}"
            raise GatewayError(400, problem, code="unknown_agent")
        self._check_running()
        if task is not None:
            await self.slots.offer_own(task, mode or "train", self._settings.group_size)
        slot: EpisodeSlot | None = None
        with self._clock.deadline(max(0.0, wait)):
            while (slot := self.slots.take(task, mode)) is None and wait > 0:
                await self.slots.changed.wait()
                self._check_running()
        return None if slot is None else await self._begin(slot, who, tuple(agents) or tuple(self._agents))

    async def end(
        self, who: ClientIdentity, id: str, attempt: int, outcome: EpisodeOutcome, end_id: str = ""
    ) -> EpisodeReceipt:
        """End an episode; return once its record is on disk. The same end again returns the same receipt.

        :raises GatewayError: 403 for another client, 409 for another end, 410 if it was aborted or has expired.
        """
        check_outcome(outcome, self._agents)
        body = digest_of(msgspec.json.encode(outcome, order="deterministic").decode())
        if (slot := self.slots.slots.get(id)) is not None:
            async with slot.changing:
                if (live := self._open_attempt(slot, who, attempt)) is not None:
                    if unknown := sorted(call for call in outcome.turn_rewards if not live.has_call(call)):
                        problem = f"turn_rewards: there is no call {unknown[0]!r}"
                        raise GatewayError(400, problem, code="unknown_call")
                    if live.diverged:
                        await self._lose(slot, EpisodeState.ABORTED, live.diverged)
                        raise GatewayError(410, live.diverged, code="diverged")
                    return await self._seal(slot, live, outcome, end_id, body)
        end = await self._end_of(who, id, attempt)
        if end.receipt is None:
            raise _gone(id, end)
        if (end.end_id, end.body) != (end_id, body):
            raise GatewayError(409, f"episode {id!r} has ended with another result", code="ended_otherwise")
        return end.receipt

    async def abort(
        self, who: ClientIdentity, id: str, attempt: int, why: str = "", *, blame: bool = True
    ) -> None:
        """Give an episode up: its slot is offered again.

        :param blame: count it as a failed attempt.
        :raises GatewayError: 403 for another client, 410 if it has expired, 409 if it has ended.
        """
        if (slot := self.slots.slots.get(id)) is not None:
            async with slot.changing:
                if self._open_attempt(slot, who, attempt) is not None:
                    await self._lose(slot, EpisodeState.ABORTED, why or "aborted by its client", blame=blame)
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
        slot = self.slots.slots.get(id)
        live = None if slot is None else self._open_attempt(slot, who, attempt)
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
        await self.slots.put_reward(id, attempt, reward)

    async def calls(self, who: ClientIdentity, id: str, attempt: int) -> list[RecordedCall]:
        """Return the record of an attempt.

        :raises GatewayError: 403 for a worker that did not begin it; 404 if there is no such attempt.
        """
        return await self._store.recorded_calls(await self._attempt(who, id, attempt))

    async def set_version(self, version: int) -> None:
        """Set the version of the weights, which episodes get at their beginning."""
        self._version = version
        await self._store.commit(put_meta("version", str(version).encode()))

    def pause(self) -> None:
        """Let calls wait, while weights change."""
        if self._gate.is_set():
            self._gate = anyio.Event()

    def resume(self) -> None:
        """Let waiting calls continue."""
        self._gate.set()

    async def finish(self, finished: bool = True) -> None:
        """End the run: nothing is begun any more, and open episodes are aborted.

        :param finished: false continues it.
        """
        if self._finished is finished:
            return
        self._finished = finished
        self.resume()
        for slot in [slot for slot in self.slots.slots.values() if slot.live is not None]:
            async with slot.changing:
                if finished and slot.live is not None:
                    await self._lose(slot, EpisodeState.ABORTED, "the run is over", blame=False)
        await self._store.commit(put_meta("finished", b"1" if finished else b""), durable=True)
        self.slots.notify()

    def status(self) -> GatewayStatus:
        """Return figures of the moment."""
        return GatewayStatus(
            states=self.slots.states(),
            in_flight=sum(live.in_flight for live in self._live.values()),
            calls=sum(live.recorded for live in self._live.values()),
            version=self._version,
            held=not self._gate.is_set(),
            finished=self._finished,
        )

    async def expire(self) -> None:
        """End the episodes whose clients stayed away too long."""
        limits, now = self._settings.limits, self._clock.now()
        for slot in [slot for slot in self.slots.slots.values() if slot.live is not None]:
            if (live := slot.live) is None:
                continue
            idle = not live.in_flight and now - live.last_seen >= limits.idle_seconds
            if idle or now - live.began >= limits.total_seconds:
                why = (
                    f"no call for {limits.idle_seconds:g} s"
                    if idle
                    else f"open for {limits.total_seconds:g} s"
                )
                async with slot.changing:
                    if slot.live is live:
                        await self._lose(slot, EpisodeState.EXPIRED, why)

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
        self._next_page = page + 1
        changes = [put_meta("secret", secret)]
        end = AttemptEnd(EpisodeState.EXPIRED, "the gateway was restarted")
        for slot in self.slots.load(await self._store.live_slots(), number + 1):
            changes += [end_page(slot.page, end), slot.change()]
        for attempt in await self._store.last_attempts(_OLD_KEYS):
            self._old_keys[attempt.page] = attempt.begin.digests
        await self._store.commit(*changes, durable=True)

    async def _opened(self) -> None:
        """Wait while calls are held."""
        while not self._gate.is_set():
            await self._gate.wait()

    def _check_running(self) -> None:
        if self._finished:
            raise GatewayError(410, "the run is over", code="run_over")

    async def _begin(self, slot: EpisodeSlot, who: ClientIdentity, agents: Sequence[str]) -> BegunEpisode:
        client = who.client or self.clients.issue()
        page, self._next_page = self._next_page, self._next_page + 1
        keys = {agent: f"af_{page}_{secrets.token_urlsafe(32)}" for agent in agents}
        digests = {agent: digest_of(key) for agent, key in keys.items()}
        begin = AttemptBegin(digests, digest_of(client), self._version)
        attempt = EpisodeAttempt(page, slot.offer.id, slot.attempt + 1, begin)
        slot.state, slot.page, slot.attempt = EpisodeState.OPEN, page, attempt.number
        slot.version = self._version
        slot.live = self._live[page] = LiveEpisode(
            slot.offer,
            attempt,
            agents=self._agents,
            settings=self._settings,
            store=self._store,
            clock=self._clock,
            tasks=self._tasks,
            opened=self._opened,
        )
        with anyio.CancelScope(shield=True):
            await self._store.commit(begin_page(attempt), slot.change())
        return BegunEpisode(
            episode=slot.offer.id,
            attempt=attempt.number,
            mode=slot.offer.mode,
            task=slot.offer.task,
            base_url=self._base_url(),
            keys=keys,
            model=self._agents[agents[0]].answerer.models[0],
            version=begin.version,
            expires=self._settings.limits.idle_seconds,
            client=client,
            branch=slot.offer.branch,
        )

    def _open_attempt(self, slot: EpisodeSlot, who: ClientIdentity, number: int) -> LiveEpisode | None:
        """Return the open attempt; `None`: that attempt has ended.

        :raises GatewayError: 403 for another client.
        """
        live = slot.live
        if live is None or number != live.attempt.number or live.sealed:
            return None
        if who.role is not ClientRole.OWNER:
            _check_client(who, live.attempt)
        return live

    async def _seal(
        self, slot: EpisodeSlot, live: LiveEpisode, outcome: EpisodeOutcome, end_id: str, body: bytes
    ) -> EpisodeReceipt:
        with anyio.CancelScope(shield=True):
            receipt = await live.seal()
            self._close(slot, live)
            slot.judge(outcome)
            self.slots.number(slot)
            end = AttemptEnd(EpisodeState.SEALED, "", end_id, body, receipt, live.lost)
            await self._store.commit(slot.change(), end_page(slot.page, end), durable=True)
            self.slots.publish(slot)
            return receipt
        raise ended_error()

    async def _revoke(self, slot: EpisodeSlot, why: str) -> None:
        await self._lose(slot, EpisodeState.ABORTED, why, again=False)

    async def _lose(
        self, slot: EpisodeSlot, state: EpisodeState, why: str, *, blame: bool = True, again: bool = True
    ) -> None:
        """End the open attempt without a result. The slot is offered again, up to the limit of attempts."""
        if (live := slot.live) is None:
            return
        with anyio.CancelScope(shield=True):
            await live.seal()
            self._close(slot, live)
            if (branch := slot.offer.branch) and branch.origin and blame:
                # The next attempt is independent, and counts as the first one.
                slot.offer = structs.replace(slot.offer, branch=structs.replace(branch, origin=""))
                blame = False
            slot.failures += blame
            end = end_page(slot.page, AttemptEnd(state, why, lost=live.lost))
            if again and slot.failures < self._settings.limits.attempts:
                self.slots.enqueue(slot, first=True)
                await self._store.commit(end, slot.change())
                self.slots.notify()
            else:
                slot.state, slot.outcome = state, EpisodeOutcome(failure=why)
                self.slots.number(slot)
                await self._store.commit(end, slot.change())
                self.slots.publish(slot)

    def _close(self, slot: EpisodeSlot, live: LiveEpisode) -> None:
        """Take the keys of an attempt out of use."""
        slot.live = None
        del self._live[live.attempt.page]
        self._old_keys[live.attempt.page] = live.attempt.begin.digests
        if len(self._old_keys) > _OLD_KEYS:
            self._old_keys.popitem(last=False)

    async def _attempt(self, who: ClientIdentity, id: str, number: int) -> EpisodeAttempt:
        attempt = await self._store.attempt(id, number)
        if attempt is None:
            problem = f"there is no attempt {number} of episode {id!r}"
            raise GatewayError(404, problem, code="unknown_episode")
        if who.role is ClientRole.WORKER:
            _check_client(who, attempt)
        return attempt

    async def _end_of(self, who: ClientIdentity, id: str, number: int) -> AttemptEnd:
        """Return the end of an attempt that is not open.

        :raises GatewayError: 403 for another client, 404 if there is no such attempt, 409 if it is open.
        """
        end = (await self._attempt(who, id, number)).end
        if end is None:
            raise GatewayError(409, f"episode {id!r} has not ended", code="open")
        return end


def _gone(id: str, end: AttemptEnd) -> GatewayError:
    why = end.why or end.state
    return GatewayError(410, f"this attempt of episode {id!r} is over: {why}", code="episode_ended")


def _check_client(who: ClientIdentity, attempt: EpisodeAttempt) -> None:
    """Refuse a client that did not begin an attempt.

    :raises GatewayError: 403.
    """
    if not hmac.compare_digest(attempt.begin.client, who.digest):
        raise GatewayError(403, f"episode {attempt.slot!r} was begun by another client", code="other_client")
