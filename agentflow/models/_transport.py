"""Transports to an endpoint: a pool of HTTP connections, the replicas of a model, or LiteLLM's library in this process."""

import io
import os
import sys
import time
import urllib.request
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import anyio
import msgspec
from msgspec import structs

from agentflow._decoding import DECODE_ERRORS
from agentflow._http_client import AnswerRefused, AnswerTooLarge, answer_lines, open_session, read_answer
from agentflow._secrets import remember_secrets
from agentflow.actors import Clock, Hosted
from agentflow.errors import ConfigurationError, ModelFailureKind, RunStopped
from agentflow.extras import missing_extra
from agentflow.models._apis import EncodedRequest
from agentflow.models._apis._api import bearer
from agentflow.models._providers import ModelAddress, is_loopback
from agentflow.models._request_error import RequestError, error_of_response, timed_out
from agentflow.telemetry import get_logger

if TYPE_CHECKING:
    import aiohttp
    from openai import APIError
    from yarl import URL

    from agentflow.journal import Replica, ReplicaTable

logger = get_logger(__name__)

IDLE_SECONDS = 4.0
"""Lifetime of an idle connection. It is shorter than the five seconds of Uvicorn and vLLM: a request on a connection that
the server just closed fails."""
_LARGE = 1024 * 1024
_MAX_ERROR_BYTES = 1024 * 1024
_PATIENCE = 5.0
_BLOCK_BYTES = 128
_FINE_BYTES = 16_384
"""Blocks grow up to this length: short ones first, so that conversations that share a beginning still differ early."""
_MAX_PROMPTS = 65_536
_SLACK = 4


class HttpTransport:
    """Pool of connections to one endpoint."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        max_concurrency: int,
        *,
        max_bytes: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Describe the pool; it is opened by `async with`.

        :param headers: headers of every request.
        :param max_concurrency: maximum number of concurrent requests.
        :param max_bytes: maximum size of an answer.
        :param wall: time of day, for endpoints that send a date in `Retry-After`.
        """
        self._url = url
        self._headers = headers
        self._max_concurrency = max_concurrency
        self._max_bytes = max_bytes
        self._wall = wall
        self._session: aiohttp.ClientSession | None = None
        self._targets: dict[str, URL] = {}

    async def __aenter__(self) -> Self:
        import aiohttp
        from yarl import URL

        headers = {"Content-Type": "application/json", "User-Agent": "agentflow", **self._headers}
        self._session = open_session(
            connector=aiohttp.TCPConnector(limit=self._max_concurrency + 1, keepalive_timeout=IDLE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            proxy=_proxy_for(URL(self._url)),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, request: EncodedRequest, seconds: float) -> bytes:
        """Send one request and return the body of the answer.

        :raises RequestError: if there is no answer, or its status is not 200.
        """
        if self._session is None:
            raise RuntimeError("a model must be used inside `async with`")
        import aiohttp
        from yarl import URL

        # aiohttp warns about large bodies that are not files.
        data = request.body if len(request.body) < _LARGE else io.BytesIO(request.body)
        timeout = aiohttp.ClientTimeout(total=seconds)
        target = self._targets.get(request.path)
        if target is None:
            whole = request.path if "://" in request.path else self._url + request.path
            target = self._targets[request.path] = URL(whole)
        try:
            async with self._session.post(
                target, data=data, headers=request.headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                return await self._answer(response, request.on_line)
        except TimeoutError:
            raise timed_out() from None
        except (aiohttp.ClientError, OSError) as error:
            # The library's messages contain addresses and ports, which differ from run to run.
            message = f"no answer: {_name_of(error)}"
            unreachable = isinstance(error, aiohttp.ClientConnectorError)
            raise RequestError(
                ModelFailureKind.UNAVAILABLE, message, retry=True, unreachable=unreachable
            ) from error

    async def _answer(
        self, response: "aiohttp.ClientResponse", on_line: Callable[[bytes], None] | None
    ) -> bytes:
        try:
            if on_line is None:
                return await read_answer(response, self._max_bytes)
            async with aclosing(answer_lines(response, self._max_bytes)) as lines:
                async for line in lines:
                    on_line(line)
            return b""
        except AnswerRefused as refused:
            remedy = "; raise response_bytes if it may be" if isinstance(refused, AnswerTooLarge) else ""
            raise RequestError(ModelFailureKind.UNAVAILABLE, f"{refused}{remedy}", status=200) from None

    async def _refusal(self, response: "aiohttp.ClientResponse") -> RequestError:
        """Return the error for an answer with another status; its text is left out if it can't be read."""
        try:
            body = await read_answer(response, _MAX_ERROR_BYTES)
        except AnswerRefused:
            body = b""
        return error_of_response(response.status, response.headers, body, self._wall())


def _proxy_for(target: "URL") -> str | None:
    """Return the proxy for a host from the environment; looked up once, where aiohttp would do it for each request."""
    host = target.host or ""
    if is_loopback(str(target)) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(target.scheme)


def _name_of(error: BaseException) -> str:
    """Describe an error: by the operating system's message if there is one, else by its class."""
    import aiohttp

    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)
    return "no connection" if isinstance(error, aiohttp.ClientConnectorError) else type(error).__name__


class _ReplicaConnection:
    """Connections to one replica, its calls, and the prompts that it has in its prefix cache."""

    def __init__(self, replica: "Replica", max_concurrency: int, max_bytes: int) -> None:
        self.replica = replica
        self._name = blake2b(replica.url.encode(), digest_size=16).digest()
        self.transport = HttpTransport(replica.url, bearer(replica.key), max_concurrency, max_bytes=max_bytes)
        self.failed = False
        """It failed since the last reading of the table."""
        self._read: OrderedDict[bytes, None] = OrderedDict()
        self._calls: set[anyio.CancelScope] = set()

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    async def post(self, request: EncodedRequest, seconds: float) -> bytes:
        """Send one request.

        :raises RequestError: also if the replica's lease ends first.
        """
        with anyio.CancelScope() as call:
            self._calls.add(call)
            try:
                return await self.transport.post(request, seconds)
            finally:
                self._calls.discard(call)
        raise RequestError(ModelFailureKind.UNAVAILABLE, "no answer: its lease has ended", retry=True)

    def rank(self, prompt: "_Prompt") -> tuple[int, bytes]:
        """Return how well a prompt fits: the number of its blocks that are an earlier prompt, then a hash (rendezvous hashing)."""
        blocks = prompt.blocks
        read = next((count for count in range(len(blocks), 0, -1) if blocks[count - 1] in self._read), 0)
        return read, blake2b(prompt.whole, key=self._name, digest_size=8).digest()

    def learn(self, prompt: "_Prompt") -> None:
        """Remember a prompt that is sent to it."""
        for last in prompt.blocks[-1:]:
            self._read[last] = None
            self._read.move_to_end(last)
        while len(self._read) > _MAX_PROMPTS:
            self._read.popitem(last=False)

    async def close(self) -> None:
        """End the calls in flight, which are made again elsewhere, and close the connections."""
        for call in tuple(self._calls):
            call.cancel()
        await self.transport.__aexit__()


class ReplicaTransport:
    """Spreads the requests to a model over its live replicas. See docs/scaling.md.

    A prompt that continues an earlier one goes to the replica that read it, any other to one that its hash selects: in all
    processes the same. A replica with many more calls in flight than the least busy one is left out. If a replica fails, the
    request is sent to the next one at once.
    """

    def __init__(self, address: ModelAddress, max_concurrency: int, clock: Clock) -> None:
        """Describe it; the table is opened by `async with`."""
        self._address = address
        self._max_concurrency = max_concurrency
        self._clock = clock
        self._connections: dict[Replica, _ReplicaConnection] = {}
        self._table: ReplicaTable
        self._lock = anyio.Lock()
        self._reads = 0
        self._followed = Hosted(self._follow)

    async def __aenter__(self) -> Self:
        await self._followed.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._followed.close()

    @asynccontextmanager
    async def _follow(self) -> AsyncGenerator[None]:
        """Follow the table while a block runs."""
        from agentflow.journal import open_replicas  # loads the database

        async with open_replicas(self._address.registry, patience=_PATIENCE) as self._table:
            await self.refresh()
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._refresh_often)
                    yield
                    tasks.cancel_scope.cancel()
            finally:
                for connection in self._connections.values():
                    await connection.close()
                self._connections.clear()

    async def post(self, request: EncodedRequest, seconds: float) -> bytes:
        """Send one request and return the body of the answer.

        :raises RequestError: if no replica answers, or the status is not 200.
        """
        deadline = self._clock.now() + seconds
        path = request.path.removeprefix(self._address.url)
        on_server = path != request.path
        prompt = _prompt_of(request.body)
        failure: RequestError | None = None
        tried: set[_ReplicaConnection] = set()
        if not self._connections:
            await self.refresh()
        while (chosen := self._choose(prompt, tried)) is not None:
            if (left := deadline - self._clock.now()) <= 0:
                raise failure or timed_out()
            chosen.learn(prompt)
            base = chosen.replica.url.removesuffix("/v1") if on_server else chosen.replica.url
            try:
                return await chosen.post(structs.replace(request, path=base + path), left)
            except RequestError as error:
                if not _fails_replica(error):
                    raise
                failure = error
            logger.warning("a model replica failed", replica=chosen.replica.url, problem=str(failure))
            tried.add(chosen)
            chosen.failed = True
            # It may have a new key, or be gone.
            await self.refresh()
        raise failure or RequestError(
            ModelFailureKind.UNAVAILABLE,
            f"no replica of {self._address.model} is registered",
            retry=True,
            unreachable=True,
        )

    async def refresh(self) -> None:
        """Read the table; if it can't be read, the known replicas are kept."""
        before = self._reads
        async with self._lock:
            if self._reads > before:
                # Another caller has begun to read it since.
                return
            self._reads += 1
            try:
                replicas = await self._table.live(self._address.model)
            except RunStopped as stopped:
                logger.warning("the table of model replicas can't be read", problem=str(stopped))
                return
            live = {replica._replace(weights=0) for replica in replicas if replica.problem is None}
            for replica in self._connections.keys() - live:
                await self._connections.pop(replica).close()
            for replica in sorted(live - self._connections.keys()):
                remember_secrets(replica.key, "key")
                connection = _ReplicaConnection(replica, self._max_concurrency, self._address.response_bytes)
                await connection.transport.__aenter__()
                self._connections[replica] = connection

    def _choose(self, prompt: "_Prompt", tried: Collection[_ReplicaConnection]) -> _ReplicaConnection | None:
        left = [connection for connection in self._connections.values() if connection not in tried]
        left = [connection for connection in left if not connection.failed] or left
        if not left:
            return None
        least = min(connection.in_flight for connection in left)
        bound = least + max(_SLACK, least // 4)
        return max(
            (connection for connection in left if connection.in_flight <= bound),
            key=lambda connection: connection.rank(prompt),
        )

    async def _refresh_often(self) -> None:
        from agentflow.journal import REFRESH_SECONDS

        while True:
            # Less than that, because a reading takes time, too.
            await self._clock.sleep(REFRESH_SECONDS / 2)
            await self.refresh()
            for connection in self._connections.values():
                connection.failed = False


class _PromptFields(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


class _Prompt(NamedTuple):
    """Hashes of a prompt."""

    blocks: Sequence[bytes]
    """Hash of each beginning that is a number of whole blocks."""
    whole: bytes


def _prompt_of(body: bytes) -> _Prompt:
    """Return the hashes of the prompt in a request; of an unknown shape, of the whole request."""
    try:
        fields = msgspec.json.decode(body, type=_PromptFields)
        text = bytes(fields.messages) or bytes(fields.token_ids) or bytes(fields.prompt) or body
    except DECODE_ERRORS:
        text = body
    # A longer conversation has more before the closing bracket.
    text = text[:-1]
    blocks: list[bytes] = []
    so_far = blake2b(digest_size=8)
    start = 0
    while (end := start + (_BLOCK_BYTES if start < _FINE_BYTES else _FINE_BYTES)) <= len(text):
        so_far.update(text[start:end])
        blocks.append(so_far.digest())
        start = end
    so_far.update(text[start:])
    return _Prompt(blocks, so_far.digest())


def _fails_replica(error: RequestError) -> bool:
    """Return true if another replica may answer: after a lost connection, a server error, or a refused key."""
    if error.status:
        return error.status >= 500 or error.status == 401
    return error.kind is ModelFailureKind.UNAVAILABLE


class _Answer(Protocol):
    def model_dump_json(self, *, warnings: bool) -> str: ...


class _Library(Protocol):
    suppress_debug_info: bool

    async def acompletion(self, **params: Any) -> _Answer: ...  # noqa: ANN401 - whatever a request says


def need_litellm() -> None:
    """Check that LiteLLM is installed.

    :raises ConfigurationError: if it is not.
    """
    if find_spec("litellm") is None:
        raise ConfigurationError(missing_extra("model litellm/…", "litellm"))


class LiteLlmTransport:
    """Transport that sends requests of OpenAI's API through LiteLLM to any provider it knows."""

    def __init__(self, key: str) -> None:
        """Describe the transport; the library is loaded by `async with`.

        :param key: key of the provider; if empty, the library takes it from the environment.
        """
        self._key = key
        self._library: _Library | None = None

    async def __aenter__(self) -> Self:
        self._library = await anyio.to_thread.run_sync(_load)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._library = None

    async def post(self, request: EncodedRequest, seconds: float) -> bytes:
        """Send one request and return the body of the answer; LiteLLM derives the address from the model's name.

        :raises RequestError: if there is no answer, or an error.
        """
        if self._library is None:
            raise RuntimeError("a model must be used inside `async with`")
        from openai import APIConnectionError, APIError, APITimeoutError

        params: dict[str, Any] = {"num_retries": 0, "max_retries": 0, "timeout": seconds}
        params |= {"api_key": self._key} if self._key else {}
        try:
            answer = await self._library.acompletion(**params, **msgspec.json.decode(request.body))
        except APITimeoutError:
            raise timed_out() from None
        except APIConnectionError as error:
            raise RequestError(ModelFailureKind.UNAVAILABLE, "no answer", retry=True) from error
        except APIError as error:
            raise _request_error(error) from None
        return answer.model_dump_json(warnings=False).encode()


def _load() -> _Library:
    if "litellm" not in sys.modules:
        # Without this, it fetches a list of prices from the network.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    module: Any = import_module("litellm")
    library: _Library = module
    # It prints debugging advice.
    library.suppress_debug_info = True
    return library


def _request_error(error: "APIError") -> RequestError:
    status: int = getattr(error, "status_code", None) or 500
    response: object = getattr(error, "response", None)
    headers: Mapping[str, str] = getattr(response, "headers", None) or {}
    body = msgspec.json.encode({"error": {"message": error.message, "code": error.code}})
    return error_of_response(status, headers, body, 0.0)
