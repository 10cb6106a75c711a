"""Conversion of HTML, PDF and text to Markdown. Runs only in the limited parser process, because its input is untrusted."""

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol, cast
from urllib.parse import urljoin, urlsplit

from mcp_servers.web._jobs import PageBody, ParsedPage, UnparseablePage

MAX_LINKS = 100
MAX_TEXT_CHARS = 2_000_000
MAX_TITLE_CHARS = 300
MIN_ARTICLE_CHARS = 200
"""Minimum length of an article; if less is found, the whole text of the page is used."""
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
# lxml refuses decoded text that declares an encoding.
_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n+")
_META_CHARSET = re.compile(r"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = (
    "application/json",
    "application/xml",
    "application/x-ndjson",
    "application/yaml",
    "application/ld+json",
)


class _TextPage(Protocol):
    def get_text_range(self) -> str: ...


class _PdfPage(Protocol):
    def get_textpage(self) -> _TextPage: ...


class _Document(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> _PdfPage: ...
    def get_metadata_value(self, key: str) -> str: ...


class _Pdfium(Protocol):
    PdfiumError: type[Exception]

    def PdfDocument(self, data: bytes) -> _Document: ...


class PdfText(NamedTuple):
    """Text of a PDF."""

    title: str
    """Title; empty if it has no text."""
    pages: list[str]
    """Text of the first pages."""
    page_count: int
    """Number of pages in the file."""


def read_pdf(data: bytes, most: int) -> PdfText:
    """Return the text of the first pages of a PDF.

    :raises Unreadable: if it is encrypted or damaged.
    """
    pdfium = cast("_Pdfium", importlib.import_module("pypdfium2"))
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        encrypted = "password" in str(error).lower()
        reason = "the PDF is encrypted with a password" if encrypted else "the PDF is damaged"
        raise UnparseablePage(reason) from None
    count = len(document)
    pages: list[str] = []
    for number in range(min(count, most)):
        try:
            pages.append(document[number].get_textpage().get_text_range())
        except pdfium.PdfiumError:
            pages.append("")
    return PdfText(document.get_metadata_value("Title"), pages, count)


class _LxmlEtree(Protocol):
    ParserError: type[Exception]


class _Trafilatura(Protocol):
    def extract(self, tree: "Element", *, url: str, output_format: str, **kept: bool) -> str | None: ...
    def html2txt(self, content: "Element") -> str: ...


class _LxmlHtml(Protocol):
    etree: _LxmlEtree

    def document_fromstring(self, html: str) -> "Element": ...


class Element(Protocol):
    """The part of lxml's element interface used here."""

    def findtext(self, path: str) -> str | None:
        """Return the text of the first element at a path."""
        ...

    def iterfind(self, path: str) -> "Iterator[Element]":
        """Yield the elements at a path."""
        ...

    def itertext(self) -> Iterator[str]:
        """Yield the texts of the element."""
        ...

    def get(self, key: str) -> str | None:
        """Return an attribute."""
        ...


def parse(body: PageBody) -> ParsedPage:
    """Return the text of a page of any supported type, up to a limit.

    :raises Unreadable: if it has no text.
    """
    page = _parse(body)
    if len(page.text) <= MAX_TEXT_CHARS:
        return page
    note = f"the first {MAX_TEXT_CHARS} of its {len(page.text)} characters"
    return ParsedPage(page.title, page.text[:MAX_TEXT_CHARS], page.links, note)


def _parse(body: PageBody) -> ParsedPage:
    kind = body.content_type.partition(";")[0].strip().lower()
    start = body.data[:1024].lstrip()
    if kind == "application/pdf" or start.startswith(b"%PDF-"):
        return _pdf(body)
    looks_like_html = start[:15].lower().startswith((b"<!doctype html", b"<html"))
    if kind in _HTML or looks_like_html:
        return _html(body)
    if kind.startswith("text/") or kind in _PLAIN or kind.endswith(("+json", "+xml")) or _is_text(body, kind):
        return ParsedPage(title=_name_of(body.url), text=_tidy(_decoded(body)))
    raise UnparseablePage(f"its type, {kind or 'unknown'}, has no readable text")


def allows(robots: str, agent: str, url: str) -> bool:
    """Return whether a robots.txt allows a user agent to fetch an address."""
    from protego import Protego

    return Protego.parse(robots).can_fetch(url, agent)


def _html(body: PageBody) -> ParsedPage:
    document = _DECLARATION.sub("", _decoded(body))
    if not document.strip():
        return ParsedPage(title="", text="")
    lxml_html = cast("_LxmlHtml", importlib.import_module("lxml.html"))
    trafilatura = cast("_Trafilatura", importlib.import_module("trafilatura"))
    try:
        tree = lxml_html.document_fromstring(document)
    except lxml_html.etree.ParserError:
        return ParsedPage(title="", text="")
    title = " ".join((tree.findtext(".//title") or tree.findtext(".//h1") or "").split())
    links = list(_links(tree, body.url))
    text = trafilatura.extract(
        tree,
        url=body.url,
        output_format="markdown",
        include_links=True,
        include_images=True,
        include_comments=False,
        favor_recall=True,
    )
    if text is None or len(text) < MIN_ARTICLE_CHARS:
        whole = trafilatura.html2txt(lxml_html.document_fromstring(document))
        text = whole if len(whole) > len(text or "") else text
    return ParsedPage(title=title[:MAX_TITLE_CHARS], text=_tidy(text or ""), links=links)


def _pdf(body: PageBody) -> ParsedPage:
    document = read_pdf(body.data, body.pdf_pages)
    texts = (f"[page {number}]\n\n{text.strip()}" for number, text in enumerate(document.pages, 1))
    read = len(document.pages)
    note = f"the first {read} of {document.page_count} pages" if read < document.page_count else None
    title = document.title.strip() or _name_of(body.url)
    return ParsedPage(title=title[:MAX_TITLE_CHARS], text=_tidy("\n\n".join(texts)), note=note)


def _links(tree: Element, base: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for anchor in tree.iterfind(".//a[@href]"):
        try:
            url = urljoin(base, (anchor.get("href") or "").strip()).partition("#")[0]
            good = urlsplit(url).scheme in ("http", "https")
        except ValueError:
            continue
        text = " ".join("".join(anchor.itertext()).split())
        if good and text and url != base and url not in seen:
            seen.add(url)
            yield text[:MAX_TITLE_CHARS], url
            if len(seen) == MAX_LINKS:
                return


def _decoded(body: PageBody) -> str:
    from trafilatura.utils import decode_file

    head = body.data[:2048].decode("ascii", "replace")
    for declared in (_CHARSET.search(body.content_type), _META_CHARSET.search(head)):
        if declared:
            with contextlib.suppress(LookupError):
                return body.data.decode(declared[1], "replace")
    return decode_file(body.data)


def _is_text(body: PageBody, kind: str) -> bool:
    """Return whether a body of a generic type is UTF-8 text."""
    if kind not in ("", "application/octet-stream", "binary/octet-stream"):
        return False
    try:
        return b"\0" not in body.data and bool(body.data.decode())
    except UnicodeDecodeError:
        return False


def _tidy(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return _BLANK_LINES.sub("\n\n", text.encode("utf-8", "replace").decode()).strip()


def _name_of(url: str) -> str:
    return urlsplit(url).path.rstrip("/").rpartition("/")[2] or urlsplit(url).netloc
