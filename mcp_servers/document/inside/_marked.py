"""Markdown and plain text: the text is the file's own."""

from itertools import accumulate
from typing import TYPE_CHECKING

from mcp_servers.document.inside._draft import Draft, as_line, as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

__all__ = ["draft_of_markdown", "draft_of_text"]


def draft_of_text(text: str) -> Draft:
    """The text as it is."""
    draft = Draft("text")
    draft.write(text)
    return draft


def draft_of_markdown(text: str) -> Draft:
    """The text as it is, with its headings and tables."""
    from markdown_it import MarkdownIt

    text = as_text(text)
    starts = list(
        accumulate((len(line) for line in text.split("\n")), lambda at, length: at + length + 1, initial=0)
    )
    draft = Draft("markdown")
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for place, token in enumerate(tokens):
        if token.level or token.map is None:
            continue
        begin, end = (min(starts[line], len(text)) for line in token.map)
        if token.type == "heading_open":
            draft.write(text[draft.place : begin])
            draft.section(_shown(tokens[place + 1]), int(token.tag[1]))
        elif token.type == "table_open":
            draft.write(text[draft.place : end])
            draft.table(_rows(tokens, place), at=begin)
    draft.write(text[draft.place :])
    return draft


def _shown(token: "Token") -> str:
    """The text of a line without its marks."""
    return as_line(
        "".join(child.content or " " for child in token.children or () if child.type != "html_inline")
    )


def _rows(tokens: "Sequence[Token]", place: int) -> "Iterator[list[str]]":
    row: list[str] = []
    for token in tokens[place:]:
        if token.type == "tr_open":
            row = []
        elif token.type == "inline":
            row.append(_shown(token))
        elif token.type == "tr_close":
            yield row
        elif token.type == "table_close":
            return
