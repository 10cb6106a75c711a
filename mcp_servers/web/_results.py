"""Results of the web tools, and the text in which a model reads them."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ConfigDict, Field

from mcp_servers.core._call import Output

__all__ = [
    "Article",
    "ArticleHit",
    "ImageHit",
    "ImageResults",
    "PageLink",
    "PagePassage",
    "PassagesFound",
    "QueryResult",
    "ReadPage",
    "SearchResults",
    "Visited",
    "WebHit",
    "WikipediaFound",
    "article_text",
    "hits_text",
    "images_text",
    "page_text",
    "passages_text",
]

_DESCRIBED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class WebHit:
    """One page that was found."""

    __pydantic_config__ = _DESCRIBED

    position: int
    """Its place among the hits, from 1."""
    title: str
    """Its title."""
    url: str
    """Its address, to be read by web_visit."""
    snippet: str
    """What the engine shows of it."""
    date: str | None = None
    """When it was published, where the engine says so."""


class QueryResult(Output):
    """What one query found."""

    query: str
    """The query."""
    hits: list[WebHit]
    """Best first."""
    answer: str | None = None
    """What the engine itself answers, where it does."""
    error: str | None = None
    """Why this query failed; the others are not touched by it."""


class SearchResults(Output):
    """What a search found."""

    results: list[QueryResult]
    """In the order of the queries."""


@dataclass(frozen=True, slots=True)
class ImageHit:
    """One picture that was found."""

    __pydantic_config__ = _DESCRIBED

    position: int
    """Its place among the hits, from 1."""
    title: str
    """What it is called."""
    image_url: str
    """The address of the picture."""
    page_url: str
    """The page on which it stands."""
    source: str
    """Who shows it."""
    width: int | None = None
    """Pixels, where known."""
    height: int | None = None
    """Pixels, where known."""


class ImageResults(Output):
    """Pictures that were found."""

    hits: list[ImageHit]
    """Best first."""


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link on a page."""

    __pydantic_config__ = _DESCRIBED

    text: str
    """What it is called."""
    url: str
    """Where it leads."""


@dataclass(frozen=True, slots=True)
class PagePassage:
    """A part of a page."""

    __pydantic_config__ = _DESCRIBED

    text: str
    """Its text."""
    start: int
    """Where it starts in the page's text, in characters."""
    end: int
    """Where it ends."""
    score: float
    """How well it fits; comparable within one page only."""


class ReadPage(Output):
    """A page that was read, or why it was not."""

    url: str
    """The address asked for."""
    final_url: str | None = None
    """Where it was found in the end, after redirects."""
    title: str | None = None
    """Its title."""
    text: str = ""
    """Its text as Markdown; with a goal what of it serves that goal."""
    characters: int = 0
    """Length of the whole text of the page."""
    next_start: int | None = None
    """The `start` to go on with; null at the end of the page, and with a goal."""
    passages: list[PagePassage] = Field(default_factory=list[PagePassage])
    """Where what serves the goal stands in the page's text, if no model extracted it."""
    links: list[PageLink] = Field(default_factory=list[PageLink])
    """Links on the page, in their order; not all of a page that has very many."""
    note: str | None = None
    """What to know about it: that something was cut, or how it was extracted."""
    error: str | None = None
    """Why it could not be read; the other pages are not touched by it."""


class Visited(Output):
    """Pages that were read."""

    pages: list[ReadPage]
    """In the order of the addresses."""


class PassagesFound(Output):
    """What of a page fits a query."""

    url: str
    """The address asked for."""
    final_url: str
    """Where it was found in the end, after redirects."""
    title: str
    """Its title."""
    characters: int
    """Length of the page's text."""
    passages: list[PagePassage]
    """Best first."""


@dataclass(frozen=True, slots=True)
class ArticleHit:
    """One article that was found."""

    __pydantic_config__ = _DESCRIBED

    title: str
    """Its title, to be read by web_wikipedia."""
    snippet: str
    """A part of it, or nothing."""
    url: str
    """Its address."""


class Article(Output):
    """An article, or a part of it."""

    title: str
    """Its title."""
    url: str
    """Its address."""
    text: str
    """The part that was asked for."""
    start: int
    """Where it starts in the whole text, in characters."""
    end: int
    """Where it ends."""
    characters: int
    """Length of the whole text."""
    next_start: int | None = None
    """The `start` to go on with; null at the end of the article."""


class WikipediaFound(Output):
    """What Wikipedia has."""

    hits: list[ArticleHit]
    """Articles that fit the query, best first; empty if a title was asked for."""
    article: Article | None = None
    """The article of the title asked for, or of the best hit."""


def hits_text(results: list[QueryResult]) -> str:
    """Searches."""
    return "\n\n".join(_one_search(result, named=len(results) > 1) for result in results)


def images_text(hits: list[ImageHit]) -> str:
    """Pictures."""
    shown = (f"[{hit.position}] {hit.title}\npicture: {hit.image_url}\npage: {hit.page_url}" for hit in hits)
    return "\n\n".join(shown) or "no pictures"


def page_text(page: ReadPage) -> str:
    """A page."""
    if page.error is not None:
        return f"# {page.url}\n\nnot read: {page.error}"
    where = page.url if page.final_url in (None, page.url) else f"{page.url} → {page.final_url}"
    note = f"\n({page.note})" if page.note else ""
    more = f"\n\n[the page goes on at start={page.next_start}]" if page.next_start is not None else ""
    return f"# {page.title or page.url}\n{where}{note}\n\n{page.text or 'no text'}{more}"


def passages_text(title: str, url: str, passages: Iterable[PagePassage]) -> str:
    """Passages of a page."""
    shown = "\n\n".join(f"[{one.start}–{one.end}]\n{one.text}" for one in passages)
    return f"# {title}\n{url}\n\n{shown or 'no passage has a word of the query'}"


def article_text(hits: Iterable[ArticleHit], article: Article) -> str:
    """An article, and what else was found."""
    others = [hit.title for hit in hits if hit.title != article.title]
    also = f"\n\nOther articles: {'; '.join(others)}" if others else ""
    more = (
        f"\n\n[the article goes on at start={article.next_start}]" if article.next_start is not None else ""
    )
    return f"# {article.title}\n{article.url}\n\n{article.text}{more}{also}"


def _one_search(result: QueryResult, *, named: bool) -> str:
    heading = [f"# {result.query}"] if named else []
    if result.error is not None:
        return "\n\n".join([*heading, f"not searched: {result.error}"])
    answer = [result.answer] if result.answer else []
    hits = [
        f"[{hit.position}] {hit.title}{_date(hit.date)}\n{hit.url}\n{hit.snippet}".rstrip()
        for hit in result.hits
    ]
    return "\n\n".join([*heading, *answer, *hits] if answer or hits else [*heading, "no results"])


def _date(date: str | None) -> str:
    return f" ({date})" if date else ""
