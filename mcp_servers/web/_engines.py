"""Search engines: requests to each service, and conversion of its responses."""

from typing import TypeVar

from msgspec import Struct, field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.web._http import JsonApi
from mcp_servers.web._results import ImageHit, QueryResult, WebHit
from mcp_servers.web._settings import WebSettings, engine_of, key_of

GOOGLE_MAX_RESULTS = 10
"""Most results of Programmable Search per request."""

S = TypeVar("S")


class _SerperHit(Struct):
    link: str
    title: str = ""
    snippet: str = ""
    date: str | None = None


class _SerperBox(Struct):
    answer: str = ""
    snippet: str = ""


class _SerperAnswer(Struct):
    organic: list[_SerperHit] = []
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


class _GoogleHit(Struct):
    link: str
    title: str = ""
    snippet: str = ""


class _GoogleAnswer(Struct):
    items: list[_GoogleHit] = []


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


class _GeminiSegment(Struct):
    text: str = ""


class _GeminiSupport(Struct, rename="camel"):
    segment: _GeminiSegment | None = None
    grounding_chunk_indices: list[int] = []


class _GeminiGrounding(Struct, rename="camel"):
    grounding_chunks: list[_GeminiChunk] = []
    grounding_supports: list[_GeminiSupport] = []


class _GeminiPart(Struct):
    text: str = ""


class _GeminiContent(Struct):
    parts: list[_GeminiPart] = []


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
        """The search engine in use."""

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
                raise ToolFailure(
                    ErrorKind.UNAVAILABLE,
                    "web: no search engine is configured: set SERPER_API_KEY, for example.",
                )

    async def images(self, query: str, count: int) -> list[ImageHit]:
        """Search for images."""
        if self._settings.serper_api_key is None and self._settings.searxng_url:
            params = {"q": query, "format": "json", "categories": "images"}
            url = f"{self._settings.searxng_url}/search"
            found = await self._api.ask("SearXNG", url, _SearxAnswer, params=params)
            return [
                ImageHit(place, hit.title, hit.img_src, hit.url, hit.source or "")
                for place, hit in enumerate(found.results[:count], 1)
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
        params = {"q": query, "format": "json"}
        url = f"{self._settings.searxng_url}/search"
        found = await self._api.ask("SearXNG", url, _SearxAnswer, params=params)
        hits = [
            WebHit(place, hit.title, hit.url, hit.content or "", hit.published)
            for place, hit in enumerate(found.results[:count], 1)
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
    said: dict[int, list[str]] = {}
    for support in grounding.grounding_supports:
        for index in support.grounding_chunk_indices:
            said.setdefault(index, []).append(support.segment.text if support.segment else "")
    pages = [(index, chunk.web) for index, chunk in enumerate(grounding.grounding_chunks) if chunk.web]
    return [
        WebHit(place, page.title, page.uri, " ".join(said.get(index, [])))
        for place, (index, page) in enumerate(pages, 1)
    ]
