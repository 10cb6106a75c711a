"""A compromised reader: whatever it replies is one failure within a bound of memory, and others continue."""

import io
import json
import tracemalloc
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from mcp_servers import ToolTable
from mcp_servers.document import DocumentBackend
from mcp_servers.document._replies import MAX_ANSWER
from mcp_servers.document.inside._draft import MAX_CHARACTERS, MAX_TABLE_BYTES, DocumentWriter
from tests.mcp_servers.document._reading import Reader, reader_of

pytestmark = pytest.mark.promise("document:compromised")

MIB = 1024 * 1024
CONTENT = (
    '{"kind": "text", "title": "", "text": "", "pages": %s, "sections": [], "tables": %s, "pictures": [], '
    '"notes": %s}\n'
)
GOOD = CONTENT % ("[]", "[]", "[]") + "good"
ONCE = f"""
import os
if os.path.exists("seen"):
    out.write({GOOD!r}.encode())
else:
    open("seen", "w").close()"""
READER = """
import os

def answer(request):
    name = next(name for name in os.listdir() if name.startswith("document"))
    # The document is the program that writes the answer.
    with open(name) as file, open("answer", "wb") as out:
        exec(file.read(), {"out": out})
"""
ATTACKS = {
    "the largest reply": f"out.truncate({MAX_ANSWER + 1})",
    "256 MiB": f"out.truncate({256 * MIB})",
    "a bomb of lists": f"out.write(b'[' + b'[],' * {10 * MIB} + b'1]\\n')",
    "a bomb in a field": f"out.write({CONTENT % ('7', '[]', '[]')!r}.encode().replace(b'7', b'[' + b'[],' * 600000 + b'1]'))",
    "deep nesting": "out.write(b'[' * 400000 + b'\\n')",
    "no head": f"out.write(b'x' * {33 * MIB})",
    "wrong types": f"out.write({CONTENT % ('7', '[]', '[]')!r}.encode())",
    "wrong values": f"out.write({CONTENT % ('[0, 9]', '[]', '[]')!r}.encode() + b'text')",
    "unordered pages": f"out.write({CONTENT % ('[4, 1]', '[]', '[]')!r}.encode() + b'text')",
    "a long note": f"out.write({CONTENT % ('[]', '[]', json.dumps(['x' * 99_999]))!r}.encode())",
    "too much text": f"out.write({CONTENT % ('[]', '[]', '[]')!r}.encode() + b'x' * {MAX_CHARACTERS + 1})",
    "no text": f"out.write({CONTENT % ('[]', '[]', '[]')!r}.encode() + b'\\xff')",
    "an unknown error": """out.write(b'{"why": "%s", "message": ""}\\n' % (b'x' * 9000))""",
    "a long error": f"""out.write(b'{{"why": "failed", "message": "' + b'x' * {64 * MIB} + b'"}}\\n')""",
    "an image": """out.write(b'{"width": 1, "height": 1, "dpi": 1}\\n\\x89PNG')""",
    "nothing": "pass",
}
SMALL = {"256 MiB", "wrong types", "wrong values", "unordered pages", "no text", "an image", "nothing"}


def compromised() -> bytes:
    """A reader that lets the document decide what it replies."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for package in ("mcp_servers", "mcp_servers/document", "mcp_servers/document/inside"):
            archive.writestr(f"{package}/__init__.py", "")
        archive.writestr("mcp_servers/document/inside/_reader.py", READER)
    return packed.getvalue()


@pytest.fixture
async def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Reader]:
    monkeypatch.setattr("mcp_servers.document._library.program", compromised)
    (tmp_path / "good.txt").write_text(f"out.write({GOOD!r}.encode())")
    settings = {"folder": str(tmp_path), "cache_dir": str(tmp_path / ".cache"), "timeout": 100}
    async with ToolTable([DocumentBackend()], settings={"document": settings}) as table:
        yield await reader_of(table)


async def test_a_hostile_reply_is_one_failure_within_a_bound_and_the_reader_is_replaced(
    reader: Reader, tmp_path: Path
) -> None:
    for name, attack in ATTACKS.items():
        path = tmp_path / f"{name}.txt"
        # A reader that were kept would answer the second request well.
        path.write_text(f"{ONCE}\n    {attack}")
        tracemalloc.start()
        try:
            kind, message = await reader.failure("read", document=path.name)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert kind in ("failed", "output_limit", "file_too_large"), (name, kind, message)
        assert message.startswith(f"document: {path.name!r} "), message
        assert len(message) < 400, name
        assert peak < (MIB if name in SMALL else 128 * MIB), (name, peak // MIB)
        assert (await reader.failure("read", document=path.name))[0] == kind, name
        assert await reader.text(document="good.txt") == "good", name


@pytest.mark.parametrize("tool", ["page_image", "tables"])
async def test_other_replies_are_checked_too(reader: Reader, tmp_path: Path, tool: str) -> None:
    replies = ['{"width": -1, "height": 1, "dpi": 1}\n\x7fPNG', '{"tables": [7]}\n', "[" * 200_000 + "\n"]
    for number, reply in enumerate(replies):
        path = tmp_path / f"{number}.txt"
        # The first reply is the content, which tables need.
        path.write_text(f"out.write({reply!r}.encode())")
        kind, message = await reader.failure(
            tool, document=path.name, **{"page": 1} if "page" in tool else {}
        )
        assert (kind, "invalid reply" in message) == ("failed", True), message


def test_an_honest_reader_stays_within_the_limits_of_its_replies() -> None:
    draft = DocumentWriter("html")
    for _ in range(1_000):
        draft.table([["\u6f22" * 10_000]], at=0)
        draft.section("\u6f22" * 400, 1)
    head, _ = draft.finished()
    assert len(json.dumps(head, ensure_ascii=False).encode()) < MAX_TABLE_BYTES + 4 * MIB + MIB
    assert draft.notes == [f"Only the first {MAX_TABLE_BYTES} bytes of the tables are read."]
