"""Services behind the web tools, open as long as the backend is."""

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from mcp_servers.web._cache import WebCache
from mcp_servers.web._engines import SearchEngines
from mcp_servers.web._fetching import PageFetcher
from mcp_servers.web._http import JsonApi, Network
from mcp_servers.web._pages import GoalExtractor, PageReader
from mcp_servers.web._parsers import ParserPool
from mcp_servers.web._results import ArticleHit, QueryResult
from mcp_servers.web._settings import WebSettings
from mcp_servers.web._wikipedia import Wikipedia, WikiText, ZimFile, open_zim


class WebService:
    """Search engines, pages and Wikipedia, as configured. An async context manager."""

    def __init__(self, settings: WebSettings, network: Network, parsers: ParserPool | None = None) -> None:
        self._settings = settings
        values = (getattr(settings, name) for name in WebSettings.model_fields)
        secrets = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        self._api = JsonApi(network, timeout=settings.timeout, attempts=settings.retry_times, secrets=secrets)
        self._own_parsers = ParserPool(settings.reading.processes)
        self._parsers = parsers or self._own_parsers
        self._fetcher = PageFetcher(settings, network, self._parsers)
        self._cache = WebCache(settings.cache, network.wall)
        self._stack = AsyncExitStack()
        self._zim: ZimFile | None = None
        self._wikipedia = Wikipedia(self._api, settings.wikipedia_url, settings.user_agent)
        self.engines = SearchEngines(settings, self._api)
        """Search engines."""
        self.pages = PageReader(settings, self._fetcher, self._parsers, self._api, self._cache)
        """Reader of pages."""
        self.goals = GoalExtractor(settings, self._api, self.pages)
        """Extractor of the text relevant to a goal."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._api)
            await stack.enter_async_context(self._fetcher)
            stack.push_async_callback(self._own_parsers.close)
            if self._settings.zim is not None:
                self._zim = await open_zim(self._settings.zim.expanduser().absolute(), self.pages)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def search(self, query: str, count: int) -> QueryResult:
        """Search for pages; results are cached."""
        settings = self._settings
        engine = self.engines.engine or ""
        where = (settings.google_cx or "", settings.gemini_model, settings.searxng_url or "")
        asked = (
            "search",
            engine,
            *where,
            settings.serper_url,
            settings.google_url,
            settings.gemini_url,
            str(count),
            query,
        )
        known = await self._cache.get(asked, str)
        if known is not None:
            return QueryResult.model_validate_json(known)
        found = await self.engines.search(query, count)
        await self._cache.put(asked, found.model_dump_json())
        return found

    async def articles(self, query: str, language: str, count: int) -> list[ArticleHit]:
        """Search for Wikipedia articles."""
        if self._zim is not None:
            return await self._zim.search(query, count)
        asked = ("articles", self._settings.wikipedia_url, language, str(count), query)
        known = await self._cache.get(asked, list[ArticleHit])
        if known is None:
            known = await self._wikipedia.search(query, language, count)
            await self._cache.put(asked, known)
        return known

    async def article(self, title: str, language: str) -> WikiText:
        """Return the article with a title."""
        if self._zim is not None:
            return await self._zim.article(title)
        asked = ("article", self._settings.wikipedia_url, language, title)
        known = await self._cache.get(asked, WikiText)
        if known is None:
            known = await self._wikipedia.article(title, language)
            await self._cache.put(asked, known)
        return known
