"""Malicious or damaged files: each is a typed one-line failure, and the server continues."""

import io
import json
import os
import random
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.extras import missing_extra, with_command
from mcp_servers import ToolResult, ToolTable
from mcp_servers.document import DocumentBackend
from mcp_servers.document._library import program as reader_program
from tests.mcp_servers.document import _made
from tests.mcp_servers.document._reading import Reader, reader_of

SIZE = 1_048_583
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "lol"}">' for n in range(10))
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def office(part: str, content: bytes, made: Path) -> bytes:
    """A good file with one part replaced."""
    out = io.BytesIO()
    with zipfile.ZipFile(made) as good, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bad:
        for info in good.infolist():
            bad.writestr(info.filename, content if info.filename == part else good.read(info.filename))
    return out.getvalue()


def word(content: str, folder: Path, encoding: str = "utf-8") -> bytes:
    return office("word/document.xml", content.encode(encoding), _made.word(folder / "good.docx"))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A picture that claims to be so large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def pdf(objects: list[str]) -> bytes:
    """A PDF file of these objects; the first is its catalogue."""
    out, offsets = b"%PDF-1.4\n", list[int]()
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    return (
        out + f"{end}trailer\n<</Size {len(objects) + 1}/Root 1 0 R>>\nstartxref\n{len(out)}\n%%EOF".encode()
    )


PAGE = "<</Type/Page/Parent 2 0 R/MediaBox[0 0 {width} 100]>>"


def zip_bomb(folder: Path) -> bytes:
    """A part that unpacks to more than any document has."""
    data = office("word/document.xml", b" " * SIZE, _made.word(folder / "good.docx"))
    return data.replace(struct.pack("<I", SIZE), struct.pack("<I", 600 << 20))


def lying_zip(folder: Path) -> bytes:
    """Its directory says that a part is small."""
    data = office("word/document.xml", b" " * SIZE, _made.word(folder / "good.docx"))
    return data.replace(struct.pack("<I", SIZE), struct.pack("<I", 100))


def encrypted_office(folder: Path) -> bytes:
    return (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500) + "EncryptedPackage".encode("utf-16-le") + bytes(500)
    )


MANY: dict[str, tuple[str, Callable[[Path], bytes], str, str]] = {
    "a zip bomb": ("x.docx", zip_bomb, "file_too_large", "too large when unpacked"),
    "a zip that lies": ("x.docx", lying_zip, "failed", "damaged"),
    "entities": (
        "x.docx",
        lambda folder: word(f"<!DOCTYPE d [{LAUGHS}]><d>&l9;</d>", folder),
        "denied",
        "declares XML entities",
    ),
    "an external entity": (
        "x.xlsx",
        lambda folder: office(
            "xl/workbook.xml",
            b'<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/hostname">]><d>&e;</d>',
            _made.sheets(folder / "good.xlsx"),
        ),
        "denied",
        "declares XML entities",
    ),
    "entities in UTF-16": (
        "x.docx",
        lambda folder: word(f"<!DOCTYPE d [{LAUGHS}]><d>&l9;</d>", folder, "utf-16"),
        "denied",
        "declares XML entities",
    ),
    "deep XML": (
        "x.docx",
        lambda folder: word(f'<w:document xmlns:w="{W}">{"<w:p>" * 100_000}', folder),
        "failed",
        "damaged",
    ),
    "no XML": ("x.docx", lambda folder: word("<w:document", folder), "failed", "damaged"),
    "an archive": ("x.docx", lambda folder: zipped("a.txt"), "failed", "not a docx, pptx or xlsx"),
    "an encrypted PDF": (
        "x.pdf",
        lambda folder: _made.pdf(folder / "locked.pdf", password="secret").read_bytes(),
        "denied",
        "encrypted",
    ),
    "an encrypted Office file": ("x.docx", encrypted_office, "denied", "encrypted"),
    "an old Office file": (
        "x.docx",
        lambda folder: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(999),
        "failed",
        "old binary Office format",
    ),
    "a truncated Office file": (
        "x.docx",
        lambda folder: _made.word(folder / "good.docx").read_bytes()[:9_000],
        "failed",
        "damaged",
    ),
    "a truncated picture": ("x.png", lambda folder: _made.picture("words")[:300], "failed", "damaged"),
    "an HTML page named .pdf": (
        "x.pdf",
        lambda folder: b"<html>404</html>",
        "failed",
        "does not match its suffix .pdf",
    ),
    "a PDF without pages": ("x.pdf", lambda folder: b"%PDF-1.4\nnothing", "failed", "damaged"),
    "a PDF of a million pages": (
        "x.pdf",
        lambda folder: pdf(
            [
                "<</Type/Catalog/Pages 2 0 R>>",
                "<</Type/Pages/Kids[3 0 R]/Count 1000000>>",
                PAGE.format(width=100),
            ]
        ),
        "file_too_large",
        "claims 1000000 pages",
    ),
    "a picture of ten gigapixels": (
        "x.png",
        lambda folder: png(100_000, 100_000),
        "file_too_large",
        "pixels",
    ),
    "a program": ("x.txt", lambda folder: bytes(range(256)) * 9, "failed", "neither text nor"),
    "nothing": ("x.md", lambda folder: b" \n", "failed", "empty"),
}


def zipped(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, "x")
    return out.getvalue()


@pytest.mark.promise("document:hostile")
@pytest.mark.parametrize("which", MANY)
async def test_a_hostile_or_broken_file_is_a_one_line_failure_without_side_effects(
    table: ToolTable, reader: Reader, tmp_path: Path, which: str
) -> None:
    name, make, kind, expected = MANY[which]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / name).write_bytes(make(tmp_path))
    bad = await reader_of(table, tmp_path / "bad")
    error_kind, message = await bad.failure("read")
    assert (error_kind, expected in message) == (kind, True), message
    assert message.startswith(f"document: {name!r} cannot be read: ")
    assert (await reader.text(document="notes/dues.md")).startswith("Before")


@pytest.mark.promise("document:hostile")
@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("deep.html", b"<div>" * 100_000 + b"words" + b"<table><tr><td>" * 20_000 + b"within", "words"),
        ("wide.html", b"<table><tr><td colspan=99999 rowspan=99999>x", "x"),
        ("deep.md", b"> " * 50_000 + b"words\n" + b"[" * 50_000, "words"),
    ],
)
async def test_deep_and_wide_markup_is_read_within_the_limits(
    table: ToolTable, tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(content)
    reader = await reader_of(table, tmp_path / name)
    assert expected in await reader.text(max_tokens=200_000)


@pytest.mark.promise("document:hostile")
async def test_loops_in_a_pdf_end(table: ToolTable, tmp_path: Path) -> None:
    (tmp_path / "loop.pdf").write_bytes(
        pdf(
            [
                "<</Type/Catalog/Pages 2 0 R/Outlines 4 0 R>>",
                "<</Type/Pages/Kids[3 0 R 2 0 R]/Count 2>>",
                PAGE.format(width=1e9),
                "<</First 5 0 R/Last 5 0 R>>",
                "<</Title(again)/Dest[3 0 R/Fit]/Next 5 0 R/First 5 0 R/Parent 4 0 R>>",
            ]
        )
    )
    reader = await reader_of(table, tmp_path / "loop.pdf")
    outline = await reader.data("outline")
    assert outline["total_sections"] in (1, 2)
    assert outline["notes"] == ["Some pages are damaged and were not read."]
    assert (await reader.failure("page_image", page=1))[0] == "failed"


@pytest.mark.promise("document:hostile")
async def test_a_sheet_that_claims_all_rows_is_read_up_to_a_limit(table: ToolTable, tmp_path: Path) -> None:
    import openpyxl

    file = openpyxl.Workbook()
    file.worksheets[0]["XFD1048576"] = "far"
    file.worksheets[0]["A1"] = "near"
    file.save(tmp_path / "wide.xlsx")
    reader = await reader_of(table, tmp_path / "wide.xlsx")
    assert "near" in await reader.text(max_tokens=100)
    assert "cells of the tables are read" in str((await reader.data("outline"))["notes"])


async def test_a_path_that_is_not_a_regular_file_is_not_a_document(table: ToolTable, tmp_path: Path) -> None:
    (tmp_path / "folder.md").mkdir()
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "loop.md").symlink_to(tmp_path / "loop.md")
    (tmp_path / "note.md").write_text("# One", encoding="utf-8")
    reader = await reader_of(table, tmp_path)
    assert await reader.text() == "# One"
    for name in ("folder.md", "pipe.md", "loop.md"):
        assert (await reader.failure("read", document=name))[0] == "not_found"


@asynccontextmanager
async def server(folder: Path, **limits: object) -> AsyncGenerator[Reader]:
    """A session of a server with these limits."""
    settings = {"document": {"cache_dir": str(folder / ".cache"), "folder": str(folder), **limits}}
    async with ToolTable([DocumentBackend()], settings=settings) as table:
        yield await reader_of(table)


@pytest.mark.promise("document:limits")
async def test_memory_and_size_are_limited(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + bytes(3 * 9_000) for _ in range(9_000))
    (tmp_path / "large.png").write_bytes(png(9_000, 9_000, rows))
    (tmp_path / "long.txt").write_bytes(b"x" * 4_000_000)
    async with server(tmp_path, memory_bytes=192 << 20, file_bytes=3_000_000) as reader:
        assert (await reader.failure("page_image", document="large.png", page=1))[0] == "out_of_memory"
        assert (await reader.failure("read", document="long.txt"))[0] == "file_too_large"


@pytest.mark.promise("document:limits")
async def test_time_is_limited_and_a_search_continues_with_other_documents(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("# Harbour", encoding="utf-8")
    async with server(tmp_path) as reader:
        assert (await reader.data("outline"))["total_sections"] == 1
    (tmp_path / "slow.html").write_bytes(b"<!" * 400_000)
    async with server(tmp_path, timeout=1) as reader:
        assert (await reader.failure("read", document="slow.html"))[0] == "timeout"
        result = await reader.data("search", query="harbour")
        assert [hit["document"] for hit in cast("list[dict[str, object]]", result["hits"])] == ["note.md"]
        (unread,) = cast("list[dict[str, object]]", result["unread"])
        assert unread["document"] == "slow.html"
        assert result["documents"] == 1


@pytest.mark.promise("document:ocr")
async def test_without_ocr_a_note_says_what_to_install(tmp_path: Path) -> None:
    _made.scan_pdf(tmp_path / "scan.pdf", "HARBOUR OFFICE")
    async with server(tmp_path, ocr_program="no-such-program") as reader:
        notes = (await reader.data("outline"))["notes"]
        assert "Install no-such-program to read them (Debian, Ubuntu: tesseract-ocr)" in str(notes)


@pytest.mark.promise("document:ocr")
async def test_a_page_that_is_only_a_picture_is_read(table: ToolTable, tmp_path: Path) -> None:
    reader = await reader_of(table, _made.scan_pdf(tmp_path / "scan.pdf", "HARBOUR OFFICE"))
    assert "HARBOUR OFFICE" in await reader.text(pages=1)


@pytest.mark.promise("document:limits")
async def test_a_call_that_is_given_up_harms_no_other_call_on_the_same_document(
    table: ToolTable, tmp_path: Path
) -> None:
    reader = await reader_of(table, _made.pdf(tmp_path / "book.pdf", chapters=60))
    results: dict[str, ToolResult] = {}

    async def call(name: str, timeout: float | None) -> None:
        arguments = {"session": reader.session, "page": len(results) + 1, "dpi": 300}
        results[name] = await table.call("document_page_image", arguments, timeout=timeout)

    assert (await reader.call("page_image", page=60)).ok
    async with anyio.create_task_group() as group:
        group.start_soon(call, "given up", 0.001)
        group.start_soon(call, "other", None)
    assert results["other"].ok, results["other"].error
    assert results["given up"].error is not None
    assert results["given up"].error.kind == "timeout"


@pytest.mark.promise("document:none")
def test_a_missing_library_is_named_with_what_to_install(tmp_path: Path) -> None:
    _made.word(tmp_path / "ships.docx")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from mcp_servers.document.inside._reader import answer\n"
        """answer('{"do": "draft", "name": "ships.docx", "ocr_program": "x", "ocr_languages": "eng"}')"""
    )
    zipped = tmp_path / "reader.zip"
    zipped.write_bytes(reader_program())
    # Without site-packages there is the standard library alone.
    subprocess.run([sys.executable, "-I", "-S", "-c", program, zipped], cwd=tmp_path, check=True)
    error = json.loads((tmp_path / "answer").read_bytes())
    assert error["why"] == "unavailable"
    assert with_command(error["message"]) == missing_extra("it", "document")


@pytest.mark.promise("document:hostile")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["book.pdf", "ships.docx", "fleet.pptx", "sales.xlsx", "sign.png", "dues.html"]),
    seed=st.integers(0, 2**32),
)
async def test_a_file_with_wrong_bytes_is_read_or_refused_in_one_line(
    table: ToolTable, shelf: Path, tmp_path: Path, name: str, seed: int
) -> None:
    chance, data = random.Random(seed), bytearray((shelf / name).read_bytes())
    for _ in range(chance.randint(1, 40)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    (tmp_path / name).write_bytes(bytes(data[: chance.randint(len(data) // 2, len(data))]))
    reader = await reader_of(table, tmp_path / name)
    for tool in ("outline", "read", "tables"):
        result = await reader.call(tool)
        if result.error is not None:
            assert "\n" not in result.error.message
            assert result.error.kind in ("failed", "denied", "file_too_large"), result.error
    assert (await table.call("session_end", {"session": reader.session})).ok
