"""The connections to one endpoint."""

import io
import os
import time
import urllib.request
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from agentflow.errors import ModelFailureKind
from agentflow.models._providers import is_loopback
from agentflow.models._request_error import RequestError, error_of_response

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

__all__ = ["HttpResponse", "HttpTransport"]

IDLE_SECONDS = 4.0
"""So long an idle connection is kept: less than the five seconds after which Uvicorn, and so vLLM, closes it. A request that
meets such an end has no answer."""
_LARGE = 1024 * 1024


class HttpResponse(Struct, frozen=True):
    """A good answer."""

    status: int
    """200, or near it."""
    headers: Mapping[str, str]
    """Its headers."""
    body: bytes
    """Its body."""


class HttpTransport:
    """Connections to one endpoint, kept open between requests."""

    def __init__(
        self, url: str, headers: Mapping[str, str], most: int, *, wall: Callable[[], float] = time.time
    ) -> None:
        """Describe them; nothing is opened yet.

        :param headers: what goes along with every request.
        :param most: requests that are made at a time.
        :param wall: the time of day, for endpoints that name a time to come again.
        """
        self._url = url
        self._headers = headers
        self._most = most
        self._wall = wall
        self._session: aiohttp.ClientSession | None = None
        self._targets: dict[str, URL] = {}

    async def __aenter__(self) -> Self:
        import aiohttp
        from yarl import URL

        headers = {"Content-Type": "application/json", "User-Agent": "agentflow", **self._headers}
        self._url_of = URL
        self._timeout = aiohttp.ClientTimeout
        self._errors = (aiohttp.ClientError, OSError)
        self._unreachable = aiohttp.ClientConnectorError
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most + 1, keepalive_timeout=IDLE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            proxy=_proxy_for(URL(self._url)),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(
        self, path: str, body: bytes, seconds: float, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Make one request.

        :param path: where to, after the endpoint's address; or a whole address of another door of the same server.
        :param headers: what goes along with this one only.
        :raises RequestError: if it brings no answer, or a bad one.
        """
        if self._session is None:
            raise RuntimeError("a model is used inside `async with`")
        # aiohttp wants large bodies as files.
        data = body if len(body) < _LARGE else io.BytesIO(body)
        timeout = self._timeout(total=seconds)
        target = self._targets.get(path)
        if target is None:
            whole = path if "://" in path else self._url + path
            target = self._targets[path] = self._url_of(whole)
        try:
            async with self._session.post(
                target, data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                answer = await response.read()
        except TimeoutError:
            raise RequestError(
                ModelFailureKind.TIMEOUT, "no answer in time", retry=True, overloaded=True
            ) from None
        except self._errors as error:
            # The library's own words hold addresses and ports, which differ from run to run.
            said = f"no answer: {_name_of(error)}"
            unreachable = isinstance(error, self._unreachable)
            raise RequestError(
                ModelFailureKind.UNAVAILABLE, said, retry=True, unreachable=unreachable
            ) from error
        if response.status != 200:
            raise error_of_response(response.status, response.headers, answer, self._wall())
        return HttpResponse(response.status, response.headers, answer)


def _proxy_for(target: "URL") -> str | None:
    """The proxy that the usual variables name, looked up once: the library would do so for each request."""
    host = target.host or ""
    if is_loopback(str(target)) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(target.scheme)


def _name_of(error: BaseException) -> str:
    """What happened in words: of the operating system where it has some, else the error's name."""
    import aiohttp

    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)
    return "no connection" if isinstance(error, aiohttp.ClientConnectorError) else type(error).__name__
