"""Detection of a document's format from its content, not its name."""

import codecs
import re
import zipfile
from typing import Final

from mcp_servers.document.inside._draft import UnreadableDocument

_OFFICE: Final = {"word/document.xml": "docx", "ppt/presentation.xml": "pptx", "xl/workbook.xml": "xlsx"}
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
    if any(data.startswith(magic, position) for magic, position in _PICTURES) or _is_bitmap(data):
        return "picture"
    if not data.strip():
        raise UnreadableDocument("failed", "it is empty")
    if suffix in _BINARY:
        raise UnreadableDocument("failed", f"its content does not match its suffix .{suffix}")
    if b"\0" in data[:65536] and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UnreadableDocument("failed", "it is neither text nor a document of a known format")
    return _BY_NAME.get(suffix) or ("html" if _HTML.match(data[:4096]) else "text")


def _is_bitmap(data: bytes) -> bool:
    return data.startswith(b"BM") and data[6:10] == b"\0\0\0\0"


def _office(name: str) -> str:
    with zipfile.ZipFile(name) as archive:
        parts = archive.infolist()
        if len(parts) > MAX_PARTS or sum(part.file_size for part in parts) > MAX_UNPACKED:
            raise UnreadableDocument("file_too_large", "it is too large when unpacked")
        names = {part.filename for part in parts}
        kind = next((kind for part, kind in _OFFICE.items() if part in names), None)
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
        found = _CHARSET.search(data[:4096])
        try:
            encoding = codecs.lookup(found[1].decode()).name if found else "cp1252"
        except LookupError:
            encoding = "cp1252"
        if encoding == "utf-8":
            encoding = "cp1252"
        try:
            return data.decode(encoding, "replace")
        except (LookupError, UnicodeError):
            return data.decode("latin-1")
