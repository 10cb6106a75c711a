"""Fetching pages: every address is checked, every size and wait bounded, and a site's wishes honoured."""

from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._addresses import AddressPolicy, http_target, resolve_public
from mcp_servers.web._http import (
    TRANSIENT_STATUSES,
    Network,
    TransientFailure,
    checked_connector,
    error_kind_of,
    retry_after,
    retry_transient,
)
from mcp_servers.web._jobs import ParserJob, RobotsQuery
from mcp_servers.web._parsers import ParserPool
from mcp_servers.web._settings import WebSettings

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from aiohttp import ClientResponse, ClientSession
    from yarl import URL

__all__ = ["FetchedPage", "PageFetcher"]

REDIRECTS = (301, 302, 303, 307, 308)
LONGEST_URL = 4_000
LARGEST_ROBOTS = 500_000
ROBOTS_SECONDS = 3600.0
REMEMBERED = 1_000
"""Hosts of which the pace and the robots.txt are remembered."""

_SAFE = "%/:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """What a site sent."""

    url: str
    """Where it was found in the end."""
    content_type: str
    """What the site says that it is."""
    data: bytes
    """Its bytes."""
    cut: bool
    """It was longer than what is read."""


@dataclass(slots=True)
class _Rules:
    """A site's robots.txt."""

    turn: anyio.Lock
    text: str | None = None
    good_until: float = -inf


class _PageRefused(ToolFailure):
    """The site answered, but not with the page."""


class PageFetcher:
    """Fetches pages from public addresses. An async context manager."""

    def __init__(self, settings: WebSettings, outside: Network, parsers: ParserPool) -> None:
        self._settings = settings
        self._outside = outside
        self._parsers = parsers
        self._policy = AddressPolicy(settings.allow_private, settings.allowed_hosts)
        self._session: ClientSession | None = None
        self._next: OrderedDict[str, float] = OrderedDict()
        self._robots: OrderedDict[str, _Rules] = OrderedDict()

    async def __aenter__(self) -> "Self":
        import aiohttp

        seconds = self._settings.timeout
        self._session = aiohttp.ClientSession(
            connector=checked_connector(self._outside, self._policy),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, 15.0)),
            headers={
                "User-Agent": self._settings.user_agent,
                "Accept": "text/html,application/xhtml+xml,application/pdf;q=0.9,text/plain;q=0.8,*/*;q=0.5",
                "Accept-Language": "en;q=0.9,*;q=0.5",
            },
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def check(self, url: str) -> None:
        """Refuse an address that may not be reached.

        :raises ToolFailure: `bad_arguments` or `denied`, saying why.
        """
        target = http_target(_short(url))
        await resolve_public(target.host, target.port, self._policy, resolve=self._outside.resolve)

    async def fetch(self, url: str) -> FetchedPage:
        """What is at an address, after redirects.

        :raises ToolFailure: if it may not be reached, can't be had, or the site wants to be left alone.
        """

        async def once() -> FetchedPage:
            return await self._follow(url, self._settings.max_bytes, honour_robots=self._settings.robots)

        return await retry_transient(once, self._settings.retry_times, self._outside)

    async def _follow(self, url: str, most: int, *, honour_robots: bool) -> FetchedPage:
        seen = url
        for _ in range(self._settings.max_redirects + 1):
            found = await self._step(seen, most, honour_robots=honour_robots)
            if isinstance(found, FetchedPage):
                return found
            seen = found
        message = f"{url}: more than {self._settings.max_redirects} redirects."
        raise ToolFailure(ErrorKind.FAILED, message)

    async def _step(self, url: str, most: int, *, honour_robots: bool) -> FetchedPage | str:
        """What is at this very address, or where it sends us."""
        import aiohttp

        assert self._session is not None, "it is entered before it is used"
        address = await self._checked(url)
        if honour_robots:
            await self._ask_robots(address)
        await self._pace(address.host or "")
        try:
            async with self._session.get(address, allow_redirects=False) as response:
                if response.status in REDIRECTS and (place := response.headers.get("Location")):
                    return _joined(str(address), place)
                data, cut = await _read(response, most)
        except TimeoutError:
            # Whoever waits for it has waited long enough.
            raise ToolFailure(ErrorKind.TIMEOUT, f"{url}: no answer in time.") from None
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            message = f"{url}: what it sent can't be read: {type(error).__name__}."
            raise ToolFailure(ErrorKind.FAILED, message) from None
        except aiohttp.ClientConnectorCertificateError:
            raise ToolFailure(ErrorKind.FAILED, f"{url}: its certificate can't be trusted.") from None
        except aiohttp.ClientSSLError:
            raise ToolFailure(ErrorKind.FAILED, f"{url}: no secure connection can be made.") from None
        except aiohttp.ClientError as error:
            failure = ToolFailure(
                ErrorKind.UNAVAILABLE, f"{url}: it can't be reached: {type(error).__name__}."
            )
            raise TransientFailure(failure) from None
        if response.status != 200:
            raise self._refusal(url, response)
        return FetchedPage(str(address), response.headers.get("Content-Type", ""), data, cut)

    async def _checked(self, url: str) -> "URL":
        """The address as it is asked for: with the very host that was checked."""
        from yarl import URL

        target = http_target(_short(url))
        # A name is checked where it is resolved for the connection; an address is never resolved.
        if ":" in target.host or target.host.replace(".", "").isdecimal():
            await resolve_public(target.host, target.port, self._policy, resolve=self._outside.resolve)
        parts = urlsplit(url)
        return URL.build(
            scheme=parts.scheme,
            host=target.host,
            port=target.port if parts.port is not None else None,
            path=quote(parts.path or "/", safe=_SAFE),
            query_string=quote(parts.query, safe=_SAFE + "?"),
            encoded=True,
        )

    async def _pace(self, host: str) -> None:
        """Wait for this host's turn."""
        now = self._outside.clock()
        turn = max(now, self._next.get(host, now))
        self._next[host] = turn + self._settings.host_interval
        self._next.move_to_end(host)
        if len(self._next) > REMEMBERED:
            self._next.popitem(last=False)
        if turn > now:
            await self._outside.sleep(turn - now)

    async def _ask_robots(self, address: "URL") -> None:
        origin = str(address.origin())
        known = self._robots.setdefault(origin, _Rules(anyio.Lock()))
        self._robots.move_to_end(origin)
        if len(self._robots) > REMEMBERED:
            self._robots.popitem(last=False)
        async with known.turn:
            if self._outside.clock() >= known.good_until:
                known.text = await self._fetch_robots(origin)
                known.good_until = self._outside.clock() + ROBOTS_SECONDS
        rules = known.text
        if rules == "":
            return
        reading, allowed = self._settings.reading, False
        if rules is not None:
            question = RobotsQuery(rules, self._settings.user_agent, str(address))
            job = ParserJob(reading.seconds, reading.memory_bytes, robots=question)
            answer = await self._parsers.do(job)
            allowed = answer.allowed and answer.failed is None
        if not allowed:
            message = f"{address}: the site's robots.txt asks to be left alone (robots=false overrides it)."
            raise ToolFailure(ErrorKind.DENIED, message)

    async def _fetch_robots(self, origin: str) -> str | None:
        """The rules; empty: there are none; nothing: the site can't say now, so it is left alone."""
        try:
            found = await self._follow(f"{origin}/robots.txt", LARGEST_ROBOTS, honour_robots=False)
        except TransientFailure as passing:
            if isinstance(passing.failure, _PageRefused):
                return None
            raise
        except _PageRefused:
            return ""
        return found.data.decode("utf-8", "replace")

    def _refusal(self, url: str, response: "ClientResponse") -> Exception:
        status = response.status
        failure = _PageRefused(error_kind_of(status), f"{url}: the site answers with status {status}.")
        if status not in TRANSIENT_STATUSES:
            return failure
        return TransientFailure(failure, retry_after(response.headers, self._outside.wall()))


async def _read(response: "ClientResponse", most: int) -> tuple[bytes, bool]:
    """The body, decompressed, as far as it is read."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            response.close()
            return b"".join(parts)[:most], True
    return b"".join(parts), False


def _joined(base: str, place: str) -> str:
    try:
        return urljoin(base, place)
    except ValueError:
        raise ToolFailure(ErrorKind.FAILED, f"{base}: it redirects to what is no address.") from None


def _short(url: str) -> str:
    if len(url) > LONGEST_URL:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"an address has at most {LONGEST_URL} characters.")
    return url
