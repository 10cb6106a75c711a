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

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._http_client import observe
from agentflow.errors import ErrorKind, ToolFailure
from runtimes.egress import AddressPolicy, Resolve, resolve_public

if TYPE_CHECKING:
    from typing import Self

    from aiohttp import ClientResponse, ClientSession, TCPConnector


T = TypeVar("T")
TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of temporary failures."""
_GOOGLE_INVALID_KEY: Final = b"API_KEY_INVALID"
"""Reason that Google's services give with status 400 for an invalid key."""
FIRST_DELAY = 0.5
MAX_DELAY = 20.0
MAX_RESPONSE_BYTES = 8 * 1024 * 1024
MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Network:
    """Name resolution, connections and clocks, replaceable only by the code that creates the backend."""

    resolve: Resolve | None = None
    """Name resolver; `None` for that of this machine."""
    dial: Callable[[str, int], tuple[str, int]] = lambda address, port: (address, port)
    """Maps an allowed address and port to the one to connect to."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic clock, for rate limits."""
    wall: Callable[[], float] = time.time
    """Wall clock, for the age of cache entries."""
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    """Sleep function."""


def checked_connector(network: Network, policy: AddressPolicy) -> "TCPConnector":
    """Return a connector that connects only to checked addresses, without a second name resolution after the check."""
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

    class CheckedResolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            results: list[ResolveResult] = []
            for address in await resolve_public(host, port, policy, resolve=network.resolve):
                dialed_host, dialed_port = network.dial(address, port)
                results.append(
                    ResolveResult(
                        hostname=host,
                        host=dialed_host,
                        port=dialed_port,
                        family=socket.AF_INET6 if ":" in dialed_host else socket.AF_INET,
                        proto=0,
                        flags=socket.AI_NUMERICHOST,
                    )
                )
            return results

        async def close(self) -> None:
            pass

    return aiohttp.TCPConnector(resolver=CheckedResolver(), use_dns_cache=False, keepalive_timeout=15)


class TransientFailure(Exception):
    """A request failed temporarily."""

    def __init__(self, failure: ToolFailure, wait: float | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.wait = wait


async def retry_transient(work: Callable[[], Awaitable[T]], attempts: int, network: Network) -> T:
    """Run `work`, and retry it after temporary failures.

    :raises ToolFailure: if the last attempt fails, or the server asks for too long a wait.
    """
    attempt = 0
    while True:
        try:
            return await work()
        except TransientFailure as passing:
            attempt += 1
            wait = FIRST_DELAY * 2 ** (attempt - 1) if passing.wait is None else passing.wait
            if attempt >= attempts or wait > MAX_DELAY:
                times = f" after {attempt} attempts" if attempt > 1 else ""
                later = f" (the server asks to wait {wait:.0f} s)" if wait > MAX_DELAY else ""
                message = f"{passing.failure.message.removesuffix('.')}{times}{later}."
                raise ToolFailure(passing.failure.kind, message) from None
            await network.sleep(wait)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds requested by `Retry-After`."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal() and value.isascii():
        return float(value[:9])
    try:
        return max(parsedate_to_datetime(value).timestamp() - now, 0.0)
    except ValueError:
        return None


def error_kind_of(status: int) -> ErrorKind:
    """Return the error kind of an HTTP status."""
    if status in (404, 410):
        return ErrorKind.NOT_FOUND
    if status in (401, 403, 451):
        return ErrorKind.DENIED
    if status == 429:
        return ErrorKind.BUSY
    return ErrorKind.UNAVAILABLE if status >= 500 or status == 408 else ErrorKind.FAILED


async def read_body(response: "ClientResponse", most: int) -> tuple[bytes, bool]:
    """Read the decompressed body up to a limit; return whether it was cut."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            response.close()
            return b"".join(parts)[:most], True
    return b"".join(parts), False


def refusal(response: "ClientResponse", failure: ToolFailure, network: Network) -> Exception:
    """Return the failure of a response with an error status, which is temporary for some statuses."""
    if response.status not in TRANSIENT_STATUSES:
        return failure
    return TransientFailure(failure, retry_after(response.headers, network.wall()))


class JsonApi:
    """Client of JSON services, whose addresses come from the server's settings. An async context manager."""

    def __init__(self, network: Network, *, timeout: float, attempts: int, secrets: Iterable[str]) -> None:
        """Configure the client without connecting.

        :param secrets: values to hide in messages, even if a service repeats them.
        """
        self._network = network
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

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        service: str,
        url: str,
        shape: type[T],
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        body: object = None,
    ) -> T:
        """Request a URL, by POST if there is a body, and decode the response as `shape`.

        :param service: name of the service in messages.
        :raises ToolFailure: if no attempt gives a valid response.
        """
        return await retry_transient(
            lambda: self._once(service, url, shape, headers or {}, params or {}, body),
            self._attempts,
            self._network,
        )

    async def _once(
        self,
        service: str,
        url: str,
        shape: type[T],
        headers: Mapping[str, str],
        params: Mapping[str, str],
        body: object,
    ) -> T:
        import aiohttp

        assert self._session is not None, "the client is entered before use"
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
                answer, cut = await read_body(response, MAX_RESPONSE_BYTES)
                observe(response, answer)
        except TimeoutError:
            failure = ToolFailure(ErrorKind.TIMEOUT, f"{service} did not answer in time.")
            raise TransientFailure(failure) from None
        except aiohttp.ClientError as error:
            message = f"{service} cannot be reached: {type(error).__name__}."
            raise TransientFailure(ToolFailure(ErrorKind.UNAVAILABLE, message)) from None
        if cut:
            raise ToolFailure(ErrorKind.OUTPUT_LIMIT, f"{service} returned a response that is too long.")
        if response.status != 200:
            text = self._shown(answer.decode(errors="replace"))
            kind, hint = error_kind_of(response.status), ""
            if service == "SearXNG" and response.status == 403:
                hint = "; its setting search.formats must have json"
            elif response.status in (401, 403) or _GOOGLE_INVALID_KEY in answer:
                kind, hint = ErrorKind.DENIED, "; check its key"
            failure = ToolFailure(kind, f"{service} returned status {response.status}{hint}: {text}")
            raise refusal(response, failure, self._network)
        try:
            return msgspec.json.decode(answer, type=shape)
        except DECODE_ERRORS as error:
            message = f"{service} returned an invalid response: {self._shown(decode_reason(error))}."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None

    def _shown(self, text: str) -> str:
        """Return the start of a text on one line, without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        line = " ".join(text.split())
        return line[:MAX_SHOWN_CHARS] + (" …" if len(line) > MAX_SHOWN_CHARS else "")


def _proxy_for(url: str) -> str | None:
    """Return the proxy named by the usual environment variables."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(parts.scheme)
