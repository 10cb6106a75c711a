"""Formats that are text: HTML, Markdown and plain text."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_servers.document.inside._draft import DocumentWriter, as_line, as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.token import Token


_HIDDEN: Final = frozenset(("iframe", "noscript", "object", "script", "style", "svg", "template"))
_INLINE: Final = frozenset(
    ("a", "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "ins", "kbd", "label", "mark",
     "q", "rp", "rt", "ruby", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr")
)  # fmt: skip
_HEADING: Final = re.compile(r"h([1-6])\Z")
_BLANK: Final = re.compile(r"[ \t\n\r\f]+")
_LINE: Final = "\u2028"
_AROUND_LINE: Final = re.compile(f" ?{_LINE} ?")
MAX_SPAN = 1_000
MAX_TABLE_DEPTH = 8


def draft_of_html(text: str) -> DocumentWriter:
    """Read the text, headings and tables of an HTML file."""
    reader = _HtmlReader()
    reader.feed(text)
    reader.close()
    return reader.finished()


class _HtmlCell(NamedTuple):
    """A table cell with its spans."""

    text: str
    across: int
    down: int


class _HtmlTable:
    """A table that is being parsed."""

    def __init__(self) -> None:
        self.title = ""
        self.rows: list[list[_HtmlCell]] = []
        self.spans: tuple[int, int] | None = None
        """Column and row span of the cell that is being parsed."""

    def grid(self) -> Iterator[list[str]]:
        """Yield the rows; the text of a spanning cell is repeated in each cell that it covers."""
        below: dict[int, _HtmlCell] = {}
        for row in self.rows:
            texts: list[str] = []
            here, below = below, {}
            for cell in row:
                while reaching := here.pop(len(texts), None):
                    _place(reaching, texts, below)
                for _ in range(cell.across):
                    _place(cell, texts, below)
            while reaching := here.pop(len(texts), None):
                _place(reaching, texts, below)
            yield texts


def _place(cell: _HtmlCell, texts: list[str], below: dict[int, _HtmlCell]) -> None:
    if cell.down > 1:
        below[len(texts)] = cell._replace(down=cell.down - 1)
    texts.append(cell.text)


def _span(value: str | None) -> int:
    return max(1, min(int(value), MAX_SPAN)) if value and re.fullmatch("[0-9]{1,5}", value) else 1


class _HtmlReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._draft = DocumentWriter("html")
        self._words: list[str] = []
        self._heading = 0
        self._hidden = ""
        self._title: list[str] | None = None
        self._kept_blanks = 0
        self._tables: list[_HtmlTable] = []
        self._outside: list[list[str]] = []

    def finished(self) -> DocumentWriter:
        """Return the document after the end of the input."""
        while self._tables:
            self._end_table()
        self._end_block()
        return self._draft

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if self._hidden:
            return
        if tag in _HIDDEN:
            self._hidden = tag
        elif tag == "title":
            self._title = []
        elif tag == "table" and len(self._tables) < MAX_TABLE_DEPTH:
            self._begin_table()
        elif self._tables and tag in ("tr", "td", "th", "caption"):
            self._inside_table(tag, given)
        elif tag == "br":
            self._words.append(_LINE)
        elif tag == "img":
            self._words.append(f" [picture: {given['alt']}] " if given.get("alt") else "")
        elif tag not in _INLINE:
            self._break()
            if tag == "pre":
                self._kept_blanks += 1
            elif tag == "li":
                self._words.append("- ")
            elif (found := _HEADING.match(tag)) and not self._tables:
                self._heading = int(found[1])

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._hidden = "" if tag == self._hidden else self._hidden
        elif tag == "title" and self._title is not None:
            self._draft.title = self._draft.title or as_line("".join(self._title))
            self._title = None
        elif self._tables and tag == "table":
            self._end_table()
        elif self._tables and tag in ("td", "th"):
            self._end_cell()
        elif self._tables and tag == "caption":
            self._tables[-1].title = as_line(self._take_text())
        elif tag not in _INLINE:
            self._break()
            if tag == "pre":
                self._kept_blanks = max(0, self._kept_blanks - 1)

    def handle_data(self, data: str) -> None:
        if self._title is not None:
            self._title.append(data)
        elif not self._hidden:
            self._words.append(data if self._kept_blanks else _BLANK.sub(" ", data))

    def _break(self) -> None:
        """End a block, or a line within a table cell."""
        if self._tables:
            self._words.append(" ")
        else:
            self._end_block()

    def _end_block(self) -> None:
        text, level = self._take_text(), self._heading
        self._heading = 0
        if level:
            self._draft.heading(text, level)
        else:
            self._draft.paragraph(_AROUND_LINE.sub("\n", text))

    def _take_text(self) -> str:
        text = "".join(self._words)
        self._words = []
        return text

    def _begin_table(self) -> None:
        self._break()
        self._outside.append(self._words)
        self._words = []
        self._tables.append(_HtmlTable())

    def _inside_table(self, tag: str, given: dict[str, str | None]) -> None:
        table = self._tables[-1]
        self._end_cell()
        self._words = []
        if tag == "tr" or (tag != "caption" and not table.rows):
            table.rows.append([])
        if tag in ("td", "th"):
            table.spans = (_span(given.get("colspan")), _span(given.get("rowspan")))

    def _end_cell(self) -> None:
        table = self._tables[-1]
        if table.spans is not None:
            table.rows[-1].append(_HtmlCell(as_line(self._take_text()), *table.spans))
            table.spans = None

    def _end_table(self) -> None:
        self._end_cell()
        table = self._tables.pop()
        self._words = self._outside.pop()
        if self._tables:
            self._words.append(" ".join(text for row in table.grid() for text in row if text) + " ")
        else:
            self._draft.table(table.grid(), table.title)


def draft_of_text(text: str) -> DocumentWriter:
    """Read plain text unchanged."""
    draft = DocumentWriter("text")
    draft.write(text)
    return draft


def draft_of_markdown(text: str) -> DocumentWriter:
    """Read Markdown unchanged, with its headings and tables."""
    from markdown_it import MarkdownIt

    text = as_text(text)
    starts = list(
        accumulate((len(line) for line in text.split("\n")), lambda at, length: at + length + 1, initial=0)
    )
    draft = DocumentWriter("markdown")
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for position, token in enumerate(tokens):
        if token.level or token.map is None:
            continue
        begin, end = (min(starts[line], len(text)) for line in token.map)
        if token.type == "heading_open":
            draft.write(text[draft.position : begin])
            draft.section(_shown(tokens[position + 1]), int(token.tag[1]))
        elif token.type == "table_open":
            draft.write(text[draft.position : end])
            draft.table(_rows(tokens, position), at=begin)
    draft.write(text[draft.position :])
    return draft


def _shown(token: "Token") -> str:
    """Return the text of a line without markup."""
    return as_line(
        "".join(child.content or " " for child in token.children or () if child.type != "html_inline")
    )


def _rows(tokens: "Sequence[Token]", position: int) -> "Iterator[list[str]]":
    row: list[str] = []
    for token in tokens[position:]:
        if token.type == "tr_open":
            row = []
        elif token.type == "inline":
            row.append(_shown(token))
        elif token.type == "tr_close":
            yield row
        elif token.type == "table_close":
            return
