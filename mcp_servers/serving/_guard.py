"""Access control in front of the HTTP endpoints."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping

import anyio
from mcp_types import INVALID_REQUEST
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_servers.core._table import LOCAL
from mcp_servers.serving._access import BearerTokens, Origins, RateLimit, Scopes
from mcp_servers.serving._endpoints import admit

HEALTH = "/health"
"""Liveness; needs no token."""
READY = "/ready"
"""Readiness; needs no token. Answers 200 from the time when every backend to warm up is warm until the server stops."""
METRICS = "/metrics"
"""Prometheus metrics; needs a token."""


class Guard:
    """ASGI application that checks host, origin, token and rate, in that order, and then calls the endpoint of the path."""

    def __init__(
        self,
        endpoints: Mapping[str, ASGIApp],
        *,
        origins: Origins,
        tokens: BearerTokens | None,
        rate: RateLimit | None = None,
        scopes: Scopes | None = None,
        metrics: Callable[[], Awaitable[str]],
        refused: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Guard the endpoints (by path). Without tokens every client is the principal `local`.

        :param metrics: returns the metrics text.
        :param refused: is called with the status of each refused request.
        """
        self._scopes = scopes or Scopes()
        self._metrics = metrics
        self._refused = refused
        self.waiting_for: tuple[str, ...] = ()
        """Backends that are still being warmed up."""
        self._endpoints = endpoints
        self._origins = origins
        self._tokens = tokens
        self._rate = rate
        self.active = 0
        """Requests being answered, without streams that only listen."""
        self._stopping = False
        self._idle = anyio.Event()

    async def drain(self) -> None:
        """Refuse new requests and wait until running ones are answered."""
        self._stopping = True
        if self.active:
            await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not self._origins.allow_host(headers.get(b"host")):
            return await self._refuse(send, 421, "this server does not serve that host")
        if not self._origins.allow_origin(headers.get(b"origin")):
            return await self._refuse(send, 403, "pages of that origin may not use this server")
        path = scope["path"].rstrip("/")
        if path == HEALTH:
            return await _answer(send, 200, {"status": "stopping" if self._stopping else "ok"})
        if path == READY:
            return await self._say_ready(send)
        principal = LOCAL if self._tokens is None else self._tokens.principal(headers.get(b"authorization"))
        if principal is None:
            challenge = [(b"www-authenticate", b"Bearer")]
            return await self._refuse(send, 401, "a valid bearer token is required", challenge)
        if path == METRICS:
            return await _send(send, 200, (await self._metrics()).encode(), b"text/plain; version=0.0.4")
        endpoint = self._endpoints.get(path)
        if endpoint is None:
            return await self._refuse(send, 404, f"unknown endpoint; available: {', '.join(self._endpoints)}")
        backend = path.removesuffix("/mcp").removeprefix("/")
        if backend and not self._scopes.allow(principal, backend):
            return await self._refuse(send, 403, f"this token may not use the backend {backend!r}")
        if self._stopping:
            return await self._refuse(send, 503, "the server is stopping")
        seconds = self._rate.wait(principal) if self._rate and scope["method"] == "POST" else 0.0
        if seconds:
            retry = [(b"retry-after", str(math.ceil(seconds)).encode())]
            return await self._refuse(send, 429, "too many requests; try again later", retry)
        admit(scope, principal)
        if scope["method"] == "GET":
            return await endpoint(scope, receive, send)
        self.active += 1
        try:
            await endpoint(scope, receive, send)
        finally:
            self.active -= 1
            if self._stopping and self.active == 0:
                self._idle.set()
        return None

    async def _say_ready(self, send: Send) -> None:
        if self._stopping:
            return await _answer(send, 503, {"ready": False, "status": "stopping"})
        if self.waiting_for:
            return await _answer(send, 503, {"ready": False, "waiting_for": list(self.waiting_for)})
        return await _answer(send, 200, {"ready": True})

    async def _refuse(
        self, send: Send, status: int, message: str, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Answer with a JSON-RPC error that has no request id."""
        self._refused(status)
        error = {"code": INVALID_REQUEST, "message": message}
        await _answer(send, status, {"jsonrpc": "2.0", "id": None, "error": error}, headers)


async def _answer(
    send: Send, status: int, body: Mapping[str, object], headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    await _send(send, status, json.dumps(body).encode(), b"application/json", headers)


async def _send(
    send: Send, status: int, content: bytes, mime: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    plain = [(b"content-type", mime), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *(headers or [])]})
    await send({"type": "http.response.body", "body": content})
