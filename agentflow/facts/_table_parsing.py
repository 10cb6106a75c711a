"""Tables in texts: Markdown, CSV, TSV, aligned columns, JSON, and the tables that the tools print."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

_MAX_CELL: Final = 300
"""Characters of a cell; a longer one is prose."""
_MAX_HEADER: Final = 60
"""Characters of a header's cell."""
_MAX_COLUMNS: Final = 40
_MAX_ROWS: Final = 5_000
_MAX_LINE: Final = 4_000
"""Characters of a line of a table."""
_MAX_JSON: Final = 16
"""Number of JSON values that are looked for in a text; each attempt reads up to the end of the text."""
_SEPARATOR: Final = re.compile(r"[\s|+:=-]*-{2}[\s|+:=-]*")
_GAP: Final = re.compile(r"\S+(?: \S+)*")
_PIPED: Final = re.compile(r"(?:\\.|[^|\\])+|(?<=\|)(?=\|)")
_QUOTED: Final = re.compile(r'"(?:[^"]|"")*"')
_LINK: Final = re.compile(r"!?\[([^\[\]]+)\]\([^()]*\)")
_FOOTNOTE: Final = re.compile(r"(?<=\S)\s?(?:\[(?:\d{1,3}|[a-z])\]|[†‡*])+$")
"""Mark of a footnote at the end of a cell."""
_CUT: Final = re.compile(
    r"\s*(?:…|\.\.\.|\[…|\[\.\.\.)|.*\b(?:more rows?|rows? in total|rows? not shown|truncated|are more rows|omitted)\b",
    re.IGNORECASE,
)
_SAMPLE: Final = re.compile(
    r"\b(?:first|top|last) \d+\b|\bsample|\bpreview|\bexcerpt|\bexamples?\b|\bpage \d+ of\b|\bselected\b",
    re.IGNORECASE,
)
_CONTINUED: Final = re.compile(r"\bnext_(?:start|offset|page|cursor)\b\W+(?!none|null)\w", re.IGNORECASE)
_PLACE: Final = re.compile(r"^\S+ \[[\w.]+\]\s*|,? page \d+$|^(?:table|tab\.) [\d.]+\s*[:.–—-]?\s*|^#+\s*|[:*_\s]+$", re.IGNORECASE)  # fmt: skip
_JSON_TOKEN: Final = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>[\[\]{}:,])|(?P<scalar>[^\s\[\]{}:,"]+)', re.DOTALL
)
_JSON_START: Final = re.compile(r"^[ \t]{0,99}(?:\w[\w ]{0,60}: )?(?=[\[{]\s{0,99}[\[{\"])", re.MULTILINE)


class TableCell(NamedTuple):
    """A cell of a table."""

    text: str
    """Content without surrounding space."""
    start: int
    """Index of its first character."""
    end: int
    """Index after its last character."""


class ParsedTable(NamedTuple):
    """A table in a text."""

    title: str
    """Heading or caption directly above it; may be empty."""
    header: tuple[TableCell, ...]
    """Names of the columns."""
    rows: tuple[tuple[TableCell, ...], ...]
    """Rows, each with a cell for each column."""
    start: int
    """Index of its first character."""
    end: int
    """Index after its last character."""
    whole: bool
    """Nothing indicates that rows are missing."""


class TextLine(NamedTuple):
    """A line of a text, without its end."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Index after its last character."""
        return self.start + len(self.text)


def lines_of(text: str) -> list[TextLine]:
    """Return the lines of a text with their positions; only newlines separate lines."""
    found: list[TextLine] = []
    start = 0
    for line in text.split("\n"):
        found.append(TextLine(line, start))
        start += len(line) + 1
    return found


def parse_tables(text: str) -> tuple[ParsedTable, ...]:
    r"""Return the tables of a text, in order.

    >>> [table.title for table in parse_tables("Towns:\n\nTown | Founded\nOssel | 1204\nBrenn | 1310")]
    ['Towns']
    """
    lines = lines_of(text)
    found = [*_json_tables(text), *(table for block in _blocks(lines) if (table := _table(lines, *block)))]
    continued = _CONTINUED.search(text) is not None
    ordered: list[ParsedTable] = []
    for table in sorted(found, key=lambda one: (one.start, -one.end)):
        if not ordered or table.start >= ordered[-1].end:
            ordered.append(table._replace(whole=False) if continued else table)
    return tuple(ordered)


def table_lines(text: str) -> list[tuple[int, int, int]]:
    """Return the start of each table of lines, the end of its header line, and its end."""
    lines = lines_of(text)
    return [
        (lines[first].start, lines[first].end, lines[last - 1].end)
        for first, last, _ in _blocks(lines)
        if last - first > 2
    ]


def _blocks(lines: Sequence[TextLine]) -> Iterator[tuple[int, int, str]]:
    """Yield runs of lines with the same number of cells: first line, line after the last, and delimiter."""
    index = 0
    while index < len(lines):
        delimiter, cells = _shape(lines[index].text)
        if not delimiter:
            index += 1
            continue
        end = index + 1
        while end < len(lines) and (
            _count(lines[end].text, delimiter) == cells
            or (delimiter not in ",;" and _is_separator(lines[end].text))
        ):
            end += 1
        if end > index + 1 and delimiter == "  ":
            pass
        elif delimiter == "  " and end < len(lines) and _count(lines[end].text, delimiter) == cells + 1:
            # Data frames are printed with the row's number before the cells.
            cells += 1
            while end < len(lines) and _count(lines[end].text, delimiter) == cells:
                end += 1
        if end > index + 1:
            yield index, end, delimiter
        index = end


def _shape(line: str) -> tuple[str, int]:
    """Return the delimiter of a line and its number of cells; none for prose."""
    if not line.strip() or len(line) > _MAX_LINE or _is_separator(line):
        return "", 0
    for delimiter in ("|", "\t", ",", ";", "  "):
        if 2 <= (cells := _count(line, delimiter)) <= _MAX_COLUMNS:
            return delimiter, cells
    return "", 0


def _count(line: str, delimiter: str) -> int:
    if len(line) > _MAX_LINE or delimiter not in line:
        return 0
    return len(_cells(TextLine(line, 0), delimiter))


def _is_separator(line: str) -> bool:
    return len(line) <= _MAX_LINE and _SEPARATOR.fullmatch(line) is not None


def _cells(line: TextLine, delimiter: str) -> tuple[TableCell, ...]:
    """Split a line into its cells."""
    text = line.text
    if delimiter == "  ":
        return tuple(_cell(text, *found.span(), line.start) for found in _GAP.finditer(text))
    edges = _edges(text, delimiter)
    spans = [(left + 1, right) for left, right in pairwise(edges)]
    if delimiter == "|" and len(spans) > 2:
        if not text[slice(*spans[0])].strip():
            spans = spans[1:]
        if not text[slice(*spans[-1])].strip() and text.rstrip().endswith("|"):
            spans = spans[:-1]
    return tuple(_cell(text, left, right, line.start) for left, right in spans)


def _edges(text: str, delimiter: str) -> list[int]:
    """Return the indexes of the delimiters that separate cells, and of both ends."""
    quoted = delimiter in ",;" and '"' in text
    edges = [-1]
    index = text.find(delimiter)
    while index >= 0:
        start = edges[-1] + 1
        quote = _QUOTED.match(text, start) if quoted else None
        if quote and index < quote.end():
            index = text.find(delimiter, quote.end())
            continue
        if delimiter != "|" or text[index - 1 : index] != "\\":
            edges.append(index)
        index = text.find(delimiter, index + 1)
    edges.append(len(text))
    return edges


def _cell(text: str, left: int, right: int, offset: int) -> TableCell:
    while left < right and text[left].isspace():
        left += 1
    while right > left and text[right - 1].isspace():
        right -= 1
    if right - left >= 2 and text[left] == text[right - 1] == '"':
        left, right = left + 1, right - 1
    for mark in ("**", "`", "*"):
        if right - left > 2 * len(mark) and text.startswith(mark, left) and text.endswith(mark, left, right):
            left, right = left + len(mark), right - len(mark)
            break
    if found := _LINK.fullmatch(text, left, right):
        left, right = found.span(1)
    if found := _FOOTNOTE.search(text, max(right - 12, left), right):
        right = found.start()
    return TableCell(text[left:right], left + offset, right + offset)


def _table(lines: Sequence[TextLine], first: int, last: int, delimiter: str) -> ParsedTable | None:
    """Read a run of lines as a table, if its first line can be a header."""
    separated = any(_is_separator(line.text) for line in lines[first:last])
    body = [line for line in lines[first:last] if not _is_separator(line.text)]
    header = _cells(body[0], delimiter)
    rows = [_cells(line, delimiter) for line in body[1 : _MAX_ROWS + 1]]
    if delimiter == "  " and rows and len(rows[0]) == len(header) + 1:
        if not all(row[0].text.isdigit() for row in rows):
            return None
        rows = [row[1:] for row in rows]
    alone = not any(line.text.strip() for line in (*lines[:first], *lines[last : last + 1]))
    least = {"|": 1 if separated or alone else 2, "\t": 1 if alone else 2}.get(delimiter, 2)
    if len(rows) < least or not _is_header(header, loose=delimiter in "|\t"):
        return None
    if any(len(cell.text) > _MAX_CELL for row in rows for cell in row):
        return None
    # A row of dots stands for rows that are not shown.
    shown = [row for row in rows if not all(cell.text in ("…", "...", "") for cell in row)]
    following = next((line.text for line in lines[last : last + 3] if line.text.strip()), "")
    above = _above(lines, first)
    whole = (
        len(shown) == len(body) - 1
        and not (_CUT.match(following) and len(following) <= _MAX_LINE)
        and not _SAMPLE.search(above)
    )
    return ParsedTable(
        _title(above), header, tuple(shown), body[0].start, body[-1].end, whole and bool(shown)
    )


def _is_header(cells: Sequence[TableCell], *, loose: bool) -> bool:
    """Return whether cells can name columns: distinct short texts that are not numbers."""
    names = [cell.text.casefold() for cell in cells]
    filled = names if all(names) else names[1:]
    if not all(filled) or len(set(names)) < len(names):
        return False
    if any(len(name) > _MAX_HEADER or not any(map(str.isalpha, name)) for name in filled if name != "#"):
        return False
    # Lines of prose have commas too.
    return loose or all(len(name.split()) <= 4 and not name.endswith((".", "!", "?")) for name in filled)


def _above(lines: Sequence[TextLine], first: int) -> str:
    """Return the line above a table, over at most one empty line."""
    for line in reversed(lines[max(first - 2, 0) : first]):
        if line.text.strip():
            return line.text.strip()[:_MAX_LINE]
    return ""


def _title(above: str) -> str:
    """Return a caption without its number, place and marks; empty if the line is prose."""
    marked = above.startswith(("#", "**", "Table ", "table ")) or above.endswith(":") or " [" in above
    title = above
    for _ in range(3):
        title = _PLACE.sub("", title).strip()
    words = title.split()
    if not words or len(words) > 15 or "|" in title or "\t" in title or (title.endswith(".") and not marked):
        return ""
    return title.rstrip(".") if marked or len(words) <= 10 else ""


def _json_tables(text: str) -> Iterator[ParsedTable]:
    """Yield the arrays of objects in the JSON values of a text."""
    end = attempts = 0
    for found in _JSON_START.finditer(text):
        if found.end() < end:
            continue
        attempts += 1
        if attempts > _MAX_JSON:
            return
        try:
            _, end = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue
        yield from _arrays(text, found.end(), end)


class _Container:
    """An array or object that is being read."""

    def __init__(self, kind: str, start: int, name: str) -> None:
        self.kind, self.start, self.name = kind, start, name
        self.key: TableCell | None = None
        self.cells: dict[str, tuple[TableCell, TableCell]] = {}
        self.objects: list[dict[str, tuple[TableCell, TableCell]]] = []
        self.values = 0


def _arrays(text: str, start: int, end: int) -> Iterator[ParsedTable]:
    """Yield the arrays of objects of a JSON value; nested values are left out of their rows."""
    stack: list[_Container] = [_Container("", start, "")]
    for token in _JSON_TOKEN.finditer(text, start, end):
        top, mark = stack[-1], token["mark"]
        if mark in ("[", "{"):
            top.values += 1
            name = top.key.text if top.key else top.name
            top.key = None
            stack.append(_Container(mark, token.start(), name))
        elif mark in ("]", "}") and len(stack) > 1:
            stack.pop()
            if mark == "}":
                stack[-1].objects.append(top.cells)
            elif table := _array(top, token.end()):
                yield table
        elif mark is None:
            cell = _json_cell(token)
            if top.kind == "{" and top.key is None:
                top.key = cell
            elif top.kind == "{" and top.key is not None:
                top.cells[top.key.text] = top.key, cell
                top.key = None
            else:
                top.values += 1


def _json_cell(token: re.Match[str]) -> TableCell:
    left, right = token.span()
    if token["text"] is None:
        value = {"null": "", "true": "yes", "false": "no"}.get(token[0], token[0])
        return TableCell(value, left, right)
    return TableCell(str(json.loads(token[0], strict=False)).strip(), left + 1, right - 1)


def _array(array: _Container, end: int) -> ParsedTable | None:
    """Return an array as a table, if it has objects only and they share their names."""
    if len(array.objects) < 2 or array.values != len(array.objects) or len(array.objects) > _MAX_ROWS:
        return None
    names = [name for name in array.objects[0] if all(name in each for each in array.objects)]
    header = tuple(array.objects[0][name][0] for name in names)
    rows = tuple(tuple(each[name][1] for name in names) for each in array.objects)
    if len(names) < 2 or any(len(cell.text) > _MAX_CELL for row in rows for cell in row):
        return None
    if not _is_header(header, loose=True):
        return None
    return ParsedTable(array.name.replace("_", " "), header, rows, array.start, end, whole=True)
