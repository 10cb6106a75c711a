"""Services on this machine that speak as the real ones are documented to: search engines, Jina, a model, MediaWiki.

Compared on 2026-11-29 with copies of these pages; no service was called:

- Serper publishes no reference outside its playground. https://github.com/api-evangelist/serper describes it: `examples/`
  for the answers, `errors/serper-problem-types.yml` for a wrong key (403, observed on 2026-08-13). `lens` is in neither.
- Google: https://developers.google.com/custom-search/v1/reference/rest/v1/Search and `using_rest`. A wrong key is 400 with
  the reason API_KEY_INVALID, as users quote it (https://github.com/vivet/GoogleApi/issues/375).
- Gemini: https://firebase.google.com/docs/reference/js/ai.groundingmetadata
- SearXNG: https://docs.searxng.org/dev/search_api
- Jina Reader: https://github.com/jina-ai/reader, README.md. It names `url`, `title` and `content`, not what surrounds them.
- MediaWiki: https://m.mediawiki.org/wiki/API:Search
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

KEY = "a-very-secret-key"

ParserReply = Callable[[web.Request, dict[str, object]], object]


class Services:
    """Recorded requests, and answers: documented ones unless a test replaces them."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, dict[str, object]]] = []
        self.headers: list[dict[str, str]] = []
        self.trouble: list[web.Response] = []

    def settings(self, **more: object) -> dict[str, object]:
        """Settings that lead to them."""
        return {
            "serper_url": f"{self.url}/serper",
            "google_url": f"{self.url}/customsearch/v1",
            "gemini_url": f"{self.url}/v1beta",
            "jina_url": f"{self.url}/jina",
            "openai_api_url": f"{self.url}/v1",
            "wikipedia_url": f"{self.url}/{{language}}/w/api.php",
            **more,
        }

    def queries(self) -> list[object]:
        return [parameters.get("q") for _, parameters in self.requests]

    def fails(self, status: int, body: str = "", **headers: str) -> None:
        """The next answer is this one."""
        answer_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.trouble.append(web.Response(status=status, text=body, headers=answer_headers))

    def at(self, answer: ParserReply) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A handler that records what it is asked."""

        async def handle(request: web.Request) -> web.StreamResponse:
            parameters: dict[str, object] = (
                await request.json() if request.method == "POST" else dict(request.query)
            )
            self.requests.append((request.path, parameters))
            self.headers.append(dict(request.headers))
            if self.trouble:
                return self.trouble.pop(0)
            reply = answer(request, parameters)
            return reply if isinstance(reply, web.Response) else web.json_response(reply)

        return handle


def refused(request: web.Request, header: str, status: int = 401) -> web.Response | None:
    """Responses of services to a wrong key; some repeat it."""
    key = request.headers.get(header, "").removeprefix("Bearer ")
    if key == KEY:
        return None
    reply_text = {"message": f"Unauthorized: {key} is no key", "statusCode": status}
    return web.json_response(reply_text, status=status)


def refused_by_google(request: web.Request) -> web.Response | None:
    """Responses of Google's services to a wrong key."""
    if request.headers.get("X-Goog-Api-Key") == KEY:
        return None
    reply_text = "API key not valid. Please pass a valid API key."
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "API_KEY_INVALID",
        "domain": "googleapis.com",
    }
    error = {"code": 400, "message": reply_text, "status": "INVALID_ARGUMENT", "details": [info]}
    return web.json_response({"error": error}, status=400)


def serper_search(request: web.Request, parameters: dict[str, object]) -> object:
    hits = [
        {
            "title": f"{parameters['q']} {n}",
            "link": f"https://site-{n}.example/",
            "snippet": f"Snippet {n}.",
            "position": n,
        }
        for n in (1, 2, 3)
    ]
    hits[0]["date"] = "3 days ago"
    return refused(request, "X-API-KEY", 403) or {
        "searchParameters": {"q": parameters["q"], "type": "search", "engine": "google"},
        "answerBox": {"title": "x", "answer": "42"},
        "organic": hits,
        "peopleAlsoAsk": [],
        "credits": 1,
    }


def serper_images(request: web.Request, parameters: dict[str, object]) -> object:
    image: dict[str, object] = {
        "title": "A bridge",
        "imageUrl": "https://pics.example/bridge.jpg",
        "imageWidth": 640,
        "imageHeight": 480,
        "thumbnailUrl": "https://thumbs.example/1",
        "source": "Pics",
        "domain": "pics.example",
        "link": "https://pics.example/bridge",
        "position": 1,
    }
    return refused(request, "X-API-KEY", 403) or {"images": [image]}


def serper_lens(request: web.Request, parameters: dict[str, object]) -> object:
    hit = {
        "title": "The bridge of Kelder",
        "source": "Isles",
        "link": "https://isles.example/kelder",
        "imageUrl": "https://isles.example/kelder.jpg",
        "thumbnailUrl": "https://thumbs.example/2",
    }
    return refused(request, "X-API-KEY", 403) or {"searchParameters": {"type": "lens"}, "organic": [hit]}


def google(request: web.Request, parameters: dict[str, object]) -> object:
    if (refusal := refused_by_google(request)) is not None:
        return refusal
    if parameters["cx"] != "engine-1":
        return web.json_response({"error": {"code": 404, "message": "not found"}}, status=404)
    if parameters["q"] == "nothing":
        return {"kind": "customsearch#search", "searchInformation": {"totalResults": "0"}}
    item = {
        "kind": "customsearch#result",
        "title": "One",
        "link": "https://one.example/",
        "snippet": "A\nb …",
    }
    return {"kind": "customsearch#search", "items": [item]}


def gemini(request: web.Request, parameters: dict[str, object]) -> object:
    if (refusal := refused_by_google(request)) is not None:
        return refusal
    if parameters["tools"] != [{"google_search": {}}]:
        return web.json_response({"error": {"code": 400, "message": "unknown tool"}}, status=400)
    chunks = [
        {"web": {"uri": "https://a.example/", "title": "a.example"}},
        {"web": {"uri": "https://b.example/", "title": "b.example"}},
    ]
    supports = [
        {"segment": {"startIndex": 0, "endIndex": 9, "text": "It is long."}, "groundingChunkIndices": [0, 1]},
        {"segment": {"text": "It is old."}, "groundingChunkIndices": [1]},
    ]
    grounding = {"webSearchQueries": ["q"], "groundingChunks": chunks, "groundingSupports": supports}
    content = {"role": "model", "parts": [{"text": "It is long. "}, {"text": "It is old."}]}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "groundingMetadata": grounding}],
        "modelVersion": "gemini-2.5-flash",
    }


def searxng(request: web.Request, parameters: dict[str, object]) -> object:
    if parameters.get("format") != "json":
        return web.Response(status=403, text="<h1>Forbidden</h1>", content_type="text/html")
    hit: dict[str, object] = {
        "url": "https://s.example/",
        "title": "S",
        "content": "Found by many.",
        "score": 2,
    }
    if parameters.get("categories") == "images":
        hit |= {"img_src": "https://s.example/s.png", "source": "S", "template": "images.html"}
    else:
        hit["publishedDate"] = "2026-01-02T00:00:00"
    return {
        "query": parameters["q"],
        "number_of_results": 1,
        "results": [hit],
        "answers": [],
        "infoboxes": [],
    }


def jina(request: web.Request, parameters: dict[str, object]) -> object:
    data = {
        "title": "By Jina",
        "description": "",
        "url": parameters["url"],
        "content": "# By Jina\n\nThe whole page.",
        "links": {"More": "https://more.example/"},
        "usage": {"tokens": 9},
    }
    return refused(request, "Authorization") or {"code": 200, "status": 20000, "data": data}


def model(request: web.Request, parameters: dict[str, object]) -> object:
    text = json.dumps(parameters["messages"], ensure_ascii=False)
    reply_text = "It is 230 metres long. ![x](http://a.example/x.png)" if "230 metres" in text else "Nothing."
    choice = {"index": 0, "message": {"role": "assistant", "content": reply_text}, "finish_reason": "stop"}
    return refused(request, "Authorization") or {"id": "1", "object": "chat.completion", "choices": [choice]}


ARTICLES = {
    "Kelder Bridge": "The bridge is in Kelder.\n\n\n== History ==\nBuilt in 1821.\n\n\n=== Repairs ===\nIn 1955.",
    "Bruck an der Mur": "Eine Stadt.",
}


def mediawiki(request: web.Request, parameters: dict[str, object]) -> object:
    if parameters.get("list") == "search":
        query = str(parameters["srsearch"])
        hits = [
            {
                "ns": 0,
                "title": name,
                "pageid": n,
                "snippet": f'The <span class="searchmatch">{name}</span> &amp; more',
            }
            for n, name in enumerate(ARTICLES)
            if query.lower().split()[0] in name.lower()
        ]
        return {"batchcomplete": True, "query": {"searchinfo": {"totalhits": len(hits)}, "search": hits}}
    title = str(parameters["titles"]).replace("_", " ")
    if title == "a|b":
        return {"error": {"code": "toomany", "info": "Too many\nvalues."}}
    if title not in ARTICLES:
        return {"query": {"pages": [{"ns": 0, "title": title, "missing": True}]}}
    url = f"https://en.wikipedia.org/wiki/{title.replace(' ', '_')}"
    page = {"pageid": 1, "ns": 0, "title": title, "extract": ARTICLES[title], "fullurl": url}
    return {"batchcomplete": True, "query": {"pages": [page]}}


@asynccontextmanager
async def some_services() -> AsyncGenerator[Services]:
    """All of them, listening."""
    services = Services()
    application = web.Application()
    for path, answer in {
        "/serper/search": serper_search,
        "/serper/images": serper_images,
        "/serper/lens": serper_lens,
        "/customsearch/v1": google,
        "/v1beta/models/{model}:generateContent": gemini,
        "/searxng/search": searxng,
        "/jina/": jina,
        "/v1/chat/completions": model,
        "/{language}/w/api.php": mediawiki,
    }.items():
        application.router.add_route("*", path, services.at(answer))
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        services.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield services
    finally:
        await runner.cleanup()
