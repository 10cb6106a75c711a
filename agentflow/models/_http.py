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
from agentflow.models._refusals import setback_of
from agentflow.models._setback import Setback

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

__all__ = ["HttpAnswer", "Wire"]

_LARGE = 1024 * 1024


class HttpAnswer(Struct, frozen=True):
    """A good answer."""

    status: int
    """200, or near it."""
    headers: Mapping[str, str]
    """Its headers."""
    body: bytes
    """Its body."""


class Wire:
    """Connections to one path of one endpoint, kept open between requests."""

    def __init__(self, url: str, key: str, most: int, *, wall: Callable[[], float] = time.time) -> None:
        """Describe them; nothing is opened yet.

        :param most: requests that are made at a time.
        :param wall: the time of day, for endpoints that name a time to come again.
        """
        self._url = url
        self._key = key
        self._most = most
        self._wall = wall
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp
        from yarl import URL

        headers = {"Content-Type": "application/json", "User-Agent": "agentflow"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._target = URL(self._url)
        self._timeout = aiohttp.ClientTimeout
        self._errors = (aiohttp.ClientError, OSError)
        self._unreachable = aiohttp.ClientConnectorError
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most + 1, keepalive_timeout=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            proxy=_proxy_for(self._target),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, body: bytes, seconds: float) -> HttpAnswer:
        """Make one request.

        :raises Setback: if it brings no answer, or a bad one.
        """
        if self._session is None:
            raise RuntimeError("a model is used inside `async with`")
        # aiohttp wants large bodies as files.
        data = body if len(body) < _LARGE else io.BytesIO(body)
        timeout = self._timeout(total=seconds)
        try:
            async with self._session.post(
                self._target, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                answer = await response.read()
        except TimeoutError:
            raise Setback(
                ModelFailureKind.TIMEOUT, "no answer in time", again=True, pushed_back=True
            ) from None
        except self._errors as error:
            # The library's own words hold addresses and ports, which differ from run to run.
            said = f"no answer: {_name_of(error)}"
            unreachable = isinstance(error, self._unreachable)
            raise Setback(ModelFailureKind.UNAVAILABLE, said, again=True, unreachable=unreachable) from error
        if response.status != 200:
            raise setback_of(response.status, response.headers, answer, self._wall())
        return HttpAnswer(response.status, response.headers, answer)


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
