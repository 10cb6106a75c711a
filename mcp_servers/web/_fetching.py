"""Fetching of pages: addresses are checked, sizes and waits are limited, and robots.txt is obeyed."""

from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

import anyio

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.web._http import (
    Network,
    TransientFailure,
    checked_connector,
    error_kind_of,
    read_body,
    refusal,
    retry_transient,
)
from mcp_servers.web._jobs import ParserJob, RobotsQuery
from mcp_servers.web._parsers import ParserPool
from mcp_servers.web._settings import WebSettings
from runtimes.egress import AddressPolicy, http_target, resolve_public

if TYPE_CHECKING:
    from typing import Self

    from aiohttp import ClientSession
    from yarl import URL


REDIRECTS = (301, 302, 303, 307, 308)
MAX_URL_CHARS = 4_000
MAX_ROBOTS_BYTES = 500_000
ROBOTS_SECONDS = 3600.0
MAX_HOSTS = 1_000
"""Most hosts whose rate limit and robots.txt are kept."""

_SAFE = "%/:@!$&'()*+,;=~-._"


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """Response of a site."""

    url: str
    """Final address."""
    content_type: str
    data: bytes
    cut: bool
    """The body was longer than the limit and was cut."""


@dataclass(slots=True)
class _Rules:
    """robots.txt of a site."""

    lock: anyio.Lock
    text: str | None = None
    good_until: float = -inf


class _PageRefused(ToolFailure):
    """The site returned an error status."""


class PageFetcher:
    """HTTP client for pages at public addresses. An async context manager."""

    def __init__(self, settings: WebSettings, network: Network, parsers: ParserPool) -> None:
        self._settings = settings
        self._network = network
        self._parsers = parsers
        self._policy = AddressPolicy(settings.allow_private, settings.allowed_hosts)
        self._session: ClientSession | None = None
        self._next: OrderedDict[str, float] = OrderedDict()
        self._robots: OrderedDict[str, _Rules] = OrderedDict()

    async def __aenter__(self) -> "Self":
        import aiohttp

        seconds = self._settings.timeout
        self._session = aiohttp.ClientSession(
            connector=checked_connector(self._network, self._policy),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, 15.0)),
            headers={
                "User-Agent": self._settings.user_agent,
                "Accept": "text/html,application/xhtml+xml,application/pdf;q=0.9,text/plain;q=0.8,*/*;q=0.5",
                "Accept-Language": "en;q=0.9,*;q=0.5",
            },
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def check(self, url: str) -> None:
        """Reject an address that may not be reached.

        :raises ToolFailure: `bad_arguments` or `denied`, with the reason.
        """
        target = http_target(_short(url))
        await resolve_public(target.host, target.port, self._policy, resolve=self._network.resolve)

    async def fetch(self, url: str) -> FetchedPage:
        """Fetch an address, following redirects.

        :raises ToolFailure: if it is blocked, fails, or robots.txt disallows it.
        """
        settings = self._settings
        return await retry_transient(
            lambda: self._follow(url, settings.max_bytes, honour_robots=settings.robots),
            settings.retry_times,
            self._network,
        )

    async def _follow(self, url: str, most: int, *, honour_robots: bool) -> FetchedPage:
        seen = url
        for _ in range(self._settings.max_redirects + 1):
            response = await self._step(seen, most, honour_robots=honour_robots)
            if isinstance(response, FetchedPage):
                return response
            seen = response
        message = f"{url}: more than {self._settings.max_redirects} redirects."
        raise ToolFailure(ErrorKind.FAILED, message)

    async def _step(self, url: str, most: int, *, honour_robots: bool) -> FetchedPage | str:
        """Fetch one address; return the page or the target of a redirect."""
        import aiohttp

        assert self._session is not None, "the client is entered before use"
        address = await self._checked(url)
        if honour_robots:
            await self._check_robots(address)
        await self._wait_for_rate_limit(address.host or "")
        try:
            async with self._session.get(address, allow_redirects=False) as response:
                if response.status in REDIRECTS and (target := response.headers.get("Location")):
                    return _joined(str(address), target)
                data, cut = await read_body(response, most)
        except TimeoutError:
            # Not retried: the caller has already waited for the whole timeout.
            raise ToolFailure(ErrorKind.TIMEOUT, f"{url}: timeout.") from None
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            message = f"{url}: invalid response: {type(error).__name__}."
            raise ToolFailure(ErrorKind.FAILED, message) from None
        except aiohttp.ClientConnectorCertificateError:
            raise ToolFailure(ErrorKind.FAILED, f"{url}: its certificate is not trusted.") from None
        except aiohttp.ClientSSLError:
            raise ToolFailure(ErrorKind.FAILED, f"{url}: the TLS connection failed.") from None
        except aiohttp.ClientError as error:
            failure = ToolFailure(ErrorKind.UNAVAILABLE, f"{url}: cannot be reached: {type(error).__name__}.")
            raise TransientFailure(failure) from None
        if response.status != 200:
            message = f"{url}: the site returned status {response.status}."
            raise refusal(response, _PageRefused(error_kind_of(response.status), message), self._network)
        return FetchedPage(str(address), response.headers.get("Content-Type", ""), data, cut)

    async def _checked(self, url: str) -> "URL":
        """Return the URL to request, with the host that was checked."""
        from yarl import URL

        target = http_target(_short(url))
        # A name is checked when the connector resolves it; a literal address is never resolved.
        if ":" in target.host or target.host.replace(".", "").isdecimal():
            await resolve_public(target.host, target.port, self._policy, resolve=self._network.resolve)
        parts = urlsplit(url)
        return URL.build(
            scheme=parts.scheme,
            host=target.host,
            port=target.port if parts.port is not None else None,
            path=quote(parts.path or "/", safe=_SAFE),
            query_string=quote(parts.query, safe=_SAFE + "?"),
            encoded=True,
        )

    async def _wait_for_rate_limit(self, host: str) -> None:
        """Wait until the host's rate limit allows a request."""
        now = self._network.clock()
        turn = max(now, self._next.get(host, now))
        self._next[host] = turn + self._settings.host_interval
        self._next.move_to_end(host)
        if len(self._next) > MAX_HOSTS:
            self._next.popitem(last=False)
        if turn > now:
            await self._network.sleep(turn - now)

    async def _check_robots(self, address: "URL") -> None:
        origin = str(address.origin())
        robots = self._robots.setdefault(origin, _Rules(anyio.Lock()))
        self._robots.move_to_end(origin)
        if len(self._robots) > MAX_HOSTS:
            self._robots.popitem(last=False)
        async with robots.lock:
            if self._network.clock() >= robots.good_until:
                robots.text = await self._fetch_robots(origin)
                robots.good_until = self._network.clock() + ROBOTS_SECONDS
        rules = robots.text
        if rules == "":
            return
        reading, allowed = self._settings.reading, False
        if rules is not None:
            question = RobotsQuery(rules, self._settings.user_agent, str(address))
            job = ParserJob(reading.seconds, reading.memory_bytes, robots=question)
            answer = await self._parsers.do(job)
            allowed = answer.allowed and answer.failed is None
        if not allowed:
            message = f"{address}: the site's robots.txt disallows it (robots=false overrides it)."
            raise ToolFailure(ErrorKind.DENIED, message)

    async def _fetch_robots(self, origin: str) -> str | None:
        """Return the rules, an empty string if there are none, or `None` if the site cannot tell now, so nothing may be fetched."""
        try:
            page = await self._follow(f"{origin}/robots.txt", MAX_ROBOTS_BYTES, honour_robots=False)
        except TransientFailure as passing:
            if isinstance(passing.failure, _PageRefused):
                return None
            raise
        except _PageRefused:
            return ""
        return page.data.decode("utf-8", "replace")


def _joined(base: str, target: str) -> str:
    try:
        return urljoin(base, target)
    except ValueError:
        raise ToolFailure(ErrorKind.FAILED, f"{base}: it redirects to an invalid address.") from None


def _short(url: str) -> str:
    if len(url) > MAX_URL_CHARS:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"an address may have at most {MAX_URL_CHARS} characters.")
    return url
