"""Server of the live view on a loopback address: pages, their data, images and events.

Access needs a one-time link or the secret in a header; hosts and origins are checked, and headers confine the page.
"""

import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote

import anyio
import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from msgspec import Struct
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow.dashboard._page_data import (
    INDEX,
    MAX_STRETCH,
    RASTER,
    PageData,
    PageDataError,
    TextStretch,
    static_files,
)
from agentflow.errors import AgentFlowError, ConfigurationError, error_line
from agentflow.http_server import AsgiServer, identify
from agentflow.inspection import RunChanges, RunCollection
from agentflow.telemetry import get_logger
from mcp_servers.serving import Origins

logger = get_logger(__name__)

T = TypeVar("T")

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

ReadChanges: TypeAlias = Callable[[str], Awaitable[RunChanges]]
"""Returns the changes after a cursor."""

HOST: Final = "127.0.0.1"
_JSON: Final = "application/json"
_PLAIN: Final = "text/plain; charset=utf-8"
_SAVED: Final = {"Content-Disposition": "attachment"}
POLL_SECONDS: Final = 0.5
"""Seconds between two questions to a run about its changes."""
_PING_SECONDS: Final = 15.0
_KEPT: Final = 8
_SHARED_BYTES: Final = 16 << 20
_SHARED_SECONDS: Final = 2.0
_READERS: Final = 4
_MAX_BODY: Final = 1 << 16
_FEEDS: Final = 256
_STREAM: Final = {"X-Accel-Buffering": "no"}
TOKEN: Final = "token"
"""Name of a link's token in the fragment of the address."""
SESSION: Final = "/api/session"
"""Path that exchanges the token of a link for the secret."""
_POLICY: Final = (
    # The page fetches images with the secret and shows them from its memory.
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NO_ACCESS: Final = (
    "This page needs the link that `agentflow view` printed. A link opens one browser; the command prints the next one "
    "as soon as a link is used."
)


class _ExportRequest(Struct, forbid_unknown_fields=True):
    format: str
    take: str | None = None
    view: str = "agent"
    split: bool = False


class ViewRoutes:
    """Routes of the view. Everything but an export only reads."""

    def __init__(self, data: PageData) -> None:
        self._data = data
        self._static = static_files()
        self._readers = CapacityLimiter(_READERS)
        # Events do not wait for slow searches.
        self._watchers = CapacityLimiter(_READERS)
        self._exporter = CapacityLimiter(1)
        self._feeds: dict[tuple[str, str | None], ChangeFeed] = {}
        self._shared = SharedAnswers()
        self._closing = anyio.Event()
        page = _answered(self._page)
        self._public = [
            Route("/", page),
            Route("/r/{rest:path}", page),
            Route("/compare", page),
            Route("/favicon.ico", _no_icon),
            Route("/static/{name}", _answered(self._file)),
        ]

    def close(self) -> None:
        """End all streams of events."""
        self._closing.set()

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                *self._public,
                Route("/api/r/{run}/blob/{digest}", _answered(self._blob)),
                Route("/api/r/{run}/events", _answered(self._events)),
                Route("/api/r/{run}/export", _answered(self._export), methods=["POST"]),
                Route("/api/{path:path}/whole", _answered(self._whole)),
                Route("/api/{path:path}", _answered(self._answer)),
            ]
        )

    def is_public(self, scope: Scope) -> bool:
        """Return whether a request is for a file of the page, which is the same for all runs."""
        return any(route.matches(scope)[0] is Match.FULL for route in self._public)

    async def _page(self, request: Request) -> Response:
        body, mime = self._static[INDEX]
        return Response(body, media_type=mime)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise PageDataError(404, f"there is no file {name!r}")
        body, mime = self._static[name]
        return Response(body, media_type=mime)

    async def _answer(self, request: Request) -> Response:
        # The path as it was sent: ids may contain escaped slashes.
        path = request.scope["raw_path"].decode("latin-1").removeprefix("/api/")
        wanted = f"{path}?{request.url.query}"
        body = await self._shared.load(
            wanted, self._state(path), partial(self._read, partial(self._data.load, wanted))
        )
        return Response(body, media_type=_JSON)

    def _state(self, path: str) -> str | None:
        """Return the state of the run that a path is about, as the viewers of that run or seed know it."""
        match [unquote(part) for part in path.split("/")]:
            case ["r", run, "s", seed, _]:
                feed = self._feeds.get((run, seed))
            case ["r", run, *what] if what != ["status"]:
                feed = self._feeds.get((run, None))
            case _:
                feed = None
        return None if feed is None else feed.state

    async def _blob(self, request: Request) -> Response:
        named = request.path_params
        data, mime = await self._read(partial(self._data.blob, named["run"], named["digest"]))
        if mime in RASTER:
            return Response(data, media_type=mime)
        # Observations are hostile: what a browser might run is only a file to save.
        return Response(data, media_type=_PLAIN, headers=_SAVED)

    async def _whole(self, request: Request) -> Response:
        """Send a whole text of an observation as a file to save, stretch by stretch."""
        path = request.scope["raw_path"].decode("latin-1").removeprefix("/api/").removesuffix("/whole")

        async def read(begin: int) -> TextStretch:
            address = f"{path}/text?{request.url.query}&from={begin}&limit={MAX_STRETCH}"
            body = await self._read(partial(self._data.load, address))
            return msgspec.json.decode(body, type=TextStretch)

        first = await read(0)

        async def stretches() -> AsyncGenerator[bytes]:
            yield first.text.encode()
            for begin in range(len(first.text), first.chars, MAX_STRETCH):
                yield (await read(begin)).text.encode()

        return StreamingResponse(stretches(), media_type=_PLAIN, headers=_SAVED)

    async def _events(self, request: Request) -> Response:
        query = request.query_params
        run, seed = request.path_params["run"], query.get("seed") or None
        reader = await self._read(partial(self._data.reader, run))

        async def read(cursor: str) -> RunChanges:
            return await anyio.to_thread.run_sync(
                partial(reader.changes, cursor, seed), limiter=self._watchers, abandon_on_cancel=True
            )

        feed = self._feeds.pop((run, seed), None) or ChangeFeed(read)
        self._feeds[run, seed] = feed
        while len(self._feeds) > _FEEDS:
            del self._feeds[next(iter(self._feeds))]
        cursor = request.headers.get("last-event-id") or query.get("cursor", "")
        events = change_events(feed, cursor, self._closing)
        return StreamingResponse(events, media_type="text/event-stream", headers=_STREAM)

    async def _export(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise PageDataError(415, "an export is asked for in JSON")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                raise PageDataError(413, f"an export is asked for in at most {_MAX_BODY} bytes")
        try:
            wanted = msgspec.json.decode(body, type=_ExportRequest)
        except DECODE_ERRORS as error:
            raise PageDataError(400, f"an export can't be asked for so: {decode_reason(error)}") from None
        export = partial(self._data.export, request.path_params["run"], **msgspec.structs.asdict(wanted))
        manifest = await anyio.to_thread.run_sync(export, limiter=self._exporter)
        return Response(msgspec.json.encode(manifest), media_type=_JSON)

    async def _read(self, read: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(read, limiter=self._readers, abandon_on_cancel=True)


class ChangeFeed:
    """Changes of a run or of one of its seeds. Viewers that ask for the same news at the same time share one answer."""

    def __init__(self, read: ReadChanges, *, clock: Callable[[], float] = anyio.current_time) -> None:
        self._read = read
        self._clock = clock
        self._lock = anyio.Lock()
        self._answers: dict[str, tuple[float, RunChanges]] = {}
        self._latest = (float("-inf"), "")

    async def after(self, cursor: str) -> RunChanges:
        """Return the changes after a cursor, at most `POLL_SECONDS` old."""
        async with self._lock:
            made, changes = self._answers.get(cursor, (float("-inf"), None))
            if changes is None or self._clock() - made >= POLL_SECONDS * 0.9:
                changes = await self._read(cursor)
                self._answers.pop(cursor, None)
                self._answers[cursor] = self._clock(), changes
                self._latest = self._clock(), changes.cursor
                while len(self._answers) > _KEPT:
                    del self._answers[next(iter(self._answers))]
            return changes

    @property
    def state(self) -> str | None:
        """State that viewers are told of at present; `None`: nobody watches."""
        made, cursor = self._latest
        return cursor if self._clock() - made < 2 * POLL_SECONDS else None


class _SharedAnswer(NamedTuple):
    lock: anyio.Lock
    body: list[bytes]


class SharedAnswers:
    """Answers that viewers of the same state of a run share: after each change, all of them ask for the same paths.

    An answer is read after its state was seen, so it holds all that a viewer was told of; the news of what it lacks comes later.
    """

    def __init__(self, *, clock: Callable[[], float] = anyio.current_time) -> None:
        self._clock = clock
        self._answers: dict[tuple[str, str, int], _SharedAnswer] = {}

    async def load(self, path: str, state: str | None, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer of a path.

        :param state: state of its run; `None`: unknown, so the answer is not shared.
        """
        if state is None:
            return await read()
        # What changes without news, such as usage, is shared for seconds only.
        key = path, state, int(self._clock() / _SHARED_SECONDS)
        shared = self._answers.setdefault(key, _SharedAnswer(anyio.Lock(), []))
        async with shared.lock:
            if not shared.body:
                try:
                    shared.body.append(await read())
                finally:
                    self._forget()
        return shared.body[0]

    def _forget(self) -> None:
        """Forget the oldest answers beyond the limit."""
        size = sum(len(part) for answer in self._answers.values() for part in answer.body)
        current = int(self._clock() / _SHARED_SECONDS)
        for key, answer in list(self._answers.items()):
            if key[2] != current or size > _SHARED_BYTES or not answer.body:
                size -= sum(map(len, answer.body))
                del self._answers[key]


async def change_events(feed: ChangeFeed, cursor: str, closing: anyio.Event) -> AsyncGenerator[bytes]:
    """Yield server-sent events: `change` with the JSON of the changes, `trouble` while the run can't be read.

    The id of an event is the cursor, so a browser that connects again misses nothing.

    :param cursor: state that the viewer knows; empty: the present one.
    :param closing: ends the events.
    """
    # The first bytes are sent when the cursor is known: what is committed after them is never missed.
    silent, in_trouble = _PING_SECONDS, False
    while not closing.is_set():
        event = b""
        try:
            changes = await feed.after(cursor)
        except (AgentFlowError, OSError, KeyError, *DECODE_ERRORS) as error:
            if not in_trouble:
                line = str(error) if isinstance(error, AgentFlowError) else error_line(error)
                event = _event("trouble", "", msgspec.json.encode({"error": line}))
            in_trouble = True
        else:
            if in_trouble or changes.summary or changes.seeds or changes.spots or changes.steps:
                event = _event("change", changes.cursor, msgspec.json.encode(changes))
            cursor, in_trouble = changes.cursor, False
        if not event and silent >= _PING_SECONDS:
            event = b": still here\n\n"
        if event:
            yield event
            silent = 0.0
        with anyio.move_on_after(POLL_SECONDS):
            await closing.wait()
        silent += POLL_SECONDS


def _event(name: str, cursor: str, data: bytes) -> bytes:
    # JSON has no line feeds, and neither has a cursor.
    identity = b"id: " + cursor.encode() + b"\n" if cursor else b""
    return b"event: " + name.encode() + b"\n" + identity + b"data: " + data + b"\n\n"


class ViewGuard:
    """ASGI application in front of the view.

    The files of the page are public. Everything else needs the secret as a bearer token: a browser sends a cookie to every port
    of a host, but an `Authorization` header only where a script of the page sends it. The token of a link is in the fragment of
    the address, which is never sent; the page exchanges it for the secret, once. Each request must also name this server as its
    host and come from a page of this server.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        is_public: Callable[[Scope], bool],
        on_used: Callable[[], object] = lambda: None,
    ) -> None:
        """Guard an application that listens at this address.

        :param is_public: returns whether a request is answered without the secret.
        :param on_used: called when a link was used.
        """
        self._app = app
        self._origins = Origins(host, port)
        self._is_public = is_public
        self._on_used = on_used
        self._secret = secrets.token_urlsafe(32)
        self._tokens: list[str] = []

    def new_token(self) -> str:
        """Return a token that opens one browser."""
        token = secrets.token_urlsafe(32)
        self._tokens.append(token)
        return token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])

        async def send_confined(message: Message) -> None:
            if message["type"] == "http.response.start":
                confined = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    confined.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope, headers)
        if answer is None and not self._is_public(scope):
            answer = self._authorize(scope, _bearer_token(headers))
        await (answer or self._app)(scope, receive, send_confined)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        if not self._origins.allow_host(headers.get(b"host")):
            return PlainTextResponse("this server does not serve that host\n", 421)
        origin = headers.get(b"origin")
        if not self._origins.allow_origin(origin):
            return PlainTextResponse("pages of that origin may not use this server\n", 403)
        reads = scope["method"] in ("GET", "HEAD")
        site = headers.get(b"sec-fetch-site", b"none")
        navigates = reads and headers.get(b"sec-fetch-mode") == b"navigate"
        if site not in (b"none", b"same-origin") and not navigates:
            return PlainTextResponse("pages of another origin may not use this server\n", 403)
        if not reads and origin is None:
            return PlainTextResponse("a request that changes something must name its origin\n", 403)
        return None

    def _authorize(self, scope: Scope, credentials: bytes) -> Response | None:
        """Return the answer to a request that needs the secret; `None`: it has the secret, so the application answers."""
        if (scope["method"], scope["path"]) == ("POST", SESSION):
            return self._exchange(credentials)
        if not secrets.compare_digest(credentials, self._secret.encode()):
            return _no_access()
        identify(scope)
        return None

    def _exchange(self, credentials: bytes) -> Response:
        """Return the secret, if the credentials are the token of an unused link."""
        for token in self._tokens:
            if secrets.compare_digest(credentials, token.encode()):
                self._tokens.remove(token)
                self._on_used()
                return JSONResponse({"secret": self._secret})
        return _no_access()


def _bearer_token(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token if scheme.lower() == b"bearer" else b""


def _no_access() -> Response:
    return JSONResponse({"error": _NO_ACCESS}, 401, {"WWW-Authenticate": "Bearer"})


class ServedView:
    """A served view of runs."""

    def __init__(self, guard: ViewGuard, url: str) -> None:
        self._guard = guard
        self.url = url
        """Address without a path."""

    def link(self, path: str = "/") -> str:
        """Return a link that opens one browser."""
        return f"{self.url}{path}#{TOKEN}={self._guard.new_token()}"


@asynccontextmanager
async def open_view(
    runs: RunCollection, *, port: int = 0, on_used: Callable[[ServedView], object] = lambda _: None
) -> AsyncGenerator[ServedView]:
    """Serve runs on this machine until the end of the block. See docs/view.md.

    :param runs: the runs; they must stay open.
    :param port: port on the loopback address; 0: a free one.
    :param on_used: called when a link was used.
    :raises ConfigurationError: if the port is taken.
    """
    with _listening(port) as listener:
        host, port = listener.getsockname()[:2]
        routes = ViewRoutes(PageData(runs))
        guard = ViewGuard(routes.app(), host, port, is_public=routes.is_public, on_used=lambda: on_used(view))
        view = ServedView(guard, f"http://{host}:{port}")
        server = AsgiServer(guard, name="view")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield view
            finally:
                routes.close()
                server.should_exit = True


@contextmanager
def _listening(port: int) -> Generator[socket.socket]:
    with socket.socket() as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no such port"
            raise ConfigurationError(
                f"--port: {HOST}:{port} can't be used: {reason}; name another, or leave it out"
            ) from None
        yield listener


def _answered(handle: Handler) -> Handler:
    """Return the handler with errors as answers of one line."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except PageDataError as error:
            status, message = error.status, str(error)
        except ConfigurationError as error:
            status, message = 400, str(error)
        except AgentFlowError as error:
            status, message = 503, str(error)
        except DECODE_ERRORS as error:
            status, message = 503, f"a record of the run is damaged: {decode_reason(error)}"
        except Exception as error:  # boundary of the server: the page shows one line
            logger.exception("the view can't answer", path=request.url.path)
            status, message = 500, error_line(error)
        return Response(msgspec.json.encode({"error": message}), status, media_type=_JSON)

    return answer


async def _no_icon(request: Request) -> Response:
    return Response(status_code=204)
