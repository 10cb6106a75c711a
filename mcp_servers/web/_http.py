"""Network access of the web backend: clocks and connections, retries, and JSON services."""

import socket
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._addresses import AddressPolicy, Resolve, resolve_public

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from aiohttp import ClientResponse, ClientSession, TCPConnector

__all__ = [
    "TRANSIENT_STATUSES",
    "JsonApi",
    "Network",
    "TransientFailure",
    "checked_connector",
    "retry_after",
    "retry_transient",
]

T = TypeVar("T")
TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be gone the next time."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 20.0
S = TypeVar("S")
LARGEST = 8 * 1024 * 1024
SHOWN = 200


def _unchanged(address: str, port: int) -> tuple[str, int]:
    return address, port


@dataclass(frozen=True, slots=True)
class Network:
    """Names, connections and clocks. Only who makes the backend can give others; no setting and no client can."""

    resolve: Resolve | None = None
    """Asks the name service; `None`: that of this machine."""
    dial: Callable[[str, int], tuple[str, int]] = _unchanged
    """Where to connect for an address and port that may be reached."""
    clock: Callable[[], float] = time.monotonic
    """Seconds that only grow, for the pace."""
    wall: Callable[[], float] = time.time
    """The time of day, for the age of what is kept."""
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    """Waits some seconds."""


def checked_connector(outside: Network, policy: AddressPolicy) -> "TCPConnector":
    """Connections to the addresses that were checked: between check and connection no name is resolved again."""
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

    class CheckedResolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            found: list[ResolveResult] = []
            for address in await resolve_public(host, port, policy, resolve=outside.resolve):
                place, at = outside.dial(address, port)
                found.append(
                    ResolveResult(
                        hostname=host,
                        host=place,
                        port=at,
                        family=socket.AF_INET6 if ":" in place else socket.AF_INET,
                        proto=0,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
            return found

        async def close(self) -> None:
            pass

    return aiohttp.TCPConnector(resolver=CheckedResolver(), use_dns_cache=False, keepalive_timeout=15)


class TransientFailure(Exception):
    """A request failed in a way that may be gone the next time."""

    def __init__(self, failure: ToolFailure, wait: float | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.wait = wait


async def retry_transient(work: Callable[[], Awaitable[T]], attempts: int, outside: Network) -> T:
    """What the work gives, at the latest at the last attempt.

    :raises ToolFailure: if that fails too, or the other side wants a wait that is too long.
    """
    attempt = 0
    while True:
        try:
            return await work()
        except TransientFailure as passing:
            attempt += 1
            wait = FIRST_WAIT * 2 ** (attempt - 1) if passing.wait is None else passing.wait
            if attempt >= attempts or wait > LONGEST_WAIT:
                times = f" after {attempt} attempts" if attempt > 1 else ""
                later = f" (it asks to wait {wait:.0f} s)" if wait > LONGEST_WAIT else ""
                message = f"{passing.failure.message.removesuffix('.')}{times}{later}."
                raise ToolFailure(passing.failure.kind, message) from None
            await outside.sleep(wait)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that `Retry-After` asks for."""
    said = headers.get("Retry-After", "").strip()
    if said.isdecimal() and said.isascii():
        return float(said[:9])
    try:
        return max(parsedate_to_datetime(said).timestamp() - now, 0.0)
    except ValueError:
        return None


def error_kind_of(status: int) -> ErrorKind:
    """What a status means for the caller."""
    if status in (404, 410):
        return ErrorKind.NOT_FOUND
    if status in (401, 403, 451):
        return ErrorKind.DENIED
    if status == 429:
        return ErrorKind.BUSY
    return ErrorKind.UNAVAILABLE if status >= 500 or status == 408 else ErrorKind.FAILED


class JsonApi:
    """The services' side of the network: their addresses are the server's own settings. An async context manager."""

    def __init__(self, outside: Network, *, timeout: float, attempts: int, secrets: Iterable[str]) -> None:
        """Describe it; nothing is opened yet.

        :param secrets: what must never be shown, even where a service repeats it.
        """
        self._outside = outside
        self._timeout = timeout
        self._attempts = attempts
        self._secrets = [secret for secret in secrets if secret]
        self._session: ClientSession | None = None

    async def __aenter__(self) -> "Self":
        import aiohttp

        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"Accept": "application/json"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        service: str,
        url: str,
        shape: type[S],
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        body: object = None,
    ) -> S:
        """What the service answers, read as `shape`; with a body by POST.

        :param service: what it is called in messages.
        :raises ToolFailure: if it gives no such answer after every attempt.
        """

        async def once() -> S:
            return await self._once(service, url, shape, headers or {}, params or {}, body)

        return await retry_transient(once, self._attempts, self._outside)

    async def _once(
        self,
        service: str,
        url: str,
        shape: type[S],
        headers: Mapping[str, str],
        params: Mapping[str, str],
        body: object,
    ) -> S:
        import aiohttp

        assert self._session is not None, "it is entered before it is used"
        method = "GET" if body is None else "POST"
        data = None if body is None else msgspec.json.encode(body)
        typed = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method,
                url,
                params=params,
                data=data,
                headers={**headers, **typed},
                allow_redirects=False,
                proxy=_proxy_for(url),
            ) as response:
                answer = await _read(response, service)
        except TimeoutError:
            raise TransientFailure(
                ToolFailure(ErrorKind.TIMEOUT, f"{service} gave no answer in time.")
            ) from None
        except aiohttp.ClientError as error:
            name = type(error).__name__
            raise TransientFailure(
                ToolFailure(ErrorKind.UNAVAILABLE, f"{service} can't be reached: {name}.")
            ) from None
        if response.status != 200:
            raise self._refusal(service, response, answer)
        try:
            return msgspec.json.decode(answer, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"{service}: its answer can't be read: {self._shown(str(error))}."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None

    def _refusal(self, service: str, response: "ClientResponse", answer: bytes) -> Exception:
        status = response.status
        said = self._shown(answer.decode(errors="replace"))
        mend = "; check its key" if status in (401, 403) else ""
        failure = ToolFailure(error_kind_of(status), f"{service} answers with status {status}{mend}: {said}")
        if status not in TRANSIENT_STATUSES:
            return failure
        return TransientFailure(failure, retry_after(response.headers, self._outside.wall()))

    def _shown(self, text: str) -> str:
        """A beginning of it on one line, without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        line = " ".join(text.split())
        return line[:SHOWN] + (" …" if len(line) > SHOWN else "")


async def _read(response: "ClientResponse", service: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise ToolFailure(ErrorKind.OUTPUT_LIMIT, f"{service}: its answer is too long.")
    return b"".join(parts)


def _proxy_for(url: str) -> str | None:
    """The proxy that the usual variables name."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(parts.scheme)
