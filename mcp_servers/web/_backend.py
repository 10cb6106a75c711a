"""The tools of the web backend, and the services behind them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Self, TypeVar

import anyio
from pydantic import Field, SecretStr

from agentflow.actors import together
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.settings import read_environment
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Image, TextContent
from mcp_servers.core._running import check_settings, sendable
from mcp_servers.core._tool import tool
from mcp_servers.web._cache import WebCache
from mcp_servers.web._fetching import PageFetcher
from mcp_servers.web._http import JsonApi, Network
from mcp_servers.web._pages import GoalExtractor, PageReader
from mcp_servers.web._parsers import ParserPool
from mcp_servers.web._results import (
    Article,
    ArticleHit,
    ImageHit,
    ImageResults,
    PageLink,
    PassagesFound,
    QueryResult,
    ReadPage,
    SearchResults,
    Visited,
    WikipediaFound,
    article_text,
    hits_text,
    images_text,
    page_text,
    passages_text,
)
from mcp_servers.web._search_services import SearchEngines, Wikipedia, WikiText, ZimFile, open_zim
from mcp_servers.web._settings import (
    SearchEngine,
    WebSettings,
    preferred_engine,
    unusable_tools,
    with_environment,
)
from runtimes.egress import http_target

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
Query = Annotated[str, Field(min_length=1, max_length=2_000)]
Url = Annotated[str, Field(min_length=1, max_length=4_000)]
Count = Annotated[int, Field(ge=1, le=50, description="Maximum number of results.")]
Start = Annotated[int, Field(ge=0, description="Position of the first character to return.")]


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
        self.pages = PageReader(settings, self._fetcher, self._parsers, self._api, self._cache)
        self.goals = GoalExtractor(settings, self._api, self.pages)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._api)
            await stack.enter_async_context(self._fetcher)
            stack.push_async_callback(self._own_parsers.close)
            if self._settings.zim is not None:
                self._zim = await open_zim(self._settings.zim.expanduser().absolute(), self.pages)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def search(self, query: str, count: int, engine: SearchEngine | None) -> QueryResult:
        """Search for pages; results are cached."""
        settings = self._settings
        key = (
            "search",
            engine or "",
            settings.google_cx or "",
            settings.gemini_model,
            settings.searxng_url or "",
            settings.serper_url,
            settings.google_url,
            settings.gemini_url,
            str(count),
            query,
        )

        async def request() -> str:
            return (await self.engines.search(query, count, engine)).model_dump_json()

        return QueryResult.model_validate_json(await self._cache.get_or_request(key, str, request))

    async def articles(self, query: str, language: str, count: int) -> list[ArticleHit]:
        """Search for Wikipedia articles."""
        if self._zim is not None:
            return await self._zim.search(query, count)
        key = ("articles", self._settings.wikipedia_url, language, str(count), query)
        return await self._cache.get_or_request(
            key, list[ArticleHit], lambda: self._wikipedia.search(query, language, count)
        )

    async def article(self, title: str, language: str) -> WikiText:
        """Return the article with a title."""
        if self._zim is not None:
            return await self._zim.article(title)
        key = ("article", self._settings.wikipedia_url, language, title)
        return await self._cache.get_or_request(
            key, WikiText, lambda: self._wikipedia.article(title, language)
        )


async def run_each(
    items: Sequence[A], work: Callable[[A], Awaitable[R]], at_most: int
) -> list[R | ToolFailure]:
    """Run `work` on each item concurrently; return results and failures in order."""
    limiter = anyio.CapacityLimiter(at_most)

    async def attempt(item: A) -> R | ToolFailure:
        async with limiter:
            try:
                return await work(item)
            except ToolFailure as failure:
                return failure

    return await together(partial(attempt, item) for item in items)


class WebBackend(Backend):
    """Tools for web search, pages and Wikipedia. They are stateless, shared by all sessions."""

    name = "web"
    description = "Search the web, read web pages, and look up Wikipedia articles."
    settings_model = WebSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = frozenset(WebSettings.model_fields)

    def __init__(
        self,
        *,
        network: Network | None = None,
        environment: Callable[[], Mapping[str, str]] = read_environment,
        parsers: ParserPool | None = None,
    ) -> None:
        """:param network: name resolution, connections and clocks, for tests.
        :param environment: source of keys that are missing in the settings.
        :param parsers: pool of parser processes owned by the caller; by default the backend has its own.
        """
        self._network = network or Network()
        self._environment = environment
        self._parsers = parsers
        self._settings = WebSettings()
        self._opened: WebService | None = None
        self._stack = AsyncExitStack()

    def check(self, settings: Mapping[str, object]) -> None:
        """Reject invalid settings and a missing ZIM file."""
        self._read(settings)

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        """Return the tools whose keys are missing."""
        try:
            return unusable_tools(self._read(settings))
        except ConfigurationError:
            return {}

    def configure(self, settings: Mapping[str, object]) -> None:
        """Apply the server's settings."""
        self._settings = self._read(settings)

    async def warmup(self) -> None:
        """Open the connections and the ZIM file. Parser processes start with the first page."""
        if self._opened is None:
            service = WebService(self._settings, self._network, self._parsers)
            self._opened = await self._stack.enter_async_context(service)

    async def shutdown(self) -> None:
        """Stop the parser processes and close the connections."""
        self._opened = None
        await self._stack.aclose()

    @tool(title="Search the web", read_only=True, open_world=True)
    async def search(
        self,
        context: CallContext,
        query: Annotated[
            Query | Annotated[list[Query], Field(min_length=1, max_length=20)],
            Field(description="The query, or a list of queries that run concurrently."),
        ],
        count: Count = 10,
        engine: Annotated[
            SearchEngine | None,
            Field(description="The search service, if you need a certain one; by default the usual one."),
        ] = None,
    ) -> SearchResults:
        """Search the web; return titles, addresses and snippets of pages.

        Use it to find pages on a topic, or facts more recent than your knowledge; web_visit then reads a whole page.
        Several short queries, given as a list, find more than one long query.
        """
        service = self._service
        queries = [sendable("web_search", text) for text in ([query] if isinstance(query, str) else query)]
        used, note = preferred_engine(self._settings, engine)
        outcomes = await run_each(
            queries, lambda text: service.search(text, count, used), self._settings.max_workers
        )
        results = [
            QueryResult(query=text, hits=[], error=outcome.message)
            if isinstance(outcome, ToolFailure)
            else outcome
            for text, outcome in zip(queries, outcomes, strict=True)
        ]
        context.show(TextContent("\n\n".join(filter(None, [note, hits_text(results)]))))
        _fail_if_all_failed("web_search", outcomes)
        return SearchResults(results=results, note=note or None)

    @tool(title="Read web pages", read_only=True, open_world=True)
    async def visit(
        self,
        context: CallContext,
        urls: Annotated[
            Url | Annotated[list[Url], Field(min_length=1, max_length=20)],
            Field(description="The address of the page, or a list of addresses that are read concurrently."),
        ],
        goal: Annotated[
            str | None,
            Field(
                max_length=4_000,
                description="What you want to learn; only relevant text is returned.",
            ),
        ] = None,
        start: Start = 0,
    ) -> Visited:
        """Read pages (HTML, PDF, text) as Markdown, in full or only what is relevant to a goal; images are shown.

        Use it after web_search, or with a known address. With a goal it returns less text; without one, long pages
        are returned in parts: continue with `start`.
        """
        addresses = [sendable("web_visit", url) for url in ([urls] if isinstance(urls, str) else urls)]
        goal = sendable("web_visit", (goal or "").strip())

        async def read(url: str) -> ReadPage:
            return await self._page(context, url, goal, start)

        outcomes = await run_each(addresses, read, self._settings.max_workers)
        pages = [
            ReadPage(url=url, error=outcome.message) if isinstance(outcome, ToolFailure) else outcome
            for url, outcome in zip(addresses, outcomes, strict=True)
        ]
        context.show(TextContent("\n\n".join(map(page_text, pages))))
        _fail_if_all_failed("web_visit", outcomes)
        return Visited(pages=pages)

    @tool(title="Search in a web page", read_only=True, open_world=True)
    async def read(
        self,
        context: CallContext,
        query: Annotated[Query, Field(description="The text to search for in the page.")],
        url: Annotated[Url, Field(description="The address of the page.")],
        count: Annotated[int, Field(ge=1, le=50, description="Maximum number of passages.")] = 5,
    ) -> PassagesFound:
        """Find the passages of one page that match a query, with their positions in the page's text.

        Use it to find one fact in a long page or PDF; web_visit reads whole pages.
        """
        page = await self._service.pages.read(sendable("web_read", url))
        if page.picture is not None:
            raise ToolFailure(ErrorKind.FAILED, f"{url} is an image: use web_visit to see it.")
        passages = await self._service.pages.passages(page.text, sendable("web_read", query), count)
        context.show(TextContent(passages_text(page.title, page.url, passages)))
        return PassagesFound(
            url=url, final_url=page.url, title=page.title, characters=len(page.text), passages=passages
        )

    @tool(title="Search for images", read_only=True, open_world=True)
    async def image_search(
        self,
        context: CallContext,
        query: Annotated[Query, Field(description="What the images should show.")],
        count: Count = 10,
    ) -> ImageResults:
        """Search for images on the web; return their addresses and the pages that show them.

        Use it to see what text does not show: a place, a person, a diagram.
        """
        query = sendable("web_image_search", query)
        return _shown(context, await self._service.engines.images(query, count))

    @tool(title="Search by image", read_only=True, open_world=True)
    async def reverse_image_search(
        self,
        context: CallContext,
        image_url: Annotated[Url, Field(description="The address of the image, on the public web.")],
        count: Count = 10,
    ) -> ImageResults:
        """Find pages that show the same or a similar image.

        Use it to learn what an image shows, or where it comes from.
        """
        http_target(sendable("web_reverse_image_search", image_url))
        return _shown(context, await self._service.engines.same_image(image_url, count))

    @tool(title="Look up in Wikipedia", read_only=True, open_world=True)
    async def wikipedia(
        self,
        context: CallContext,
        query: Annotated[
            str | None,
            Field(
                max_length=300, description="A search query; the text of the best article is returned too."
            ),
        ] = None,
        language: Annotated[
            str,
            Field(pattern=r"^[a-z]{2,3}(-[a-z]{2,10})?$", description="The language, as in `en` or `de`."),
        ] = "en",
        title: Annotated[
            str | None, Field(max_length=300, description="The title of an article to read.")
        ] = None,
        count: Annotated[int, Field(ge=1, le=20, description="Maximum number of articles to list.")] = 5,
        start: Start = 0,
    ) -> WikipediaFound:
        """Search Wikipedia and read the best article, or read the article with a given title.

        Use it for well-known people, places, works and concepts; it is faster and cleaner than a web search.
        """
        service, hits = self._service, []
        query, title = (sendable("web_wikipedia", (text or "").strip()) for text in (query, title))
        if not title:
            if not query:
                raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "web_wikipedia: give a `query` or a `title`.")
            hits = await service.articles(query, language, count)
            if not hits:
                context.show(TextContent("no article"))
                return WikipediaFound(hits=[])
        wiki_text = await service.article(title or hits[0].title, language)
        text, next_start = _part("web_wikipedia", wiki_text.text, start, self._settings.content_limit)
        article = Article(
            title=wiki_text.title,
            url=wiki_text.url,
            text=text,
            start=start,
            end=start + len(text),
            characters=len(wiki_text.text),
            next_start=next_start,
        )
        context.show(TextContent(article_text(hits, article)))
        return WikipediaFound(hits=hits, article=article)

    async def _page(self, context: CallContext, url: str, goal: str, start: int) -> ReadPage:
        page = await self._service.pages.read(url)
        if page.picture is not None:
            context.show(Image(page.picture[1], page.picture[0]))
            return ReadPage(url=url, final_url=page.url, title=page.title, note=page.note)
        if goal:
            extract = await self._service.goals.extract(page.text, goal)
            text, next_start, passages = extract.text, None, extract.passages
            note = "; ".join(note for note in (page.note, extract.note) if note) or None
        else:
            text, next_start = _part("web_visit", page.text, start, self._settings.content_limit)
            passages, note = [], page.note
        return ReadPage(
            url=url,
            final_url=page.url,
            title=page.title,
            text=text,
            characters=len(page.text),
            next_start=next_start,
            passages=passages,
            links=[PageLink(label, address) for label, address in page.links],
            note=note,
        )

    def _read(self, settings: Mapping[str, object]) -> WebSettings:
        return check_settings(WebSettings, self.name, with_environment(settings, self._environment()))

    @property
    def _service(self) -> WebService:
        if self._opened is None:
            raise ToolFailure(ErrorKind.UNAVAILABLE, "web: the backend is not open.")
        return self._opened


def _fail_if_all_failed(name: str, outcomes: list[T | ToolFailure]) -> None:
    failures = [outcome for outcome in outcomes if isinstance(outcome, ToolFailure)]
    if len(failures) == len(outcomes):
        raise ToolFailure(failures[0].kind, f"{name}: {failures[0].message}")


def _shown(context: CallContext, hits: list[ImageHit]) -> ImageResults:
    context.show(TextContent(images_text(hits)))
    return ImageResults(hits=hits)


def _part(name: str, text: str, start: int, limit: int) -> tuple[str, int | None]:
    """Return the part of a text that starts at `start`, and the start of the next part, if there is one."""
    if start and start >= len(text):
        message = f"{name}: the text has {len(text)} characters: choose a start below {start}."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    end = start + limit
    return text[start:end], end if end < len(text) else None
