"""Wikipedia: searched and read through the MediaWiki API."""

import html
import re

from msgspec import Struct

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.web._api import Api
from mcp_servers.web._results import ArticleHit

__all__ = ["WikiText", "Wikipedia"]

_TAG = re.compile(r"<[^>]*>")
_HEADING = re.compile(r"^(={2,6})[ \t]*(.+?)[ \t]*\1[ \t]*$", re.MULTILINE)


class WikiText(Struct, frozen=True):
    """An article."""

    title: str
    """Its title."""
    url: str
    """Its address."""
    text: str
    """Its text as Markdown."""


class _Hit(Struct):
    title: str
    snippet: str = ""


class _Page(Struct):
    title: str
    missing: bool = False
    extract: str = ""
    fullurl: str = ""


class _Query(Struct):
    search: list[_Hit] = []
    pages: list[_Page] = []


class _Error(Struct):
    info: str = ""


class _Answer(Struct):
    query: _Query | None = None
    error: _Error | None = None


class Wikipedia:
    """One MediaWiki API, or one for each language."""

    def __init__(self, api: Api, url: str, agent: str) -> None:
        self._api = api
        self._url = url
        self._agent = agent

    async def search(self, query: str, language: str, count: int) -> list[ArticleHit]:
        """Articles for a query."""
        asked = {"list": "search", "srsearch": query, "srlimit": str(count), "srprop": "snippet"}
        found = await self._ask(asked, language)
        return [
            ArticleHit(hit.title, _plain(hit.snippet), self._page(hit.title, language))
            for hit in found.search
        ]

    async def article(self, title: str, language: str) -> WikiText:
        """The article of a title.

        :raises ToolFailure: `not_found`, if there is none.
        """
        asked = {
            "prop": "extracts|info",
            "inprop": "url",
            "explaintext": "1",
            "exsectionformat": "wiki",
            "redirects": "1",
            "titles": title.replace("|", " "),
        }
        found = await self._ask(asked, language)
        page = found.pages[0] if found.pages else _Page(title, missing=True)
        if page.missing:
            message = f"Wikipedia ({language}) has no article {title!r}: search for it with `query`."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        text = _HEADING.sub(lambda heading: f"{'#' * len(heading[1])} {heading[2]}", page.extract).strip()
        return WikiText(page.title, page.fullurl or self._page(page.title, language), text)

    async def _ask(self, asked: dict[str, str], language: str) -> _Query:
        url = self._url.replace("{language}", language)
        params = {"action": "query", "format": "json", "formatversion": "2", **asked}
        answer = await self._api.ask(
            "Wikipedia", url, _Answer, params=params, headers={"User-Agent": self._agent}
        )
        if answer.error is not None:
            raise ToolFailure(ErrorKind.FAILED, f"Wikipedia: {' '.join(answer.error.info.split())}.")
        return answer.query or _Query()

    def _page(self, title: str, language: str) -> str:
        from urllib.parse import quote

        base = self._url.replace("{language}", language).removesuffix("/w/api.php")
        return f"{base}/wiki/{quote(title.replace(' ', '_'))}"


def _plain(snippet: str) -> str:
    return html.unescape(_TAG.sub("", snippet))
