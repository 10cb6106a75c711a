"""Services behind the web tools, open as long as the backend is: search engines, pages and Wikipedia."""

from contextlib import AsyncExitStack
from typing import Self, TypeVar

from msgspec import Struct, field
from pydantic import SecretStr

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.web._cache import WebCache
from mcp_servers.web._fetching import PageFetcher
from mcp_servers.web._http import JsonApi, Network
from mcp_servers.web._pages import GoalExtractor, PageReader
from mcp_servers.web._parsers import ParserPool
from mcp_servers.web._results import ArticleHit, ImageHit, QueryResult, WebHit
from mcp_servers.web._settings import WebSettings, engine_of, key_of
from mcp_servers.web._wikipedia import Wikipedia, WikiText, ZimFile, open_zim

GOOGLE_MAX_RESULTS = 10
"""Most results of Programmable Search per request."""

S = TypeVar("S")


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

    async def search(self, query: str, count: int) -> QueryResult:
        """Search for pages."""
        match self.engine:
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
                ImageHit(place, hit.title, hit.img_src, hit.url, hit.source or "")
                for place, hit in enumerate(results, 1)
            ]
        found = await self._of_serper("images", {"q": query, "num": count}, _SerperImages)
        return _image_hits(found.images[:count])

    async def same_image(self, image_url: str, count: int) -> list[ImageHit]:
        """Search for pages that show the same or a similar image."""
        found = await self._of_serper("lens", {"url": image_url}, _SerperImages)
        return _image_hits((found.organic or found.images)[:count])

    async def _of_serper(self, path: str, body: object, shape: type[S]) -> S:
        key = key_of(self._settings.serper_api_key, "serper_api_key")
        url = f"{self._settings.serper_url}/{path}"
        return await self._api.ask("Serper", url, shape, headers={"X-API-KEY": key}, body=body)

    async def _of_searxng(self, query: str, count: int, **options: str) -> list[_SearxHit]:
        params = {"q": query, "format": "json", **options}
        url = f"{self._settings.searxng_url}/search"
        return (await self._api.ask("SearXNG", url, _SearxAnswer, params=params)).results[:count]

    async def _serper(self, query: str, count: int) -> QueryResult:
        found = await self._of_serper("search", {"q": query, "num": count}, _SerperAnswer)
        box = found.answer_box
        hits = [
            WebHit(place, hit.title, hit.link, hit.snippet, hit.date)
            for place, hit in enumerate(found.organic[:count], 1)
        ]
        return QueryResult(
            query=query, hits=hits, answer=(box.answer or box.snippet or None) if box else None
        )

    async def _google(self, query: str, count: int) -> QueryResult:
        settings = self._settings
        key = key_of(settings.google_api_key, "google_api_key")
        params = {"q": query, "cx": settings.google_cx or "", "num": str(min(count, GOOGLE_MAX_RESULTS))}
        found = await self._api.ask(
            "Google", settings.google_url, _GoogleAnswer, params=params, headers={"X-Goog-Api-Key": key}
        )
        hits = [
            WebHit(place, hit.title, hit.link, " ".join(hit.snippet.split()))
            for place, hit in enumerate(found.items[:count], 1)
        ]
        return QueryResult(query=query, hits=hits)

    async def _searxng(self, query: str, count: int) -> QueryResult:
        hits = [
            WebHit(place, hit.title, hit.url, hit.content or "", hit.published)
            for place, hit in enumerate(await self._of_searxng(query, count), 1)
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
        found = await self._api.ask("Gemini", url, _GeminiAnswer, headers={"X-Goog-Api-Key": key}, body=body)
        candidate = found.candidates[0] if found.candidates else _GeminiCandidate()
        answer = "".join(part.text for part in candidate.content.parts) if candidate.content else ""
        hits = _grounding_hits(candidate.grounding_metadata or _GeminiGrounding())
        return QueryResult(query=query, hits=hits[:count], answer=answer or None)


def _image_hits(found: list[_SerperImage]) -> list[ImageHit]:
    return [
        ImageHit(place, hit.title, hit.image_url, hit.link, hit.source, hit.image_width, hit.image_height)
        for place, hit in enumerate(found, 1)
    ]


def _grounding_hits(grounding: _GeminiGrounding) -> list[WebHit]:
    """Return the pages that support an answer, each with the supported part of the answer as its snippet."""
    supported: dict[int, list[str]] = {}
    for support in grounding.grounding_supports:
        for index in support.grounding_chunk_indices:
            supported.setdefault(index, []).append(support.segment.text if support.segment else "")
    pages = [(index, chunk.web) for index, chunk in enumerate(grounding.grounding_chunks) if chunk.web]
    return [
        WebHit(place, page.title, page.uri, " ".join(supported.get(index, [])))
        for place, (index, page) in enumerate(pages, 1)
    ]


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

    async def search(self, query: str, count: int) -> QueryResult:
        """Search for pages; results are cached."""
        settings = self._settings
        asked = (
            "search",
            self.engines.engine or "",
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
            return (await self.engines.search(query, count)).model_dump_json()

        return QueryResult.model_validate_json(await self._cache.get_or_request(asked, str, request))

    async def articles(self, query: str, language: str, count: int) -> list[ArticleHit]:
        """Search for Wikipedia articles."""
        if self._zim is not None:
            return await self._zim.search(query, count)
        asked = ("articles", self._settings.wikipedia_url, language, str(count), query)
        return await self._cache.get_or_request(
            asked, list[ArticleHit], lambda: self._wikipedia.search(query, language, count)
        )

    async def article(self, title: str, language: str) -> WikiText:
        """Return the article with a title."""
        if self._zim is not None:
            return await self._zim.article(title)
        asked = ("article", self._settings.wikipedia_url, language, title)
        return await self._cache.get_or_request(
            asked, WikiText, lambda: self._wikipedia.article(title, language)
        )
