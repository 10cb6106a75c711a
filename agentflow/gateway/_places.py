"""Places of episodes: in memory until a step used them, with their order, and their form in the journal."""

import sqlite3
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec import Struct, structs

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._folder_files import connect_read_only, find_file, sqlite_reason
from agentflow.errors import ConfigurationError
from agentflow.gateway._images import MAX_IMAGE_BYTES
from agentflow.gateway._store import FILE, Change, EpisodeStore, PageRow, PlaceRow, put_place
from agentflow.gateway._types import (
    EndedEpisode,
    EpisodeMode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeReceipt,
    EpisodeState,
    GatewayError,
    RecordedCall,
    check_finite,
)
from agentflow.trace import Task

if TYPE_CHECKING:
    from agentflow.gateway._live import LiveEpisode

WAITING = (EpisodeState.SEALED, EpisodeState.SCORED)
"""States of ended episodes that wait for a step."""
MOST_ENDED = 256
_LONGEST_ID = 200
_OWN = "own/"
_encode = msgspec.msgpack.Encoder().encode


class PageBegin(Struct, frozen=True):
    """First entry of a page."""

    digests: dict[str, bytes]
    client: bytes
    version: int


class PageEnd(Struct, frozen=True):
    """Last entry of a page."""

    state: str
    why: str = ""
    end_id: str = ""
    body: bytes = b""
    receipt: EpisodeReceipt | None = None
    lost: tuple[str, ...] = ()

    @classmethod
    def of(cls, page: PageRow) -> "PageEnd":
        """Return the end of a page that has one."""
        return msgspec.msgpack.decode(page.end or b"", type=cls)


def decode_calls(bodies: Iterable[bytes], end: bytes | None) -> list[RecordedCall]:
    """Return the calls of a page; those whose client left are not delivered.

    :param end: last entry of the page; `None`: its episode is open.
    """
    lost = set(msgspec.msgpack.decode(end, type=PageEnd).lost) if end else set[str]()
    calls = [msgspec.msgpack.decode(body, type=RecordedCall) for body in bodies]
    return [structs.replace(call, delivered=False) if call.id in lost else call for call in calls]


class RecordedEpisode(Struct, frozen=True, kw_only=True):
    """An episode in the journal of a gateway, with its newest attempt."""

    offer: EpisodeOffer
    """Its offer."""
    state: EpisodeState
    """Its state."""
    outcome: EpisodeOutcome | None
    """Its outcome; `None`: it has not ended."""
    calls: tuple[RecordedCall, ...]
    """Calls of the newest attempt, in order."""


def recorded_calls(folder: Path, episode: str) -> list[RecordedCall]:
    """Return the calls of an episode's newest attempt from the journal of a gateway, which may be running.

    See docs/tokens.md.

    :param folder: folder of the gateway.
    :return: empty if there is no such journal or episode.
    :raises ConfigurationError: if the journal can't be read.
    """
    found = recorded_episode(folder, episode)
    return [] if found is None else list(found.calls)


def recorded_episode(folder: Path, episode: str) -> RecordedEpisode | None:
    """Return an episode from the journal of a gateway, which may be running; `None`: there is no such journal or episode.

    See docs/exports.md.

    :param folder: folder of the gateway.
    :raises ConfigurationError: if the journal can't be read.
    """
    with _journal(folder) as reader:
        if reader is None:
            return None
        place = reader.execute("SELECT offer, state, outcome FROM places WHERE id = ?", (episode,)).fetchone()
        if place is None:
            return None
        newest = "SELECT page, end FROM pages WHERE place = ? ORDER BY attempt DESC LIMIT 1"
        page, end = reader.execute(newest, (episode,)).fetchone() or (None, None)
        bodies = reader.execute("SELECT body FROM calls WHERE page = ? ORDER BY number", (page,))
        offer, state, outcome = place
        return RecordedEpisode(
            offer=msgspec.msgpack.decode(offer, type=EpisodeOffer),
            state=EpisodeState(state),
            outcome=None if outcome is None else msgspec.msgpack.decode(outcome, type=EpisodeOutcome),
            calls=tuple(decode_calls((body for (body,) in bodies), end)),
        )


def recorded_ids(folder: Path) -> list[str]:
    """Return the ids of all episodes in the journal of a gateway, in the order of their offers.

    See docs/exports.md.

    :param folder: folder of the gateway.
    :return: empty if there is no such journal.
    :raises ConfigurationError: if the journal can't be read.
    """
    with _journal(folder) as reader:
        return (
            [] if reader is None else [id for (id,) in reader.execute("SELECT id FROM places ORDER BY rowid")]
        )


@contextmanager
def _journal(folder: Path) -> Generator[sqlite3.Connection | None]:
    """Yield the journal of a gateway for reading; `None`: there is none.

    :raises ConfigurationError: if it can't be read.
    """
    path = folder / FILE
    try:
        with closing(connect_read_only(find_file(path, folder.parent))) as reader:
            yield reader
    except FileNotFoundError:
        yield None
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from None
    except (sqlite3.Error, TypeError) as error:
        raise ConfigurationError(f"{path}: can't be read: {sqlite_reason(error)}") from None
    except DECODE_ERRORS as error:
        raise ConfigurationError(f"{path}: a record is damaged: {decode_reason(error)}") from None


def recorded_image(folder: Path, hash: str) -> bytes:
    """Return an image of a recorded call from the journal of a gateway, which may be running. See docs/gateway.md.

    :param folder: folder of the gateway.
    :param hash: SHA-256 of the image: the data of an image part in `RecordedCall.messages`.
    :raises KeyError: if the journal has no such image.
    """
    path = folder / FILE
    try:
        with closing(connect_read_only(find_file(path, folder.parent))) as reader:
            # The journal may be a stranger's.
            query = "SELECT data FROM images WHERE hash = ? AND typeof(data) = 'blob' AND length(data) <= ?"
            [data] = reader.execute(query, (hash, MAX_IMAGE_BYTES)).fetchone()
            return data
    except (OSError, sqlite3.Error, TypeError):
        raise KeyError(hash) from None


class Place:
    """A place that no step used yet, with its newest attempt."""

    def __init__(self, offer: EpisodeOffer) -> None:
        self.offer = offer
        self.state = EpisodeState.OFFERED
        self.attempt = 0
        self.failures = 0
        self.page = 0
        self.number = 0
        self.step = 0
        self.version = 0
        self.outcome: EpisodeOutcome | None = None
        self.live: LiveEpisode | None = None
        self.client = b""
        self.changing = anyio.Lock()

    def change(self) -> Change:
        """Return the statement that stores it."""
        outcome = None if self.outcome is None else _encode(self.outcome)
        position = (self.attempt, self.failures, self.page, self.number, self.step, self.version)
        return put_place(PlaceRow(self.offer.id, _encode(self.offer), self.state.value, *position, outcome))

    @classmethod
    def of(cls, row: PlaceRow) -> "Place":
        """Return the place of a row."""
        place = cls(offer_of(row))
        place.state = EpisodeState(row.state)
        place.attempt, place.failures, place.page = row.attempt, row.failures, row.page
        place.number, place.step, place.version = row.number, row.step, row.version
        if row.outcome is not None:
            place.outcome = msgspec.msgpack.decode(row.outcome, type=EpisodeOutcome)
        return place

    def judge(self, outcome: EpisodeOutcome) -> None:
        """Set its outcome; it is scored by a reward or a failure."""
        scored = outcome.reward is not None or outcome.failure
        self.outcome = outcome
        self.state = EpisodeState.SCORED if scored else EpisodeState.SEALED

    def report(self) -> EndedEpisode:
        """Return it as the trainer collects it."""
        return EndedEpisode(
            number=self.number,
            offer=self.offer,
            attempt=self.attempt,
            state=self.state,
            outcome=self.outcome or EpisodeOutcome(),
            version=self.version,
        )


class PlaceBook:
    """All places that are neither used nor dropped: by id, those that wait for a client, and those that ended."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        """Places by id."""
        self.next_number = 1
        """Number of the next end."""
        self.done: Counter[str] = Counter()
        """Number of places that were used or dropped, since the start of this process."""
        self.changed = anyio.Event()
        """Set at the next change of a state."""
        self._free: dict[str, OrderedDict[str, None]] = {}
        self._ended: dict[int, str] = {}

    def load(self, rows: Iterable[PlaceRow]) -> list[Place]:
        """Restore the places of the journal; return those that were open."""
        was_open: list[Place] = []
        for row in rows:
            place = self.places[row.id] = Place.of(row)
            if place.state is EpisodeState.OPEN:
                was_open.append(place)
                place.state = EpisodeState.OFFERED
            if place.state is EpisodeState.OFFERED:
                self.set_free(place)
            else:
                self._ended[place.number] = row.id
        self._ended = dict(sorted(self._ended.items()))
        return was_open

    def notify(self) -> None:
        """Wake everybody who waits for a change."""
        self.changed.set()
        self.changed = anyio.Event()

    def set_free(self, place: Place, *, first: bool = False) -> None:
        """Let a place be begun."""
        place.state = EpisodeState.OFFERED
        queue = self._free.setdefault(_queue_of(place.offer), OrderedDict())
        queue[place.offer.id] = None
        queue.move_to_end(place.offer.id, last=not first)

    def take(self, task: Task | None, mode: EpisodeMode | None) -> Place | None:
        """Take the next place that waits: of a client's own task, or of any."""
        # Validation first: a step waits for it.
        modes = [kind for kind in ("validate", "train") if mode in (None, kind)]
        for name in modes if task is None else [f"{_OWN}{task.id}"]:
            queue = self._free.get(name)
            if queue:
                id, _ = queue.popitem(last=False)
                if not queue:
                    del self._free[name]
                return self.places[id]
        return None

    def waiting(self) -> list[str]:
        """Return the ids of places that nobody has begun."""
        return [id for id, place in self.places.items() if place.state is EpisodeState.OFFERED]

    def number(self, place: Place) -> None:
        """Give an end its number, the next one; the trainer finds it once it is published."""
        self._ended.pop(place.number, None)
        place.number, self.next_number = self.next_number, self.next_number + 1

    def publish(self, place: Place) -> None:
        """Let the trainer collect an end."""
        self._ended[place.number] = place.offer.id
        self.notify()

    def is_published(self, place: Place) -> bool:
        """Return true if the trainer can collect its end."""
        return place.number in self._ended

    def retry(self, place: Place) -> None:
        """Offer a place again that failed for good."""
        self._ended.pop(place.number, None)
        place.failures, place.outcome = 0, None
        self.set_free(place)

    def after(self, number: int) -> list[Place]:
        """Return the next published ends in the order of their numbers; at most 256."""
        found = [id for one, id in self._ended.items() if one > number]
        return [self.places[id] for id in found[:MOST_ENDED]]

    def use(self, place: Place, step: int) -> None:
        """Leave a place to a step."""
        place.state, place.step = EpisodeState.USED, step
        self._forget(place)

    def drop(self, ids: Iterable[str], why: str) -> list[Change]:
        """Leave places out for good; return the statements that store it."""
        changes: list[Change] = []
        for id in ids:
            place = self.places[id]
            if (queue := self._free.get(name := _queue_of(place.offer))) is not None:
                queue.pop(id, None)
                if not queue:
                    del self._free[name]
            place.outcome = structs.replace(place.outcome or EpisodeOutcome(), failure=f"dropped: {why}")
            place.state = EpisodeState.DROPPED
            self._forget(place)
            changes.append(place.change())
        return changes

    def states(self) -> dict[str, int]:
        """Count the places by state."""
        return dict(
            sorted((Counter(place.state.value for place in self.places.values()) + self.done).items())
        )

    async def own_group(self, task: Task, mode: EpisodeMode, size: int, store: EpisodeStore) -> list[Place]:
        """Return new places for a client's own task, the first time.

        :raises GatewayError: 409 if the id is another task's, or all its episodes were played.
        """
        check_id("task.id", task.id)
        check_storable("task", task)
        ids = [f"{_OWN}{task.id}/{member}" for member in range(size if mode == "train" else 1)]
        row = None if ids[0] in self.places else await store.place(ids[0])
        if row is None and ids[0] not in self.places:
            offers = [
                EpisodeOffer(id=id, group=f"{_OWN}{task.id}", task=task, mode=mode, seed=id) for id in ids
            ]
            return [Place(offer) for offer in offers]
        offer = offer_of(row) if row is not None else self.places[ids[0]].offer
        if offer.task != task or offer.mode != mode:
            told = f"task.id: {task.id!r} is another task already; give each its own id"
            raise GatewayError(409, told, code="other_task")
        members = [place for id in ids if (place := self.places.get(id)) is not None]
        if not any(place.state in (EpisodeState.OFFERED, EpisodeState.OPEN) for place in members):
            told = f"task.id: all episodes of {task.id!r} were played; give each task its own id"
            raise GatewayError(409, told, code="complete")
        return []

    def _forget(self, place: Place) -> None:
        self._ended.pop(place.number, None)
        del self.places[place.offer.id]
        self.done[place.state.value] += 1


def offer_of(row: PlaceRow) -> EpisodeOffer:
    """Return the offer of a stored place."""
    return msgspec.msgpack.decode(row.offer, type=EpisodeOffer)


def check_id(name: str, id: str, *, own: bool = True) -> None:
    """Refuse ids that can't be printed, or are reserved.

    :raises GatewayError: 400.
    """
    if not id or not id.isprintable() or len(id) > _LONGEST_ID:
        told = f"{name}: {id[:40]!r} can't be used; write 1 to {_LONGEST_ID} visible characters"
        raise GatewayError(400, told, code="bad_id")
    if not own and id.startswith(_OWN):
        told = f"{name}: {id[:40]!r} begins with {_OWN}, which names tasks of clients; write another id"
        raise GatewayError(400, told, code="bad_id")


def check_storable(name: str, value: object) -> None:
    """Refuse values that the journal can't store.

    :raises GatewayError: 400.
    """
    try:
        _encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError) as error:
        raise GatewayError(
            400, f"{name}: can't be stored ({error}); change it", code="not_storable"
        ) from None


def check_outcome(outcome: EpisodeOutcome, agents: Mapping[str, object]) -> None:
    """Refuse rewards that are not finite, or of unknown agents.

    :raises GatewayError: 400.
    """
    check_finite(outcome)
    rewards = outcome.reward if isinstance(outcome.reward, dict) else {}
    if unknown := sorted(rewards.keys() - agents.keys()):
        known = ", ".join(map(repr, agents))
        told = f"reward: there is no agent {unknown[0]!r}; there is {known}"
        raise GatewayError(400, told, code="unknown_agent")


def _queue_of(offer: EpisodeOffer) -> str:
    return offer.id.rpartition("/")[0] if offer.id.startswith(_OWN) else offer.mode
