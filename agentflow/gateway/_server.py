"""HTTP server of the model APIs. It parses requests and writes answers; `ModelCalls` answers them."""

import logging
import math
import re
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio
from aiohttp import web
from msgspec import structs
from yarl import URL

from agentflow.actors import computed
from agentflow.gateway._chat import ChatApi, CompletionsApi
from agentflow.gateway._dialect import (
    ModelApi,
    ParsedRequest,
    RequestContext,
    check_images,
    check_limit,
    encode,
)
from agentflow.gateway._images import hash_of, images_of
from agentflow.gateway._messages import MessagesApi
from agentflow.gateway._responses import ResponsesApi, no_response
from agentflow.gateway._types import GatewayCall, GatewayError, OnText
from agentflow.http_server import BodyRefusedError, RequestBodies, identify
from agentflow.models import Completion, Message
from agentflow.telemetry import continued_trace
from runtimes import JsonLimits

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Size of the largest accepted body."""
MAX_VALUES = 100_000
"""Number of JSON values of a body."""
LARGE_BYTES = 128 * 1024
"""Size from which a request is read in threads."""
HELD_BYTES = 16 * 1024 * 1024
"""Memory of the large requests of one key that are being answered."""
MAX_REQUESTS = 64
"""Number of concurrent requests with one key."""
REFUSED_SECONDS = 1.0
"""Time after which a request beyond that number is refused."""
PING_SECONDS = 10.0
"""Seconds without an event after which a stream sends one that keeps the connection open."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_JSON = {"Content-Type": "application/json"}
_EVENTS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

_NOT_PLAIN = re.compile(r"[^ -~]")
_log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Handler of a request."""


class EpisodeCalls(Protocol):
    """Model calls of one episode."""

    def models(self, agent: str) -> tuple[str, ...]:
        """Return the accepted names of the agent's model, the usual one first."""
        ...

    def overrides(self, agent: str, call: GatewayCall) -> tuple[str, ...]:
        """Return the sampling parameters of the call that the run replaces."""
        ...

    async def conversation(self, agent: str, call: str) -> tuple[Message, ...] | None:
        """Return the messages of a recorded call with its answer; `None` if there is no such call."""
        ...

    def image_bytes(self, hash: str) -> int:
        """Return the size of an image of a recorded call."""
        ...

    async def images(self, hashes: Collection[str]) -> dict[str, bytes]:
        """Return images of recorded calls by hash."""
        ...

    async def complete(
        self, agent: str, call: GatewayCall, retry: str, on_text: OnText | None
    ) -> list[Completion[None]]:
        """Answer a call and record it.

        :param retry: digest of the path and the body, a colon, and the number of earlier attempts.
        :param on_text: gets text that no later text changes; `None`: the text is needed at the end only.
        :raises GatewayError: if the call is refused.
        """
        ...

    async def count(self, agent: str, call: GatewayCall) -> int:
        """Return the number of tokens of the prompt."""
        ...

    def delivered(self, ids: Sequence[str], ok: bool) -> None:
        """Note if the client received the answers that `complete` returned, or left before.

        :param ids: ids of the answers.
        """
        ...


class ModelCalls(Protocol):
    """Model calls of all episodes."""

    def find(self, key: str) -> tuple[EpisodeCalls, str]:
        """Return the episode of a key and the name of its agent.

        :raises GatewayError: if there is none, or the episode has ended.
        """
        ...


class _StreamedAnswer:
    """A streamed response. It begins with the first event; until then an error has a status of its own."""

    def __init__(
        self, request: web.Request, api: ModelApi, parsed: ParsedRequest, headers: Mapping[str, str]
    ) -> None:
        self._request = request
        self._api = api
        self._reply = parsed.reply
        self._headers = {**_EVENTS, **headers}
        self._opened = False
        self._response: web.StreamResponse | None = None

    async def run(
        self, complete: Callable[[OnText], Awaitable[list[Completion[None]]]], ping_seconds: float
    ) -> bool:
        """Stream the answers; return false if the stream ended with an error.

        :raises GatewayError: if the call fails before the first event.
        """
        send, receive = anyio.create_memory_object_stream[tuple[str, str]](math.inf)
        answers: list[Completion[None]] = []
        failures: list[GatewayError] = []

        async def answer() -> None:
            with send:
                try:
                    answers.extend(await complete(lambda id, piece: send.send_nowait((id, piece))))
                except GatewayError as error:
                    failures.append(error)
                except Exception as error:
                    # The boundary of the server: the stream must end with an event in any case.
                    failures.append(_unexpected(error))

        left: ConnectionError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(answer)
            try:
                with receive:
                    await self._forward(receive, ping_seconds)
            except ConnectionError as error:
                left = error
                group.cancel_scope.cancel()
        if left is not None:
            raise left
        try:
            if failures:
                raise failures[0]
            await self._write(self._ending(answers))
        except GatewayError as error:
            if self._response is None:
                raise
            await self._write([self._api.failure_event(error)])
            return False
        finally:
            if self._response is not None:
                await self._response.write_eof()
        return True

    async def _forward(
        self, pieces: "MemoryObjectReceiveStream[tuple[str, str]]", ping_seconds: float
    ) -> None:
        """Write text until the answer is complete, and a ping after each pause."""
        while True:
            try:
                with anyio.fail_after(ping_seconds):
                    answer, piece = await pieces.receive()
            except TimeoutError:
                await self._write([self._reply.ping])
            except anyio.EndOfStream:
                return
            else:
                await self._write([*self._opening(answer), *self._reply.piece(piece)])

    def _opening(self, answer: str) -> Iterator[bytes]:
        if not self._opened:
            self._opened = True
            yield from self._reply.opening(answer)

    def _ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        yield from self._opening(answers[0].id)
        yield from self._reply.ending(answers)

    async def _write(self, events: Iterable[bytes]) -> None:
        data = b"".join(events)
        if self._response is None:
            self._response = web.StreamResponse(headers=self._headers)
            await self._response.prepare(self._request)
        if data:
            await self._response.write(data)

    @property
    def response(self) -> web.StreamResponse:
        """The response, after `run`."""
        if self._response is None:
            raise RuntimeError("the stream has not begun")
        return self._response


def _unexpected(error: Exception) -> GatewayError:
    """Log an error that nobody expects, and return the one that a client is told."""
    _log.error("a model call failed unexpectedly", exc_info=error)
    return GatewayError(
        500, f"internal error: {type(error).__name__}; see the log of the gateway", code="internal"
    )


class ModelRoutes:
    """Routes of the model APIs."""

    def __init__(
        self,
        models: ModelCalls,
        *,
        max_body: int = MAX_BODY_BYTES,
        max_requests: int = MAX_REQUESTS,
        ping_seconds: float = PING_SECONDS,
        any_model: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Store the calls to make.

        :param max_body: maximum size of a request.
        :param max_requests: maximum number of concurrent requests with one key.
        :param any_model: answer whatever model a request names.
        :param wall: time of day, for the responses.
        """
        self._models = models
        limits = JsonLimits(max_bytes=max_body, max_values=MAX_VALUES)
        self._bodies = RequestBodies(limits, held_bytes=HELD_BYTES)
        self._max_body = max_body
        self._requests: Counter[str] = Counter()
        self._max_requests = max_requests
        self._ping_seconds = ping_seconds
        self._any_model = any_model
        self._wall = wall

    def add_routes(self, app: web.Application) -> None:
        """Add the routes to an application."""
        messages = MessagesApi()
        apis: dict[str, ModelApi] = {
            "/v1/chat/completions": ChatApi(),
            "/v1/completions": CompletionsApi(),
            "/v1/responses": ResponsesApi(),
            "/v1/messages": messages,
        }
        for path, api in apis.items():
            app.router.add_post(path, partial(self._call, api))
        app.router.add_post("/v1/messages/count_tokens", partial(self._count, messages))
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/v1/models/{model:.+}", self._show)
        app.router.add_head("/", _alive)

    async def _call(self, api: ModelApi, request: web.Request) -> web.StreamResponse:
        async with self._admitted(request) as (key, episode, agent), self._body(key, request) as body:
            large = len(body) > LARGE_BYTES
            parsed = await computed(large, api.parse, body, self._context(key))
            if not self._any_model:
                _check_model(parsed.model, episode.models(agent))
            digest = await computed(large, _digest, 16, request.path.encode(), b" ", body)
            # Its images and texts are kept; the whole is as large again.
            del body
            async with self._continued(key, parsed, episode, agent) as call:
                call = structs.replace(call, large=large or call.large)
                return await self._answer(api, request, parsed, call, digest, episode, agent)

    async def _answer(
        self,
        api: ModelApi,
        request: web.Request,
        parsed: ParsedRequest,
        call: GatewayCall,
        digest: str,
        episode: EpisodeCalls,
        agent: str,
    ) -> web.StreamResponse:
        headers = _headers(parsed, episode.overrides(agent, call))
        retry = f"{digest}:{_attempts(request.headers)}"
        answers: list[Completion[None]] = []

        async def complete(on_text: OnText | None) -> list[Completion[None]]:
            pieces = on_text if _can_stream(call) else None
            with continued_trace(request.headers):
                answers.extend(await episode.complete(agent, call, retry, pieces))
            return answers

        delivered = False
        try:
            if call.stream:
                streamed = _StreamedAnswer(request, api, parsed, headers)
                delivered = await streamed.run(complete, self._ping_seconds)
                return streamed.response
            written = parsed.reply.body(await complete(None))
            response = web.Response(body=written, headers={**_JSON, **headers})
            await response.prepare(request)
            await response.write_eof()
            delivered = True
            return response
        finally:
            if answers:
                episode.delivered([answer.id for answer in answers], delivered)

    async def _count(self, api: MessagesApi, request: web.Request) -> web.Response:
        async with self._admitted(request) as (key, episode, agent), self._body(key, request) as body:
            large = len(body) > LARGE_BYTES
            parsed = await computed(large, api.parse_prompt, body, self._context(key))
            if not self._any_model:
                _check_model(parsed.model, episode.models(agent))
            number = await episode.count(agent, structs.replace(parsed.call, large=large))
        return web.Response(body=encode({"input_tokens": number}), headers={**_JSON, **_headers(parsed, ())})

    async def _list(self, request: web.Request) -> web.Response:
        async with self._admitted(request) as (_, episode, agent):
            names = episode.models(agent)
        shown = [_model(name, request) for name in names]
        paging = (
            {"has_more": False, "first_id": names[0], "last_id": names[-1]} if _is_anthropic(request) else {}
        )
        return web.Response(body=encode({"object": "list", "data": shown, **paging}), headers=_JSON)

    async def _show(self, request: web.Request) -> web.Response:
        async with self._admitted(request) as (_, episode, agent):
            name = request.match_info["model"]
            _check_model(name, episode.models(agent))
        return web.Response(body=encode(_model(name, request)), headers=_JSON)

    def _context(self, key: str) -> RequestContext:
        return RequestContext(int(self._wall()), _digest(6, key.encode()))

    @asynccontextmanager
    async def _admitted(self, request: web.Request) -> AsyncGenerator[tuple[str, EpisodeCalls, str]]:
        """Enter with the key of a request, its episode and agent; count the request as one of the key's.

        :raises GatewayError: if the key is unknown, or too many requests with it are being answered.
        """
        key = key_of(request.headers)
        if not key:
            raise GatewayError(
                401, "the key is missing; send `Authorization: Bearer KEY` or `x-api-key: KEY`", code="no_key"
            )
        episode, agent = self._models.find(key)
        identify(request)
        if self._requests[key] >= self._max_requests:
            # A client that ignores the answer can't fill the time of the server with refusals.
            await anyio.sleep(REFUSED_SECONDS)
            problem = f"this key has {self._max_requests} requests running; wait for one"
            raise GatewayError(429, problem, code="too_many_requests", retry_after=REFUSED_SECONDS)
        self._requests[key] += 1
        try:
            yield key, episode, agent
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]

    @asynccontextmanager
    async def _continued(
        self, key: str, parsed: ParsedRequest, episode: EpisodeCalls, agent: str
    ) -> AsyncGenerator[GatewayCall]:
        """Enter with the call and the conversation that it continues, whose images count as held, like a body.

        :raises GatewayError: if there is no such conversation, or the whole is over a limit.
        """
        call = parsed.call
        if not call.continues:
            yield call
            return
        history = await episode.conversation(agent, call.continues)
        if history is None:
            raise no_response(call.continues)
        call = parsed.after(history)
        earlier = [hash_of(image) for image in images_of(history)]
        if not earlier:
            yield call
            return
        # An image that is repeated is sent to the model each time.
        size = sum(map(episode.image_bytes, earlier))
        check_limit("bytes of earlier images", size, self._max_body, "begin a new conversation")
        try:
            async with self._bodies.holding(key, size):
                images = {**await episode.images(set(earlier)), **call.images}
                await computed(True, check_images, call.messages, images)
                yield structs.replace(call, images=images, large=size > LARGE_BYTES)
        except BodyRefusedError as refused:
            raise body_refused(refused) from None

    @asynccontextmanager
    async def _body(self, key: str, request: web.Request) -> AsyncGenerator[bytes]:
        """Enter with the body of a request, which counts as held until it is answered.

        :raises GatewayError: if it is refused.
        """
        try:
            async with self._bodies.read_request(key, request) as body:
                kept = [body]
                del body
                yield kept.pop()
        except BodyRefusedError as refused:
            raise body_refused(refused) from None


def body_refused(refused: BodyRefusedError) -> GatewayError:
    """Return the error of a body that is refused."""
    code = {413: "too_large", 503: "busy"}.get(refused.status, "body")
    return GatewayError(
        refused.status, str(refused), code=code, retry_after=1.0 if refused.status == 503 else None
    )


def gateway_app(models: ModelRoutes, host: str = "127.0.0.1", hosts: Collection[str] = ()) -> web.Application:
    """Return the application with the routes of the model APIs and errors in their formats.

    :param host: address that it will listen on. Requests for another host are refused: they come from a web page whose name
        was made to resolve to this machine. If it listens on all addresses, it does not know its names: it accepts every
        host unless `hosts` are given.
    :param hosts: further names, with or without a port.
    """
    accepted = frozenset(name.lower() for name in hosts) | (_LOOPBACK if host in _LOOPBACK else {host})
    any_host = host in ("0.0.0.0", "::") and not hosts

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not any_host and accepted.isdisjoint(_hosts_of(request)):
                raise GatewayError(
                    403,
                    "the Host header names another machine; use its address, or set public_url",
                    code="wrong_host",
                )
            return await handler(request)
        except GatewayError as error:
            return _refuse(request, error)
        except web.HTTPException as error:
            return _refuse(request, _http_error(request, error))
        except ConnectionError:
            raise
        except Exception as error:
            # The boundary of the server.
            return _refuse(request, _unexpected(error))

    app = web.Application(middlewares=[answer])
    models.add_routes(app)
    return app


def key_of(headers: Mapping[str, str]) -> str:
    """Return the key of a request; empty if it has none."""
    scheme, _, key = headers.get("Authorization", "").strip().partition(" ")
    key = key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return key if key.isascii() else ""


def _attempts(headers: Mapping[str, str]) -> int:
    text = headers.get("x-stainless-retry-count", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0


def _digest(size: int, *pieces: bytes) -> str:
    digest = blake2b(digest_size=size)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _check_model(name: str, models: Sequence[str]) -> None:
    if name not in models:
        raise GatewayError(
            404, f"model: no model {name[:100]}; the model of this key is {models[0]}", code="model_not_found"
        )


def _can_stream(call: GatewayCall) -> bool:
    """Return true if text can be sent while it is sampled: nothing that follows changes it."""
    return call.answers == 1 and not call.tools and call.schema is None


def _headers(parsed: ParsedRequest, overrides: Sequence[str]) -> dict[str, str]:
    headers = {
        "X-AgentFlow-Ignored": ", ".join(parsed.ignored),
        "X-AgentFlow-Overrides": ", ".join(overrides),
        "X-AgentFlow-Removed-Lines": str(parsed.call.removed or ""),
    }
    return {name: _NOT_PLAIN.sub("?", value)[:1000] for name, value in headers.items() if value}


def _is_anthropic(request: web.Request) -> bool:
    return request.path.startswith("/v1/messages") or "anthropic-version" in request.headers


def _model(name: str, request: web.Request) -> dict[str, object]:
    if _is_anthropic(request):
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentflow"}


def _refuse(request: web.Request, error: GatewayError) -> web.Response:
    api: ModelApi = MessagesApi() if _is_anthropic(request) else ChatApi()
    # Clients repeat these statuses on their own, for minutes, unless they are told not to.
    final = {"X-Should-Retry": "false"} if error.status in (408, 409, 429) or error.status >= 500 else {}
    wait = final if error.retry_after is None else {"Retry-After": str(math.ceil(error.retry_after))}
    return web.Response(status=error.status, body=api.failure(error), headers={**_JSON, **wait})


def _http_error(request: web.Request, error: web.HTTPException) -> GatewayError:
    if error.status == 404:
        return GatewayError(
            404, f"no such path: {request.path[:100]}; see docs/gateway.md", code="unknown_path"
        )
    if error.status == 405:
        return GatewayError(405, f"{request.path} does not accept {request.method}", code="wrong_method")
    return GatewayError(error.status, error.reason or "the request is not valid")


def _hosts_of(request: web.Request) -> tuple[str, str]:
    """Return the host of a request with and without its port."""
    host = request.headers.get("Host", "").lower()
    try:
        return host, URL(f"http://{host}").host or ""
    except ValueError:
        return host, ""


async def _alive(request: web.Request) -> web.Response:
    del request
    return web.Response()
