"""Documents: bombs, entities, paths, macros, and references to files and addresses outside."""

import gzip
import io
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from mcp_servers import ToolTable
from mcp_servers.document import DocumentBackend
from tests.attacks._table import Attack, attacks
from tests.mcp_servers.document import _made
from tests.mcp_servers.document._reading import reader_of
from tests.mcp_servers.document.test_hostile import (
    LAUGHS,
    MANY,
    PAGE,
    SIZE,
    W,
    office,
    pdf,
    png,
    word,
    zipped,
)

CATEGORY = "documents"
SECRET = "root:x:0:0"
"""Text of the file that the documents refer to."""
CONTAINED = "(failed: .*|read without the secret); folder unchanged"

Maker = Callable[[Path], bytes]


def _external(kind: str, target: str) -> Maker:
    relation = f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/{kind}" Target="{target}" TargetMode="External"/></Relationships>'
    return lambda folder: office(
        "word/_rels/document.xml.rels", relation.encode(), _made.word(folder / "good.docx")
    )


def _entity(declared: str, part: str = "word/document.xml") -> Maker:
    content = f'<?xml version="1.0"?><!DOCTYPE d [{declared}]><w:document xmlns:w="{W}"><w:body><w:p><w:r><w:t>&e;</w:t></w:r></w:p></w:body></w:document>'
    return lambda folder: office(part, content.encode(), _made.word(folder / "good.docx"))


def _with_member(name: str, content: bytes, made: Callable[[Path], Path], suffix: str) -> Maker:
    def make(folder: Path) -> bytes:
        out = io.BytesIO(made(folder / f"good{suffix}").read_bytes())
        with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
        return out.getvalue()

    return make


def _text(text: str) -> Maker:
    return lambda folder: text.encode()


def _nested(depth: int) -> bytes:
    data = b"x" * SIZE
    for n in range(depth):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{n}.zip", data)
        data = out.getvalue()
    return data


_URI = "<</Type/Catalog/Pages 2 0 R/OpenAction<</S/{action}>>>>"
_FILES: dict[str, tuple[str, str, Maker]] = {
    "entity: file": ("read a file by an XML entity", "x.docx", _entity('<!ENTITY e SYSTEM "file:///etc/passwd">')),
    "entity: address": ("reach an address by an XML entity", "x.docx", _entity('<!ENTITY e SYSTEM "http://127.0.0.1:1/">')),
    "entity: parameter": ("load a definition by a parameter entity", "x.docx", _entity('<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;')),
    "entity: external definition": ("load an external definition", "x.docx", lambda folder: word('<!DOCTYPE d SYSTEM "file:///etc/hostname"><d/>', folder)),
    "entity: in the styles": ("read a file from the styles", "x.docx", _entity('<!ENTITY e SYSTEM "file:///etc/passwd">', "word/styles.xml")),
    "entity: in the types": ("read a file from the content types", "x.docx", _entity('<!ENTITY e SYSTEM "file:///etc/passwd">', "[Content_Types].xml")),
    "entity: in the properties": ("read a file from the properties", "x.docx", _entity('<!ENTITY e SYSTEM "file:///etc/passwd">', "docProps/core.xml")),
    "entity: laughs in UTF-7": ("expand entities in another encoding", "x.docx", lambda folder: word(f'<?xml version="1.0" encoding="UTF-7"?><!DOCTYPE d [{LAUGHS}]><d>&l9;</d>', folder)),
    "entity: quadratic": ("expand one long entity often", "x.docx", lambda folder: word(f'<!DOCTYPE d [<!ENTITY e "{"x" * 50_000}">]><d>{"&e;" * 50_000}</d>', folder)),
    "include: XInclude": ("include a file", "x.docx", lambda folder: word('<d xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="file:///etc/hostname" parse="text"/></d>', folder)),
    "include: altChunk": ("include a file as a part", "x.docx", _external("aFChunk", "file:///etc/passwd")),
    "include: template": ("load a template", "x.docx", _external("attachedTemplate", "http://127.0.0.1:1/x.dotm")),
    "include: picture": ("load a picture", "x.docx", _external("image", "file:///etc/passwd")),
    "include: object": ("load an object", "x.docx", _external("oleObject", "\\\\127.0.0.1\\share\\x")),
    "include: frame": ("load a frame", "x.docx", _external("frame", "file:///etc/passwd")),
    "slip: above": ("write above by a member's name", "x.docx", _with_member("../../../../tmp/evil-slip", b"x", _made.word, ".docx")),
    "slip: absolute": ("write to an absolute member name", "x.docx", _with_member("/tmp/evil-slip", b"x", _made.word, ".docx")),
    "slip: backslashes": ("write above by backslashes", "x.xlsx", _with_member("..\\..\\evil-slip", b"x", _made.sheets, ".xlsx")),
    "slip: link": ("write behind a link in the archive", "x.pptx", _with_member("ppt/link/../../../evil-slip", b"x", _made.slides, ".pptx")),
    "macro: Word": ("run a macro", "x.docx", _with_member("word/vbaProject.bin", b"\xd0\xcf\x11\xe0" * 100, _made.word, ".docx")),
    "macro: Excel": ("run a macro sheet", "x.xlsx", _with_member("xl/macrosheets/sheet1.xml", b"<x>=EXEC(\"id\")</x>", _made.sheets, ".xlsx")),
    "macro: PowerPoint": ("run an action", "x.pptx", _with_member("ppt/vbaProject.bin", b"\xd0\xcf\x11\xe0" * 100, _made.slides, ".pptx")),
    "formula: file": ("read a file by a formula", "x.csv", _text("a,b\n=WEBSERVICE(\"file:///etc/passwd\"),=cmd|'/c id'!A1\n")),
    "bomb: large member": ("unpack a large member", "x.xlsx", lambda folder: office("xl/sharedStrings.xml", b"<sst>" + b"<si><t>x</t></si>" * 3_000_000, _made.sheets(folder / "good.xlsx"))),
    "bomb: nested": ("unpack archives in archives", "x.docx", lambda folder: _nested(8)),
    "bomb: many members": ("list many members", "x.docx", lambda folder: _many(20_000)),
    "bomb: compressed text": ("unpack a compressed file", "x.txt", lambda folder: gzip.compress(bytes(50_000_000))),
    "bomb: picture text": ("unpack text in a picture", "x.png", lambda folder: png(10, 10, bytes(50_000_000))),
    "bomb: rows": ("claim all rows", "x.xlsx", lambda folder: office("xl/worksheets/sheet1.xml", b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><dimension ref="A1:XFD1048576"/><sheetData><row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData></worksheet>', _made.sheets(folder / "good.xlsx"))),
    "bomb: merged cells": ("merge all cells", "x.xlsx", lambda folder: office("xl/worksheets/sheet1.xml", b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData/><mergeCells count="1"><mergeCell ref="A1:XFD1048576"/></mergeCells></worksheet>', _made.sheets(folder / "good.xlsx"))),
    "bomb: pattern": ("make a pattern search long", "x.md", _text("[" * 20_000 + "](" * 20_000 + "*" * 20_000 + "`" * 20_001)),
    "bomb: table": ("claim a wide table", "x.html", _text("<table>" + "<tr><td colspan=1000 rowspan=65534>x" * 200)),
    "pdf: script": ("run a script", "x.pdf", lambda folder: pdf([_URI.format(action="JavaScript/JS(app.launchURL('http://127.0.0.1'))"), "<</Type/Pages/Kids[3 0 R]/Count 1>>", PAGE.format(width=100)])),
    "pdf: program": ("run a program", "x.pdf", lambda folder: pdf([_URI.format(action="Launch/F(/bin/sh)"), "<</Type/Pages/Kids[3 0 R]/Count 1>>", PAGE.format(width=100)])),
    "pdf: address": ("open an address", "x.pdf", lambda folder: pdf([_URI.format(action="URI/URI(http://127.0.0.1:1/)"), "<</Type/Pages/Kids[3 0 R]/Count 1>>", PAGE.format(width=100)])),
    "pdf: other file": ("open another file", "x.pdf", lambda folder: pdf([_URI.format(action="GoToR/F(file:///etc/passwd)"), "<</Type/Pages/Kids[3 0 R]/Count 1>>", PAGE.format(width=100)])),
    "pdf: external stream": ("read a stream from a file", "x.pdf", lambda folder: pdf(["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>", "<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>", "<</Length 0/F(file:///etc/passwd)>>stream\n\nendstream"])),
    "pdf: parent loop": ("loop in the tree of pages", "x.pdf", lambda folder: pdf(["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[2 0 R]/Count 1/Parent 2 0 R>>"])),
    "pdf: length loop": ("loop in a length", "x.pdf", lambda folder: pdf(["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>", "<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>", "<</Length 4 0 R>>stream\nx\nendstream"])),
    "pdf: nested": ("nest arrays deeply", "x.pdf", lambda folder: pdf(["<</Type/Catalog/Pages 2 0 R/X " + "[" * 100_000 + ">>", "<</Type/Pages/Kids[]/Count 0>>"])),
    "pdf: negative": ("use negative sizes", "x.pdf", lambda folder: pdf(["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count -1>>", "<</Type/Page/Parent 2 0 R/MediaBox[0 0 -9 -9]>>"])),
    "html: file": ("include a file in a page", "x.html", _text('<iframe src="file:///etc/passwd"></iframe><object data="file:///etc/passwd"></object><link rel=import href="file:///etc/passwd"><embed src="file:///etc/passwd">words')),
    "html: script": ("run a script", "x.html", _text("<script>document.write(1)</script><img src=x onerror=alert(1)><svg onload=alert(1)>words")),
    "markdown: include": ("include a file in Markdown", "x.md", _text("![x](file:///etc/passwd)\n[x]: file:///etc/passwd\n{{include /etc/passwd}}\n<!--#include file=\"/etc/passwd\" -->\nwords")),
    "text: terminal": ("send escapes to a terminal", "x.txt", _text("\x1b]0;evil\x07\x1b[2Jwords")),
    "name: archive of another type": ("hide an archive as a document", "x.pptx", lambda folder: zipped("word/document.xml")),
    "name: document of another type": ("hide a document as a sheet", "x.xlsx", lambda folder: _made.word(folder / "good.docx").read_bytes()),
    "name: picture": ("hide a page as a picture", "x.png", _text("<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>")),
}  # fmt: skip
_SHORT = ("entity: file", "slip: above", "html: file")


def _many(count: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for n in range(count):
            archive.writestr(f"word/{n}.xml", "")
    return out.getvalue()


ATTACKS: list[Attack] = [
    attack
    for name, (aim, file, _) in _FILES.items()
    for attack in attacks(CATEGORY, {name: (aim, file, CONTAINED)}, soak=name not in _SHORT)
]
EXISTING: list[Attack] = [
    attack
    for name, (file, _, _, _) in MANY.items()
    for attack in attacks(CATEGORY, {f"existing: {name}": (name, file, CONTAINED)}, soak=True)
]
"""Files that the tests of the backend read, too."""


def _maker(attack: Attack) -> Maker:
    name = attack.id.removeprefix(f"{CATEGORY}: ")
    return _FILES[name][2] if name in _FILES else MANY[name.removeprefix("existing: ")][1]


async def observe(table: Iterable[Attack], folder: Path) -> dict[str, str]:
    """Read each document; return the outcomes by id."""
    (folder / "made").mkdir()
    settings = {
        "roots": [str(folder)],
        "cache_dir": str(folder / "cache"),
        "folder": str(folder / "made"),
        "timeout": 100,
    }
    seen: dict[str, str] = {}
    async with ToolTable([DocumentBackend()], settings={"document": settings}) as tools:
        for number, attack in enumerate(table):
            place = folder / str(number)
            place.mkdir()
            (place / attack.code).write_bytes(_maker(attack)(folder / "made"))
            before = _names(folder)
            reader = await reader_of(tools, place)
            result = await reader.call("read", max_tokens=20_000)
            if result.error is not None:
                outcome = f"failed: {result.error.kind.value}"
            else:
                outcome = f"read {'with' if SECRET in str(result.data) else 'without'} the secret"
            unchanged = _names(folder) == before and _names(place) == [attack.code]
            seen[attack.id] = f"{outcome}; folder {'unchanged' if unchanged else 'changed'}"
            await tools.call("session_end", {"session": reader.session})
    return seen


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "cache")
