"""Access to the view: one-time links, a session cookie, checks of host and origin, and headers that confine the page."""

import hashlib
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentflow.http_server import identify
from mcp_servers.serving import Origins

TOKEN: Final = "token"
"""Query parameter of a link."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
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
_NO_SESSION: Final = (
    "This page needs the link that `agentflow view` printed. A link opens one browser; the command prints the next one "
    "as soon as a link is used.\n"
)


class ViewGuard:
    """ASGI application in front of the view.

    A link holds a token that works once. Its answer is a redirect to the same address without the token and a cookie that only
    this server receives, from its own pages only. Then each request must name this server as its host, come from a page of
    this server, and bring the cookie.
    """

    def __init__(
        self, app: ASGIApp, host: str, port: int, on_used: Callable[[], object] = lambda: None
    ) -> None:
        """Guard an application that listens at this address.

        :param on_used: called when a link was used.
        """
        self._app = app
        self._origins = Origins(host, port)
        self._cookie = f"agentflow_view_{port}"
        self._tokens: set[bytes] = set()
        self._sessions: set[bytes] = set()
        self._on_used = on_used

    def new_token(self) -> str:
        """Return a token that opens one browser."""
        token = secrets.token_urlsafe(32)
        self._tokens.add(_digest(token))
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

        answer = self._refusal(scope, headers) or self._opened(scope, headers)
        if answer is None and not self._knows(headers):
            answer = PlainTextResponse(_NO_SESSION, 401)
        if answer is None:
            identify(scope)
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
        # A page on another port of this machine is of the same site, so its requests bring the cookie.
        if site not in (b"none", b"same-origin") and not navigates:
            return PlainTextResponse("pages of another origin may not use this server\n", 403)
        if not reads and origin is None:
            return PlainTextResponse("a request that changes something must name its origin\n", 403)
        return None

    def _opened(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        """Return the redirect of a link, if the token works."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        digests = {_digest(value) for name, value in query if name == TOKEN}
        if scope["method"] != "GET" or not digests & self._tokens:
            return None
        self._tokens -= digests
        session = secrets.token_urlsafe(32)
        self._sessions.add(_digest(session))
        rest = urlencode([(name, value) for name, value in query if name != TOKEN])
        # Slashes at the beginning would lead to another host.
        path = "/" + scope.get("raw_path", scope["path"].encode()).decode("latin-1").lstrip("/\\")
        clean = f"{path}{'?' if rest else ''}{rest}"
        answer: Response = RedirectResponse(clean, 303)
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            # A browser that follows a link on another site's page would not send the cookie with a redirected request.
            answer = PlainTextResponse("opening the view\n", headers={"Refresh": f"0; url={clean}"})
        answer.set_cookie(self._cookie, session, httponly=True, samesite="strict", path="/")
        self._on_used()
        return answer

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        found = cookies.get(self._cookie)
        return found is not None and _digest(found.value) in self._sessions


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
