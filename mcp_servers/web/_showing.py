"""Results as a model reads them."""

from collections.abc import Iterable

from mcp_servers.web._results import Article, ArticleHit, ImageHit, Passage, QueryResult, ReadPage

__all__ = ["article_text", "hits_text", "images_text", "page_text", "passages_text"]


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


def passages_text(title: str, url: str, passages: Iterable[Passage]) -> str:
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
