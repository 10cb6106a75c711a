"""Access to the view: one-time links, a secret in a header, checks of host and origin, and headers that confine the page."""

import secrets
from collections.abc import Callable
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentflow.http_server import identify
from mcp_servers.serving import Origins

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
