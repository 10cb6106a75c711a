"""Wikipedia, or whatever else there is, from a ZIM file."""

from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from mcp_servers.web._pages import Pages
from mcp_servers.web._results import ArticleHit
from mcp_servers.web._wikipedia import WikiText

if TYPE_CHECKING:
    from libzim.reader import Archive

__all__ = ["Zim", "open_zim"]


class Zim:
    """One ZIM file, open. It is read in threads, one after the other: the library waits for the disk."""

    def __init__(self, path: Path, archive: "Archive", pages: Pages) -> None:
        self._path = path
        self._archive = archive
        self._pages = pages
        self._turn = anyio.CapacityLimiter(1)

    async def search(self, query: str, count: int) -> list[ArticleHit]:
        """Articles for a query: by their text where the file has an index of it, else by their titles."""
        return await anyio.to_thread.run_sync(self._search, query, count, limiter=self._turn)

    async def article(self, title: str) -> WikiText:
        """The article of a title.

        :raises ToolFailure: `not_found`, if there is none.
        """
        name, path, kind, data = await anyio.to_thread.run_sync(self._item, title, limiter=self._turn)
        parsed = await self._pages.markdown_of(f"zim://{self._path.name}/{path}", kind, data)
        return WikiText(name, f"zim://{self._path.name}/{path}", parsed.text)

    def _search(self, query: str, count: int) -> list[ArticleHit]:
        paths = self._paths(query, count)
        hits: list[ArticleHit] = []
        for path in paths:
            item = self._archive.get_entry_by_path(path).get_item()
            hits.append(ArticleHit(item.title, "", f"zim://{self._path.name}/{item.path}"))
        return hits

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
            message = f"{self._path.name} has no article {title!r}: search for it with `query`."
            raise ToolFailure(ErrorKind.NOT_FOUND, message)
        return item.title, item.path, item.mimetype, bytes(item.content)


async def open_zim(path: Path, pages: Pages) -> Zim:
    """Open a ZIM file.

    :raises ConfigurationError: if the library or the file is missing, or it is none.
    """
    return Zim(path, await anyio.to_thread.run_sync(_open, path), pages)


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
        raise ConfigurationError(f"web: zim: {path} is no ZIM file") from None
