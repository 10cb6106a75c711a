"""The reader process: opens one document and answers the server's requests through a file.

The entry point `answer` comes first, then the detection of formats, then HTML, Markdown and plain text.
"""

import codecs
import json
import re
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mcp_servers.document.inside._draft import DocumentWriter, UnreadableDocument, as_line, as_text
from mcp_servers.document.inside._images import ImageDocument, Ocr, as_png
from mcp_servers.document.inside._office import DocxDocument, PptxDocument, XlsxDocument
from mcp_servers.document.inside._pdf import PdfDocument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it.token import Token


ANSWER: Final = "answer"
"""File of the last reply: a line of JSON, followed by the text of the document or the bytes of an image."""
Opened: TypeAlias = PdfDocument | DocxDocument | PptxDocument | XlsxDocument | ImageDocument | str
_OFFICE: Final = {"docx": DocxDocument, "pptx": PptxDocument, "xlsx": XlsxDocument}
_opened: dict[str, Opened] = {}
_OFFICE_PARTS: Final = {
    "word/document.xml": "docx",
    "ppt/presentation.xml": "pptx",
    "xl/workbook.xml": "xlsx",
}
_PICTURES: Final = (
    (b"\x89PNG\r\n\x1a\n", 0),
    (b"\xff\xd8\xff", 0),
    (b"GIF8", 0),
    (b"WEBP", 8),
    (b"II*\0", 0),
    (b"MM\0*", 0),
)
_BY_NAME: Final = {"htm": "html", "html": "html", "xhtml": "html", "md": "markdown", "markdown": "markdown"}
_BINARY: Final = ("pdf", "docx", "pptx", "xlsx", "png", "jpg", "jpeg", "gif", "webp", "tif", "tiff", "bmp")
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_HTML: Final = re.compile(
    rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
_CHARSET: Final = re.compile(rb"""charset\s*=\s*["']?([A-Za-z0-9_-]+)""", re.IGNORECASE)
MAX_PARTS = 20_000
MAX_UNPACKED = 512 * 1024 * 1024
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


def answer(request: str) -> None:
    """Handle a request and write the reply."""
    arguments = json.loads(request)
    blob = b""
    try:
        reply, blob = _do(arguments)
    except UnreadableDocument as error:
        reply = {"why": error.why, "message": str(error)}
    except MemoryError:
        raise
    except ImportError:
        # The host adds the command, which this program does not know.
        reply = {
            "why": "unavailable",
            "message": "it needs the extra document",
        }
    except RecursionError:
        reply = {"why": "failed", "message": "it is nested too deeply"}
    except Exception as error:  # boundary: any error of a library on a broken file becomes one line
        reply = {"why": "failed", "message": f"it is damaged ({type(error).__name__}: {error})"[:300]}
    with open(ANSWER, "wb") as file:
        file.write(json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace") + b"\n" + blob)


def _do(arguments: dict[str, str]) -> tuple[dict[str, object], bytes]:
    name, do = arguments["name"], arguments["do"]
    if do == "content":
        head, text = _draft(name, Ocr(arguments["ocr_program"], arguments["ocr_languages"])).finished()
        return head, text.encode("utf-8", "replace")
    opened = _open(name)
    if do == "page":
        png, width, height, dpi = _page(opened, int(arguments["page"]), int(arguments["dpi"]))
        return {"width": width, "height": height, "dpi": dpi}, png
    if do == "picture":
        if not isinstance(opened, DocxDocument | PptxDocument):
            raise UnreadableDocument("not_found", "it contains no pictures")
        png, width, height = as_png(opened.picture(arguments["key"]))
        return {"width": width, "height": height, "dpi": 0}, png
    if do == "tables":
        pages = [int(page) for page in arguments["pages"].split(",")]
        return {"tables": opened.tables(pages) if isinstance(opened, PdfDocument) else []}, b""
    raise ValueError(do)


def _open(name: str) -> Opened:
    """Open the document, once."""
    if name not in _opened:
        with open(name, "rb") as file:
            data = file.read()
        kind = kind_of(data, name)
        if kind == "pdf":
            _opened[name] = PdfDocument(name)
        elif kind == "picture":
            _opened[name] = ImageDocument(name)
        else:
            office = _OFFICE.get(kind)
            _opened[name] = office(name) if office else kind
    return _opened[name]


def _draft(name: str, ocr: Ocr) -> DocumentWriter:
    opened = _open(name)
    if isinstance(opened, PdfDocument | ImageDocument):
        return opened.draft(ocr)
    if not isinstance(opened, str):
        return opened.draft()
    with open(name, "rb") as file:
        text = decoded(file.read())
    readers = {"html": draft_of_html, "markdown": draft_of_markdown}
    return readers.get(opened, draft_of_text)(text)


def _page(opened: Opened, number: int, dpi: int) -> tuple[bytes, int, int, int]:
    if isinstance(opened, PdfDocument):
        return opened.image(number, dpi)
    if isinstance(opened, ImageDocument):
        return opened.image(number)
    raise UnreadableDocument("bad_arguments", "only pages of PDF files and images can be shown")


def kind_of(data: bytes, name: str) -> str:
    """Return `pdf`, `docx`, `pptx`, `xlsx`, `html`, `markdown`, `text` or `picture`.

    :raises Unreadable: if the format is unknown or not supported.
    """
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    if b"%PDF-" in data[:1024]:
        return "pdf"
    if data.startswith(b"PK\x03\x04"):
        return _office(name)
    if data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            raise UnreadableDocument("denied", "it is encrypted: save it without a password")
        raise UnreadableDocument(
            "failed", "it is in the old binary Office format: save it as docx, pptx or xlsx"
        )
    is_bitmap = data.startswith(b"BM") and data[6:10] == b"\0\0\0\0"
    if is_bitmap or any(data.startswith(magic, position) for magic, position in _PICTURES):
        return "picture"
    if not data.strip():
        raise UnreadableDocument("failed", "it is empty")
    if suffix in _BINARY:
        raise UnreadableDocument("failed", f"its content does not match its suffix .{suffix}")
    if b"\0" in data[:65536] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableDocument("failed", "it is neither text nor a document of a known format")
    return _BY_NAME.get(suffix) or ("html" if _HTML.match(data[:4096]) else "text")


def _office(name: str) -> str:
    with zipfile.ZipFile(name) as archive:
        parts = archive.infolist()
        if len(parts) > MAX_PARTS or sum(part.file_size for part in parts) > MAX_UNPACKED:
            raise UnreadableDocument("file_too_large", "it is too large when unpacked")
        names = {part.filename for part in parts}
        kind = next((kind for part, kind in _OFFICE_PARTS.items() if part in names), None)
        if kind is None:
            raise UnreadableDocument("failed", "it is an archive, but not a docx, pptx or xlsx file")
        if any(part.flag_bits & 1 for part in parts):
            raise UnreadableDocument("denied", "it is encrypted: save it without a password")
        for part in parts:
            if part.filename.endswith((".xml", ".rels", ".vml")):
                _refuse_declarations(archive, part)
    return kind


def _refuse_declarations(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> None:
    """Refuse XML declarations of entities, which only malicious Office files have."""
    tail = b""
    with archive.open(part) as file:
        while chunk := file.read(1 << 20):
            # Without NULs, UTF-16 matches as well.
            seen = tail + chunk.replace(b"\0", b"")
            if b"<!DOCTYPE" in seen or b"<!ENTITY" in seen:
                raise UnreadableDocument("denied", f"its part {part.filename[:80]!r} declares XML entities")
            tail = seen[-16:]


def decoded(data: bytes) -> str:
    """Decode text in its declared encoding, else UTF-8, else Western European."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    try:
        return data.decode()
    except UnicodeDecodeError:
        declaration = _CHARSET.search(data[:4096])
        try:
            encoding = codecs.lookup(declaration[1].decode()).name if declaration else "cp1252"
        except LookupError:
            encoding = "cp1252"
        if encoding == "utf-8":
            encoding = "cp1252"
        try:
            return data.decode(encoding, "replace")
        except (LookupError, UnicodeError):
            return data.decode("latin-1")


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
                    _add_cell(reaching, texts, below)
                for _ in range(cell.across):
                    _add_cell(cell, texts, below)
            while reaching := here.pop(len(texts), None):
                _add_cell(reaching, texts, below)
            yield texts


def _add_cell(cell: _HtmlCell, texts: list[str], below: dict[int, _HtmlCell]) -> None:
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
        attributes = dict(attrs)
        if self._hidden:
            return
        if tag in _HIDDEN:
            self._hidden = tag
        elif tag == "title":
            self._title = []
        elif tag == "table" and len(self._tables) < MAX_TABLE_DEPTH:
            self._begin_table()
        elif self._tables and tag in ("tr", "td", "th", "caption"):
            self._start_table_tag(tag, attributes)
        elif tag == "br":
            self._words.append(_LINE)
        elif tag == "img":
            self._words.append(f" [picture: {attributes['alt']}] " if attributes.get("alt") else "")
        elif tag not in _INLINE:
            self._break()
            if tag == "pre":
                self._kept_blanks += 1
            elif tag == "li":
                self._words.append("- ")
            elif (heading := _HEADING.match(tag)) and not self._tables:
                self._heading = int(heading[1])

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

    def _start_table_tag(self, tag: str, attributes: dict[str, str | None]) -> None:
        table = self._tables[-1]
        self._end_cell()
        self._words = []
        if tag == "tr" or (tag != "caption" and not table.rows):
            table.rows.append([])
        if tag in ("td", "th"):
            table.spans = (_span(attributes.get("colspan")), _span(attributes.get("rowspan")))

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
