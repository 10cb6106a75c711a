"""Clients of the search engines and of Wikipedia: through its API, or from a ZIM file."""

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
from msgspec import Struct, field

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.web._http import JsonApi
from mcp_servers.web._pages import PageReader
from mcp_servers.web._results import ArticleHit, ImageHit, QueryResult, WebHit
from mcp_servers.web._settings import SearchEngine, WebSettings, engine_of, key_of

if TYPE_CHECKING:
    from libzim.reader import Archive


GOOGLE_MAX_RESULTS = 10
"""Most results of Programmable Search per request."""

S = TypeVar("S")
_TAG = re.compile(r"<[^>]*>")
_HEADING = re.compile(r"^(={2,6})[ \t]*(.+?)[ \t]*\1[ \t]*$", re.MULTILINE)


class _LinkHit(Struct):
    link: str
    title: str = ""
    snippet: str = ""
    date: str | None = None


class _SerperBox(Struct):
    answer: str = ""
    snippet: str = ""


class _SerperAnswer(Struct):
    organic: list[_LinkHit] = []
    answer_box: _SerperBox | None = field(name="answerBox", default=None)


class _SerperImage(Struct, rename="camel"):
    title: str = ""
    image_url: str = ""
    link: str = ""
    source: str = ""
    image_width: int | None = None
    image_height: int | None = None


class _SerperImages(Struct):
    images: list[_SerperImage] = []
    organic: list[_SerperImage] = []


class _GoogleAnswer(Struct):
    items: list[_LinkHit] = []


class _SearxHit(Struct, rename={"published": "publishedDate"}):
    url: str
    title: str = ""
    content: str | None = ""
    published: str | None = None
    img_src: str = ""
    source: str | None = ""


class _SearxAnswer(Struct):
    results: list[_SearxHit] = []


class _GeminiPage(Struct):
    uri: str = ""
    title: str = ""


class _GeminiChunk(Struct):
    web: _GeminiPage | None = None


class _GeminiText(Struct):
    text: str = ""


class _GeminiSupport(Struct, rename="camel"):
    segment: _GeminiText | None = None
    grounding_chunk_indices: list[int] = []


class _GeminiGrounding(Struct, rename="camel"):
    grounding_chunks: list[_GeminiChunk] = []
    grounding_supports: list[_GeminiSupport] = []


class _GeminiContent(Struct):
    parts: list[_GeminiText] = []


class _GeminiCandidate(Struct, rename="camel"):
    content: _GeminiContent | None = None
    grounding_metadata: _GeminiGrounding | None = None


class _GeminiAnswer(Struct):
    candidates: list[_GeminiCandidate] = []


class SearchEngines:
    """Client of the configured search service."""

    def __init__(self, settings: WebSettings, api: JsonApi) -> None:
        self._settings = settings
        self._api = api
        self.engine = engine_of(settings)

    async def search(self, query: str, count: int, engine: SearchEngine | None = None) -> QueryResult:
        """Search for pages, by default with the configured service."""
        match engine or self.engine:
            case "serper":
                return await self._serper(query, count)
            case "google":
                return await self._google(query, count)
            case "gemini":
                return await self._gemini(query, count)
            case "searxng":
                return await self._searxng(query, count)
            case _:
                message = "web: no search engine is configured: set SERPER_API_KEY, for example."
                raise ToolFailure(ErrorKind.UNAVAILABLE, message)

    async def images(self, query: str, count: int) -> list[ImageHit]:
        """Search for images."""
        if self._settings.serper_api_key is None and self._settings.searxng_url:
            results = await self._of_searxng(query, count, categories="images")
            return [
                ImageHit(rank, hit.title, hit.img_src, hit.url, hit.source or "")
                for rank, hit in enumerate(results, 1)
            ]
        reply = await self._of_serper("images", {"q": query, "num": count}, _SerperImages)
        return _image_hits(reply.images[:count])

    async def same_image(self, image_url: str, count: int) -> list[ImageHit]:
        """Search for pages that show the same or a similar image."""
        reply = await self._of_serper("lens", {"url": image_url}, _SerperImages)
        return _image_hits((reply.organic or reply.images)[:count])

    async def _of_serper(self, path: str, body: object, shape: type[S]) -> S:
        key = key_of(self._settings.serper_api_key, "serper_api_key")
        url = f"{self._settings.serper_url}/{path}"
        return await self._api.ask("Serper", url, shape, headers={"X-API-KEY": key}, body=body)

    async def _of_searxng(self, query: str, count: int, **options: str) -> list[_SearxHit]:
        params = {"q": query, "format": "json", **options}
        url = f"{self._settings.searxng_url}/search"
        return (await self._api.ask("SearXNG", url, _SearxAnswer, params=params)).results[:count]

    async def _serper(self, query: str, count: int) -> QueryResult:
        reply = await self._of_serper("search", {"q": query, "num": count}, _SerperAnswer)
        box = reply.answer_box
        hits = [
            WebHit(rank, hit.title, hit.link, hit.snippet, hit.date)
            for rank, hit in enumerate(reply.organic[:count], 1)
        ]
        return QueryResult(
            query=query, hits=hits, answer=(box.answer or box.snippet or None) if box else None
        )

    async def _google(self, query: str, count: int) -> QueryResult:
        settings = self._settings
        key = key_of(settings.google_api_key, "google_api_key")
        params = {"q": query, "cx": settings.google_cx or "", "num": str(min(count, GOOGLE_MAX_RESULTS))}
        reply = await self._api.ask(
            "Google", settings.google_url, _GoogleAnswer, params=params, headers={"X-Goog-Api-Key": key}
        )
        hits = [
            WebHit(rank, hit.title, hit.link, " ".join(hit.snippet.split()))
            for rank, hit in enumerate(reply.items[:count], 1)
        ]
        return QueryResult(query=query, hits=hits)

    async def _searxng(self, query: str, count: int) -> QueryResult:
        hits = [
            WebHit(rank, hit.title, hit.url, hit.content or "", hit.published)
            for rank, hit in enumerate(await self._of_searxng(query, count), 1)
        ]
        return QueryResult(query=query, hits=hits)

    async def _gemini(self, query: str, count: int) -> QueryResult:
        settings = self._settings
        key = key_of(settings.gemini_api_key or settings.google_api_key, "gemini_api_key")
        url = f"{settings.gemini_url}/models/{settings.gemini_model}:generateContent"
        body: dict[str, object] = {
            "contents": [{"role": "user", "parts": [{"text": query}]}],
            "tools": [{"google_search": {}}],
        }
        reply = await self._api.ask("Gemini", url, _GeminiAnswer, headers={"X-Goog-Api-Key": key}, body=body)
        candidate = reply.candidates[0] if reply.candidates else _GeminiCandidate()
        answer = "".join(part.text for part in candidate.content.parts) if candidate.content else ""
        hits = _grounding_hits(candidate.grounding_metadata or _GeminiGrounding())
        return QueryResult(query=query, hits=hits[:count], answer=answer or None)


def _image_hits(images: list[_SerperImage]) -> list[ImageHit]:
    return [
        ImageHit(rank, hit.title, hit.image_url, hit.link, hit.source, hit.image_width, hit.image_height)
        for rank, hit in enumerate(images, 1)
    ]


def _grounding_hits(grounding: _GeminiGrounding) -> list[WebHit]:
    """Return the pages that support an answer, each with the supported part of the answer as its snippet."""
    supported: dict[int, list[str]] = {}
    for support in grounding.grounding_supports:
        for index in support.grounding_chunk_indices:
            supported.setdefault(index, []).append(support.segment.text if support.segment else "")
    pages = [(index, chunk.web) for index, chunk in enumerate(grounding.grounding_chunks) if chunk.web]
    return [
        WebHit(rank, page.title, page.uri, " ".join(supported.get(index, [])))
        for rank, (index, page) in enumerate(pages, 1)
    ]


class WikiText(Struct, frozen=True):
    """An article."""

    title: str
    url: str
    text: str
    """Text as Markdown."""


class _Hit(Struct):
    title: str
    snippet: str = ""


class _WikiPage(Struct):
    title: str
    missing: bool = False
    extract: str = ""
    fullurl: str = ""


class _Query(Struct):
    search: list[_Hit] = []
    pages: list[_WikiPage] = []


class _Error(Struct):
    info: str = ""


class _WikiReply(Struct):
    query: _Query | None = None
    error: _Error | None = None


class Wikipedia:
    """Client of a MediaWiki API, with one address or one per language."""

    def __init__(self, api: JsonApi, url: str, agent: str) -> None:
        self._api = api
        self._url = url
        self._agent = agent

    async def search(self, query: str, language: str, count: int) -> list[ArticleHit]:
        """Search for articles."""
        parameters = {"list": "search", "srsearch": query, "srlimit": str(count), "srprop": "snippet"}
        result = await self._ask(parameters, language)
        return [
            ArticleHit(hit.title, html.unescape(_TAG.sub("", hit.snippet)), self._page(hit.title, language))
            for hit in result.search
        ]

    async def article(self, title: str, language: str) -> WikiText:
        """Return the article with a title.

        :raises ToolFailure: `not_found`, if it does not exist.
        """
        parameters = {
            "prop": "extracts|info",
            "inprop": "url",
            "explaintext": "1",
            "exsectionformat": "wiki",
            "redirects": "1",
            "titles": title.replace("|", " "),
        }
        result = await self._ask(parameters, language)
        page = result.pages[0] if result.pages else _WikiPage(title, missing=True)
        if page.missing:
            message = f"Wikipedia ({language}) has no article {title!r}: use `query` to search for it."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        text = _HEADING.sub(lambda heading: f"{'#' * len(heading[1])} {heading[2]}", page.extract).strip()
        return WikiText(page.title, page.fullurl or self._page(page.title, language), text)

    async def _ask(self, parameters: dict[str, str], language: str) -> _Query:
        url = self._url.replace("{language}", language)
        params = {"action": "query", "format": "json", "formatversion": "2", **parameters}
        answer = await self._api.ask(
            "Wikipedia", url, _WikiReply, params=params, headers={"User-Agent": self._agent}
        )
        if answer.error is not None:
            raise ToolFailure(ErrorKind.FAILED, f"Wikipedia: {' '.join(answer.error.info.split())}.")
        return answer.query or _Query()

    def _page(self, title: str, language: str) -> str:
        base = self._url.replace("{language}", language).removesuffix("/w/api.php")
        return f"{base}/wiki/{quote(title.replace(' ', '_'))}"


class ZimFile:
    """An open ZIM file. It is read in a worker thread, one call at a time, because the library blocks."""

    def __init__(self, path: Path, archive: "Archive", pages: PageReader) -> None:
        self._path = path
        self._archive = archive
        self._pages = pages
        self._limiter = anyio.CapacityLimiter(1)

    async def search(self, query: str, count: int) -> list[ArticleHit]:
        """Search for articles: in their text if the file has a full-text index, else in their titles."""
        return await anyio.to_thread.run_sync(self._search, query, count, limiter=self._limiter)

    async def article(self, title: str) -> WikiText:
        """Return the article with a title.

        :raises ToolFailure: `not_found`, if it does not exist.
        """
        name, path, kind, data = await anyio.to_thread.run_sync(self._item, title, limiter=self._limiter)
        parsed = await self._pages.to_markdown(f"zim://{self._path.name}/{path}", kind, data)
        return WikiText(name, f"zim://{self._path.name}/{path}", parsed.text)

    def _search(self, query: str, count: int) -> list[ArticleHit]:
        items = [self._archive.get_entry_by_path(path).get_item() for path in self._paths(query, count)]
        return [ArticleHit(item.title, "", f"zim://{self._path.name}/{item.path}") for item in items]

    def _paths(self, query: str, count: int) -> list[str]:
        if self._archive.has_fulltext_index:
            from libzim.search import Query, Searcher

            return list(Searcher(self._archive).search(Query().set_query(query)).getResults(0, count))
        from libzim.suggestion import SuggestionSearcher

        return list(SuggestionSearcher(self._archive).suggest(query).getResults(0, count))

    def _item(self, title: str) -> tuple[str, str, str, bytes]:
        archive = self._archive
        if archive.has_entry_by_title(title):
            item = archive.get_entry_by_title(title).get_item()
        elif archive.has_entry_by_path(path := title.replace(" ", "_")):
            item = archive.get_entry_by_path(path).get_item()
        else:
            message = f"{self._path.name} has no article {title!r}: use `query` to search for it."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        return item.title, item.path, item.mimetype, bytes(item.content)


async def open_zim(path: Path, pages: PageReader) -> ZimFile:
    """Open a ZIM file.

    :raises ConfigurationError: if the library or the file is missing, or the file is not a ZIM file.
    """
    return ZimFile(path, await anyio.to_thread.run_sync(_open, path), pages)


def _open(path: Path) -> "Archive":
    try:
        from libzim.reader import Archive
    except ImportError:
        raise ConfigurationError(missing_extra("web: the setting zim", "zim")) from None
    if not path.is_file():
        raise ConfigurationError(f"web: zim: there is no file {path}")
    try:
        return Archive(path)
    except (RuntimeError, OSError):
        raise ConfigurationError(f"web: zim: {path} is not a ZIM file") from None
