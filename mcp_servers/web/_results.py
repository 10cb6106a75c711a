"""Results of the web tools, and their text form for a model."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ConfigDict, Field

from mcp_servers.core._call import Output

_DESCRIBED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class WebHit:
    """A search result."""

    __pydantic_config__ = _DESCRIBED

    position: int
    """Rank, from 1."""
    title: str
    """Title."""
    url: str
    """Address, as web_visit takes it."""
    snippet: str
    """Excerpt shown by the search engine."""
    date: str | None = None
    """Publication date, if the engine provides it."""


class QueryResult(Output):
    """Results of one query."""

    query: str
    """The query."""
    hits: list[WebHit]
    """Hits, best first."""
    answer: str | None = None
    """Direct answer of the engine, if it gives one."""
    error: str | None = None
    """Reason if this query failed; other queries are unaffected."""


class SearchResults(Output):
    """Results of a search."""

    results: list[QueryResult]
    """One result per query, in order."""
    note: str | None = None
    """Search service that was used, if it is not the requested one."""


@dataclass(frozen=True, slots=True)
class ImageHit:
    """An image found by a search."""

    __pydantic_config__ = _DESCRIBED

    position: int
    """Rank, from 1."""
    title: str
    """Text of the link."""
    image_url: str
    """Address of the image."""
    page_url: str
    """Address of the page that shows it."""
    source: str
    """Name of the site."""
    width: int | None = None
    """Width in pixels, if known."""
    height: int | None = None
    """Height in pixels, if known."""


class ImageResults(Output):
    """Images found by a search."""

    hits: list[ImageHit]
    """Hits, best first."""


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link on a page."""

    __pydantic_config__ = _DESCRIBED

    text: str
    """Text of the link."""
    url: str
    """Target address."""


@dataclass(frozen=True, slots=True)
class PagePassage:
    """A part of a page."""

    __pydantic_config__ = _DESCRIBED

    text: str
    """Text of the passage."""
    start: int
    """Start in the page's text, in characters."""
    end: int
    """End, in characters."""
    score: float
    """Relevance; comparable only within one page."""


class ReadPage(Output):
    """A page, or the reason why it could not be read."""

    url: str
    """Requested address."""
    final_url: str | None = None
    """Final address, after redirects."""
    title: str | None = None
    """Title."""
    text: str = ""
    """Text as Markdown; with a goal, the relevant part."""
    characters: int = 0
    """Length of the page's whole text."""
    next_start: int | None = None
    """The `start` with which to continue; null at the end of the page, or with a goal."""
    passages: list[PagePassage] = Field(default_factory=list[PagePassage])
    """Relevant passages with their positions, unless a model extracted the text."""
    links: list[PageLink] = Field(default_factory=list[PageLink])
    """Links on the page, in order, up to a limit."""
    note: str | None = None
    """Note on truncation, or on how the text was extracted."""
    error: str | None = None
    """Reason if the page could not be read; other pages are unaffected."""


class Visited(Output):
    """Pages that were requested."""

    pages: list[ReadPage]
    """One page per address, in order."""


class PassagesFound(Output):
    """Passages of a page that match a query."""

    url: str
    """Requested address."""
    final_url: str
    """Final address, after redirects."""
    title: str
    """Title."""
    characters: int
    """Length of the page's text, in characters."""
    passages: list[PagePassage]
    """Hits, best first."""


@dataclass(frozen=True, slots=True)
class ArticleHit:
    """An article found by a search."""

    __pydantic_config__ = _DESCRIBED

    title: str
    """Title, as web_wikipedia takes it."""
    snippet: str
    """Excerpt; may be empty."""
    url: str
    """Address."""


class Article(Output):
    """An article, or a part of it."""

    title: str
    """Title."""
    url: str
    """Address."""
    text: str
    """Requested part of the text."""
    start: int
    """Start of the part, in characters."""
    end: int
    """End, in characters."""
    characters: int
    """Length of the whole text, in characters."""
    next_start: int | None = None
    """The `start` with which to continue; null at the end of the article."""


class WikipediaFound(Output):
    """Articles of Wikipedia."""

    hits: list[ArticleHit]
    """Articles that match the query, best first; empty if a title was given."""
    article: Article | None = None
    """The article with the given title, or the best hit."""


def hits_text(results: list[QueryResult]) -> str:
    """Format search results for a model."""
    return "\n\n".join(_one_search(result, named=len(results) > 1) for result in results)


def images_text(hits: list[ImageHit]) -> str:
    """Format image results for a model."""
    shown = (f"[{hit.position}] {hit.title}\npicture: {hit.image_url}\npage: {hit.page_url}" for hit in hits)
    return "\n\n".join(shown) or "no pictures"


def page_text(page: ReadPage) -> str:
    """Format a page for a model."""
    if page.error is not None:
        return f"# {page.url}\n\nnot read: {page.error}"
    where = page.url if page.final_url in (None, page.url) else f"{page.url} → {page.final_url}"
    note = f"\n({page.note})" if page.note else ""
    more = f"\n\n[the page continues at start={page.next_start}]" if page.next_start is not None else ""
    return f"# {page.title or page.url}\n{where}{note}\n\n{page.text or 'no text'}{more}"


def passages_text(title: str, url: str, passages: Iterable[PagePassage]) -> str:
    """Format passages of a page for a model."""
    shown = "\n\n".join(f"[{passage.start}–{passage.end}]\n{passage.text}" for passage in passages)
    return f"# {title}\n{url}\n\n{shown or 'no passage contains a word of the query'}"


def article_text(hits: Iterable[ArticleHit], article: Article) -> str:
    """Format an article, and the titles of other hits, for a model."""
    others = [hit.title for hit in hits if hit.title != article.title]
    also = f"\n\nOther articles: {'; '.join(others)}" if others else ""
    more = (
        f"\n\n[the article continues at start={article.next_start}]" if article.next_start is not None else ""
    )
    return f"# {article.title}\n{article.url}\n\n{article.text}{more}{also}"


def _one_search(result: QueryResult, *, named: bool) -> str:
    parts = [f"# {result.query}"] if named else []
    if result.error is not None:
        return "\n\n".join([*parts, f"not searched: {result.error}"])
    if result.answer:
        parts.append(result.answer)
    for hit in result.hits:
        date = f" ({hit.date})" if hit.date else ""
        parts.append(f"[{hit.position}] {hit.title}{date}\n{hit.url}\n{hit.snippet}".rstrip())
    if not result.answer and not result.hits:
        parts.append("no results")
    return "\n\n".join(parts)
