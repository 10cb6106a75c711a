"""Wikipedia: through the MediaWiki API, or from a ZIM file."""

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import anyio.to_thread
from msgspec import Struct

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers.web._http import JsonApi
from mcp_servers.web._pages import PageReader
from mcp_servers.web._results import ArticleHit

if TYPE_CHECKING:
    from libzim.reader import Archive


_TAG = re.compile(r"<[^>]*>")
_HEADING = re.compile(r"^(={2,6})[ \t]*(.+?)[ \t]*\1[ \t]*$", re.MULTILINE)


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
        asked = {"list": "search", "srsearch": query, "srlimit": str(count), "srprop": "snippet"}
        found = await self._ask(asked, language)
        return [
            ArticleHit(hit.title, html.unescape(_TAG.sub("", hit.snippet)), self._page(hit.title, language))
            for hit in found.search
        ]

    async def article(self, title: str, language: str) -> WikiText:
        """Return the article with a title.

        :raises ToolFailure: `not_found`, if it does not exist.
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
        page = found.pages[0] if found.pages else _WikiPage(title, missing=True)
        if page.missing:
            message = f"Wikipedia ({language}) has no article {title!r}: use `query` to search for it."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        text = _HEADING.sub(lambda heading: f"{'#' * len(heading[1])} {heading[2]}", page.extract).strip()
        return WikiText(page.title, page.fullurl or self._page(page.title, language), text)

    async def _ask(self, asked: dict[str, str], language: str) -> _Query:
        url = self._url.replace("{language}", language)
        params = {"action": "query", "format": "json", "formatversion": "2", **asked}
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
        self._turn = anyio.CapacityLimiter(1)

    async def search(self, query: str, count: int) -> list[ArticleHit]:
        """Search for articles: in their text if the file has a full-text index, else in their titles."""
        return await anyio.to_thread.run_sync(self._search, query, count, limiter=self._turn)

    async def article(self, title: str) -> WikiText:
        """Return the article with a title.

        :raises ToolFailure: `not_found`, if it does not exist.
        """
        name, path, kind, data = await anyio.to_thread.run_sync(self._item, title, limiter=self._turn)
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
        message = "web: zim needs libzim: pip install 'agentflow[zim]', or leave the setting out"
        raise ConfigurationError(message) from None
    if not path.is_file():
        raise ConfigurationError(f"web: zim: there is no file {path}")
    try:
        return Archive(path)
    except (RuntimeError, OSError):
        raise ConfigurationError(f"web: zim: {path} is not a ZIM file") from None
