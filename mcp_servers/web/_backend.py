"""The tools of the web backend."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Annotated, TypeVar

import anyio
from pydantic import Field

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.settings import read_environment
from mcp_servers.core._addresses import http_target
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Image, Text
from mcp_servers.core._running import check_settings, sendable
from mcp_servers.core._tool import tool
from mcp_servers.web._http import Network
from mcp_servers.web._parsers import ParserPool
from mcp_servers.web._results import (
    Article,
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
from mcp_servers.web._service import WebService
from mcp_servers.web._settings import WebSettings, unusable_tools, with_environment
from mcp_servers.web._wikipedia import WikiText

__all__ = ["WebBackend"]

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
Query = Annotated[str, Field(min_length=1, max_length=2_000)]
Url = Annotated[str, Field(min_length=1, max_length=4_000)]
Count = Annotated[int, Field(ge=1, le=50, description="How many results to return.")]
Start = Annotated[int, Field(ge=0, description="The character to begin with.")]


async def run_each(
    given: Sequence[A], work: Callable[[A], Awaitable[R]], at_most: int
) -> list[R | ToolFailure]:
    """What the work makes of each, in their order; a failure stands for itself and touches no other."""
    done: dict[int, R | ToolFailure] = {}
    places = anyio.Semaphore(at_most)

    async def one(place: int, thing: A) -> None:
        async with places:
            try:
                done[place] = await work(thing)
            except ToolFailure as failure:
                done[place] = failure

    async with anyio.create_task_group() as group:
        for place, thing in enumerate(given):
            group.start_soon(one, place, thing)
    return [done[place] for place in range(len(given))]


class WebBackend(Backend):
    """The web: search engines, pages, Wikipedia. It keeps nothing for sessions: all share it."""

    name = "web"
    description = "Search the web, read its pages, and look things up in Wikipedia."
    reserved = frozenset(WebSettings.model_fields)

    def __init__(
        self,
        *,
        outside: Network | None = None,
        environment: Callable[[], Mapping[str, str]] = read_environment,
        parsers: ParserPool | None = None,
    ) -> None:
        """Make it.

        :param outside: names, connections and clocks other than this machine's; for tests.
        :param environment: where keys are that the settings leave out.
        :param parsers: processes of somebody else who ends them; by default it has its own.
        """
        self._outside = outside or Network()
        self._environment = environment
        self._parsers = parsers
        self._settings = WebSettings()
        self._opened: WebService | None = None
        self._stack = AsyncExitStack()

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that can't be used, and a ZIM file that is not there."""
        self._read(settings)

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        """The tools whose keys are missing."""
        try:
            return unusable_tools(self._read(settings))
        except ConfigurationError:
            return {}

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the server's settings."""
        self._settings = self._read(settings)

    async def warmup(self) -> None:
        """Open the connections and, if there is one, the ZIM file. Processes that parse start at the first page."""
        if self._opened is None:
            async with AsyncExitStack() as stack:
                self._opened = await stack.enter_async_context(
                    WebService(self._settings, self._outside, self._parsers)
                )
                self._stack = stack.pop_all()

    async def shutdown(self) -> None:
        """End the processes and the connections."""
        self._opened = None
        await self._stack.aclose()

    @tool(title="Search the web", read_only=True, open_world=True)
    async def search(
        self,
        context: CallContext,
        query: Annotated[
            Query | Annotated[list[Query], Field(min_length=1, max_length=20)],
            Field(description="What to look for; a list of queries is searched for at once."),
        ],
        count: Count = 10,
    ) -> SearchResults:
        """Search the web; returns titles, addresses and snippets of pages.

        Use it to find pages about something, or facts that are newer than what you know; web_visit then reads a page
        whole. Several short queries find more than a long one: give them as a list.
        """
        service = self._service
        queries = [sendable("web_search", one) for one in ([query] if isinstance(query, str) else query)]
        found = await run_each(queries, lambda one: service.search(one, count), self._settings.max_workers)
        results = [
            QueryResult(query=one, hits=[], error=outcome.message)
            if isinstance(outcome, ToolFailure)
            else outcome
            for one, outcome in zip(queries, found, strict=True)
        ]
        context.show(Text(hits_text(results)))
        _fail_if_all_failed("web_search", found)
        return SearchResults(results=results)

    @tool(title="Read web pages", read_only=True, open_world=True)
    async def visit(
        self,
        context: CallContext,
        urls: Annotated[
            Url | Annotated[list[Url], Field(min_length=1, max_length=20)],
            Field(description="The address of the page; a list of them is read at once."),
        ],
        goal: Annotated[
            str | None,
            Field(
                max_length=4_000,
                description="What you want to learn from it; then only what serves that is returned.",
            ),
        ] = None,
        start: Start = 0,
    ) -> Visited:
        """Read pages (HTML, PDF, text) as Markdown, whole or what of them serves a goal; pictures are shown.

        Use it after web_search, or with an address you were given. With a goal it returns less to read; without
        one long pages come in parts, to be gone on with by `start`.
        """
        given = [sendable("web_visit", url) for url in ([urls] if isinstance(urls, str) else urls)]
        goal = sendable("web_visit", (goal or "").strip())

        async def read(url: str) -> ReadPage:
            return await self._page(context, url, goal, start)

        outcomes = await run_each(given, read, self._settings.max_workers)
        pages = [
            ReadPage(url=url, error=outcome.message) if isinstance(outcome, ToolFailure) else outcome
            for url, outcome in zip(given, outcomes, strict=True)
        ]
        context.show(Text("\n\n".join(map(page_text, pages))))
        _fail_if_all_failed("web_visit", outcomes)
        return Visited(pages=pages)

    @tool(title="Search in a web page", read_only=True, open_world=True)
    async def read(
        self,
        context: CallContext,
        query: Annotated[Query, Field(description="What to look for in the page.")],
        url: Annotated[Url, Field(description="The address of the page.")],
        count: Annotated[int, Field(ge=1, le=50, description="How many passages to return.")] = 5,
    ) -> PassagesFound:
        """Find the passages of one page that fit a query, with their places in the page's text.

        Use it for a long page or PDF of which you need one thing; web_visit reads pages whole.
        """
        page = await self._service.pages.read(sendable("web_read", url))
        if page.picture is not None:
            raise ToolFailure(ErrorKind.FAILED, f"{url} is a picture: web_visit shows it.")
        passages = await self._service.pages.passages(page.text, sendable("web_read", query), count)
        context.show(Text(passages_text(page.title, page.url, passages)))
        return PassagesFound(
            url=url, final_url=page.url, title=page.title, characters=len(page.text), passages=passages
        )

    @tool(title="Search for pictures", read_only=True, open_world=True)
    async def image_search(
        self,
        context: CallContext,
        query: Annotated[Query, Field(description="What the pictures are to show.")],
        count: Count = 10,
    ) -> ImageResults:
        """Find pictures on the web; returns their addresses and the pages on which they stand.

        Use it when a picture tells what words don't: a place, a person, a diagram.
        """
        query = sendable("web_image_search", query)
        return _shown(context, await self._service.engines.images(query, count))

    @tool(title="Search by a picture", read_only=True, open_world=True)
    async def reverse_image_search(
        self,
        context: CallContext,
        image_url: Annotated[Url, Field(description="The address of the picture, on the public web.")],
        count: Count = 10,
    ) -> ImageResults:
        """Find pages that show a given picture, or one like it.

        Use it to learn what a picture shows, or where it comes from.
        """
        http_target(sendable("web_reverse_image_search", image_url))
        return _shown(context, await self._service.engines.same_image(image_url, count))

    @tool(title="Look up in Wikipedia", read_only=True, open_world=True)
    async def wikipedia(
        self,
        context: CallContext,
        query: Annotated[
            str | None,
            Field(max_length=300, description="What to look for; the best article is returned too."),
        ] = None,
        language: Annotated[
            str,
            Field(pattern=r"^[a-z]{2,3}(-[a-z]{2,10})?$", description="The language, as in `en` or `de`."),
        ] = "en",
        title: Annotated[
            str | None, Field(max_length=300, description="The title of an article, to read just that one.")
        ] = None,
        count: Annotated[int, Field(ge=1, le=20, description="How many articles to list.")] = 5,
        start: Start = 0,
    ) -> WikipediaFound:
        """Search Wikipedia and read an article: by a query its best article, by a title that very one.

        Use it for well-known people, places, works and notions; it is quicker and cleaner than a search of the web.
        """
        service, hits = self._service, []
        query, title = (sendable("web_wikipedia", (text or "").strip()) for text in (query, title))
        if not title:
            if not query:
                raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "web_wikipedia: give a `query` or a `title`.")
            hits = await service.articles(query, language, count)
            if not hits:
                context.show(Text("no article"))
                return WikipediaFound(hits=[])
        found = await service.article(title or hits[0].title, language)
        article = _article(found, start, self._settings.content_limit)
        context.show(Text(article_text(hits, article)))
        return WikipediaFound(hits=hits, article=article)

    async def _page(self, context: CallContext, url: str, goal: str, start: int) -> ReadPage:
        page = await self._service.pages.read(url)
        if page.picture is not None:
            context.show(Image(page.picture[1], page.picture[0]))
            return ReadPage(url=url, final_url=page.url, title=page.title, note=page.note)
        length = len(page.text)
        links = [PageLink(text, where) for text, where in page.links]
        if goal:
            extract = await self._service.goals.extract(page.text, goal)
            notes = "; ".join(note for note in (page.note, extract.note) if note)
            return ReadPage(
                url=url,
                final_url=page.url,
                title=page.title,
                text=extract.text,
                characters=length,
                passages=extract.passages,
                links=links,
                note=notes or None,
            )
        end = _end(start, length, self._settings.content_limit, "web_visit")
        return ReadPage(
            url=url,
            final_url=page.url,
            title=page.title,
            text=page.text[start:end],
            characters=length,
            next_start=end if end < length else None,
            links=links,
            note=page.note,
        )

    def _read(self, settings: Mapping[str, object]) -> WebSettings:
        given = with_environment(settings, self._environment())
        check_settings(WebSettings, self.name, given)
        return WebSettings.model_validate(given)

    @property
    def _service(self) -> WebService:
        if self._opened is None:
            raise ToolFailure(ErrorKind.UNAVAILABLE, "web: it is not open.")
        return self._opened


def _fail_if_all_failed(name: str, outcomes: list[T | ToolFailure]) -> None:
    failures = [outcome for outcome in outcomes if isinstance(outcome, ToolFailure)]
    if len(failures) == len(outcomes):
        raise ToolFailure(failures[0].kind, f"{name}: {failures[0].message}")


def _shown(context: CallContext, hits: list[ImageHit]) -> ImageResults:
    context.show(Text(images_text(hits)))
    return ImageResults(hits=hits)


def _article(found: WikiText, start: int, limit: int) -> Article:
    length = len(found.text)
    end = _end(start, length, limit, "web_wikipedia")
    return Article(
        title=found.title,
        url=found.url,
        text=found.text[start:end],
        start=start,
        end=end,
        characters=length,
        next_start=end if end < length else None,
    )


def _end(start: int, length: int, limit: int, name: str) -> int:
    """Where the part that begins at `start` ends."""
    if start and start >= length:
        message = f"{name}: the text has {length} characters: choose a smaller start than {start}."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    return min(start + limit, length)
