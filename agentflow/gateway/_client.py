"""Client of the swarm API, for programs that play episodes and for trainers."""

import secrets
from collections.abc import Sequence
from io import BytesIO
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import structs

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._http_client import MAX_ANSWER_BYTES, open_session, read_answer
from agentflow._terminal import printable
from agentflow.actors import SYSTEM_CLOCK, Backoff, Clock
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.gateway._types import (
    CLIENT_HEADER,
    MAX_WAIT,
    AliveAnswer,
    AttemptRequest,
    BeginRequest,
    BegunEpisode,
    EndedEpisode,
    EndRequest,
    EpisodeMode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeReceipt,
    ErrorAnswer,
    GatewayError,
    GatewayStatus,
    HoldRequest,
    OffersRequest,
    OwnTask,
    RecordedCall,
    RewardRequest,
    ScoreRequest,
    UseRequest,
    VersionRequest,
    WithdrawRequest,
    check_finite,
)
from agentflow.trace import Task

T = TypeVar("T")

_BACKOFF = Backoff(initial=0.05, maximum=2.0)
_REQUEST_SECONDS = 60.0
_LARGE_BYTES = 1 << 20
_MAX_RECORD_BYTES = 512 << 20
"""Maximum size of a record: the gateway bounds it by `recorded_bytes`, and JSON is longer."""


class _Recorded(msgspec.Struct):
    calls: list[RecordedCall]


class GatewayClient:
    """Client of a gateway's swarm API, used inside `async with`. See docs/swarm.md.

    Requests are repeated while the gateway does not answer, as during its restart: each has the same effect when it is
    repeated.

    Example::

        async with GatewayClient("http://127.0.0.1:18900", token) as client:
            while (begun := await client.begin(wait=30)) is not None:
                answer = await play(begun.task, begun.base_url, begun.keys[""])
                await client.end(begun, EpisodeOutcome(answer=answer))
    """

    def __init__(
        self, url: str, token: str, *, patience: float = 60.0, client: str = "", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Make a client.

        :param url: address of the gateway, without `/v1`.
        :param token: token of a role.
        :param patience: seconds for which an unreachable gateway is retried.
        :param client: id of an earlier client, to continue its episodes; empty: the gateway issues one.
        """
        if not token.isascii() or not token.isprintable():
            raise ConfigurationError("token: it has characters that a header can't carry; copy it again")
        self._url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._patience = patience
        self._clock = clock
        self._session: aiohttp.ClientSession
        self.client = client
        """Id that the gateway issued to this client; empty before its first episode."""

    async def __aenter__(self) -> Self:
        # The number of requests is limited by those who send them.
        connector = aiohttp.TCPConnector(limit=0)
        self._session = open_session(connector=connector, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def begin(
        self,
        task: Task | None = None,
        *,
        mode: EpisodeMode | None = None,
        agents: Sequence[str] = (),
        wait: float = 0.0,
    ) -> BegunEpisode | None:
        """Begin the next episode; `None`: there is nothing now.

        :param task: a task of your own, with a unique id; by default the gateway gives one.
        :param mode: use of the episode; `None`: any.
        :param agents: agents that get keys; empty: all.
        :param wait: seconds to wait for an episode, at most 60.
        :raises RunStopped: if the run is over.
        :raises GatewayError: if the request is refused.
        """
        own_task = None
        if task is not None:
            own_task = OwnTask(
                id=task.id,
                question=task.question,
                references=task.references,
                kwargs=task.kwargs,
                metadata=task.metadata,
            )
        request = BeginRequest(task=own_task, mode=mode, agents=tuple(agents), wait=min(wait, MAX_WAIT))
        content = await self._send("POST", "/swarm/episodes", request, wait=wait)
        if not content:
            return None
        begun = _decode(content, BegunEpisode)
        # Episodes that are begun at once before that have ids of their own.
        self.client = self.client or begun.client
        return begun

    async def end(self, begun: BegunEpisode, outcome: EpisodeOutcome, end_id: str = "") -> EpisodeReceipt:
        """End an episode. With a receipt it is on disk.

        :param end_id: name of this end: with the same one, the same end gets the same receipt; empty: a random one.
        :raises GatewayError: if the attempt is over (410), has ended otherwise (409), or the outcome can't be used (400).
        """
        check_finite(outcome)
        end_id = end_id or secrets.token_urlsafe(12)
        request = EndRequest(attempt=begun.attempt, end_id=end_id, **structs.asdict(outcome))
        return await self._ask(
            "POST", _path(begun.episode, "end"), EpisodeReceipt, request, client=begun.client
        )

    async def abort(self, begun: BegunEpisode, why: str = "") -> None:
        """Give an episode up; another client may begin it again."""
        request = AttemptRequest(attempt=begun.attempt, why=why)
        await self._ask("POST", _path(begun.episode, "abort"), dict[str, str], request, client=begun.client)

    async def alive(self, begun: BegunEpisode) -> float:
        """Keep an episode from expiring; return the seconds after which it does.

        :raises GatewayError: if the attempt is over (410).
        """
        request = AttemptRequest(attempt=begun.attempt)
        return (
            await self._ask("POST", _path(begun.episode, "alive"), AliveAnswer, request, client=begun.client)
        ).expires

    async def put_reward(
        self, episode: BegunEpisode | EndedEpisode, reward: float | dict[str, float]
    ) -> None:
        """Set or replace the reward of an ended episode, until a step uses it.

        :raises GatewayError: if it has not ended or was used (409).
        """
        check_finite(EpisodeOutcome(reward=reward))
        request = RewardRequest(attempt=episode.attempt, reward=reward)
        await self._ask(
            "PUT", _path(_episode_id(episode), "reward"), dict[str, str], request, client=_client_of(episode)
        )

    async def tokens(self, episode: BegunEpisode | EndedEpisode) -> list[RecordedCall]:
        """Return the record of an episode so far, with exact tokens."""
        path = f"{_path(_episode_id(episode), 'tokens')}?attempt={episode.attempt}"
        content = await self._send("GET", path, client=_client_of(episode), max_bytes=_MAX_RECORD_BYTES)
        return _decode(content, _Recorded).calls

    async def status(self) -> GatewayStatus:
        """Return figures of the moment."""
        return await self._ask("GET", "/swarm/status", GatewayStatus)

    async def offer(self, offers: Sequence[EpisodeOffer], *, only: bool = False) -> None:
        """Offer places for episodes. An ended one that no step used is reported again by `ended`.

        :param only: drop the other places that nobody has begun.
        :raises GatewayError: if one was used or dropped (409).
        """
        await self._ask(
            "POST", "/swarm/offers", dict[str, str], OffersRequest(offers=tuple(offers), only=only)
        )

    async def ended(self, after: int = 0, wait: float = 0.0) -> list[EndedEpisode]:
        """Return ended episodes that no step used, in the order of their numbers, at most 256 at once.

        :param after: number of the last known one.
        :param wait: seconds to wait for one, at most 60.
        """
        seconds = min(MAX_WAIT, max(0.0, wait))
        path = f"/swarm/ended?after={after}&wait={round(seconds)}"
        return await self._ask("GET", path, list[EndedEpisode], wait=seconds)

    async def calls(self, episode: str, attempt: int) -> list[RecordedCall]:
        """Return the record of an attempt."""
        path = f"{_path(episode, 'calls')}?attempt={attempt}"
        content = await self._send("GET", path, max_bytes=_MAX_RECORD_BYTES)
        return _decode(content, list[RecordedCall], packed=True)

    async def score(self, episode: str, attempt: int, outcome: EpisodeOutcome) -> None:
        """Give an ended episode its outcome.

        :raises GatewayError: if it has not ended or was used (409).
        """
        check_finite(outcome)
        request = ScoreRequest(attempt=attempt, outcome=outcome)
        await self._ask("POST", _path(episode, "score"), dict[str, str], request)

    async def use(self, ids: Sequence[str], step: int) -> None:
        """Mark episodes as used by a step. The same step again changes nothing.

        :raises GatewayError: if another step has used one (409); then none is changed.
        """
        await self._ask("POST", "/swarm/use", dict[str, str], UseRequest(ids=tuple(ids), step=step))

    async def withdraw(self, ids: Sequence[str], why: str = "stale") -> None:
        """Drop places in any state but used; unknown ones are ignored."""
        await self._ask("POST", "/swarm/withdraw", dict[str, str], WithdrawRequest(ids=tuple(ids), why=why))

    async def set_version(self, version: int) -> None:
        """Set the version of the weights, which episodes get at their beginning."""
        await self._ask("PUT", "/swarm/version", dict[str, str], VersionRequest(version=version))

    async def hold(self) -> None:
        """Let calls wait, while weights change."""
        await self._ask("PUT", "/swarm/hold", dict[str, str], HoldRequest(held=True))

    async def go_on(self) -> None:
        """Let waiting calls continue."""
        await self._ask("PUT", "/swarm/hold", dict[str, str], HoldRequest(held=False))

    async def finish(self) -> None:
        """End the run: clients are told that it is over."""
        await self._ask("POST", "/swarm/finish", dict[str, str])

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: object | None = None,
        *,
        wait: float = 0.0,
        client: str = "",
    ) -> T:
        return _decode(await self._send(method, path, body, wait=wait, client=client), kind)

    async def _send(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        wait: float = 0.0,
        client: str = "",
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """Send a request until the gateway answers; return the body of the answer."""
        client = client or self.client
        headers = {CLIENT_HEADER: client} if client else {}
        payload = None if body is None else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS + wait, sock_connect=10)
        since, failures = self._clock.now(), 0
        while True:
            try:
                # Large bodies are sent in pieces.
                data = payload if payload is None or len(payload) < _LARGE_BYTES else BytesIO(payload)
                async with self._session.request(
                    method, self._url + path, data=data, headers=headers, timeout=timeout
                ) as answer:
                    status, content = answer.status, await read_answer(answer, max_bytes)
                    retry_after = answer.headers.get("Retry-After")
            except ValueError as refused:
                # Also an id of the gateway's that no header can carry.
                raise GatewayError(502, f"{self._url}: {refused}") from None
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                reason = str(error) or type(error).__name__
            else:
                if status < 300:
                    return content
                if status != 503:
                    raise _error_of(status, content, retry_after)
                reason = _error_of(status, content, retry_after).message
            failures += 1
            if self._clock.now() - since >= self._patience:
                message = f"{self._url} gives no answer for {self._patience:g} s ({reason}); start the gateway, then run the same command again"
                raise RunStopped(StopCause.MODEL, message)
            await self._clock.sleep(_BACKOFF.delay(failures))


def _decode(content: bytes, kind: type[T], *, packed: bool = False) -> T:
    try:
        return (
            msgspec.msgpack.decode(content, type=kind) if packed else msgspec.json.decode(content, type=kind)
        )
    except DECODE_ERRORS as error:
        raise GatewayError(
            502,
            f"the gateway's answer can't be read ({decode_reason(error)}); does the address belong to another program?",
        ) from None


def _error_of(status: int, content: bytes, retry_after: str | None) -> GatewayError:
    """Return the error of a refusal.

    :raises RunStopped: if the run is over.
    """
    try:
        detail = msgspec.json.decode(content, type=ErrorAnswer).error
    except DECODE_ERRORS:
        text = " ".join(content.decode(errors="replace").split())[:200]
        return GatewayError(status, printable(f"the gateway answered {status}: {text}"))
    message = printable(" ".join(detail.message.split()))
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    if detail.code == "run_over":
        raise RunStopped(StopCause.INTERRUPTED, message)
    return GatewayError(status, message, code=detail.code, retry_after=seconds)


def _episode_id(episode: BegunEpisode | EndedEpisode) -> str:
    return episode.episode if isinstance(episode, BegunEpisode) else episode.offer.id


def _client_of(episode: BegunEpisode | EndedEpisode) -> str:
    return episode.client if isinstance(episode, BegunEpisode) else ""


def _path(episode: str, action: str) -> str:
    return f"/swarm/episodes/{quote(episode, safe='')}/{action}"
