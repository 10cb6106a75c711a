"""Parser of documentation pages, for tests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token


@dataclass(frozen=True, slots=True)
class Snippet:
    """A fenced block."""

    language: str
    """First word after the fence."""
    text: str
    """Its content."""
    line: int
    """Line number of its first line in the page."""


def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def snippets(page: Path, *languages: str) -> list[Snippet]:
    """Return the fenced blocks in these languages."""
    fences = (token for token in _tokens(page) if token.type == "fence" and token.map)
    found = (
        Snippet((token.info.split() or [""])[0], token.content, token.map[0] + 2)
        for token in fences
        if token.map
    )
    return [snippet for snippet in found if snippet.language in languages]


def links(page: Path) -> Iterator[str]:
    """Return the targets of links and images."""
    for token in _tokens(page):
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if target:
                yield str(target)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings."""
    tokens = _tokens(page)
    titles = [inline.content for opened, inline in pairwise(tokens) if opened.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
