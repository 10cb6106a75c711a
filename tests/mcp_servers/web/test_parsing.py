"""Parsing of pages: text, one-line failures, and isolation from the server."""

import contextlib
import subprocess
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.web import WebBackend
from mcp_servers.web._jobs import PageBody, ParsedPage, ParserJob
from mcp_servers.web._parsers import ParserPool
from tests._processes import commands
from tests.mcp_servers.web._pdfs import pdf

MIB = 1024 * 1024

ARTICLE = """<!doctype html><html><head><title>  The bridge
 of Kelder </title></head><body><nav><a href="/home">Home</a><a href="javascript:x()">No</a></nav>
<article><h1>The bridge</h1><p>The bridge of Kelder was built in <b>1821</b> by
<a href="../people/anna">Anna Brook</a>, who came from the north and stayed for the rest of her life.</p>
<p>It is 230 metres long. Until 1955 it was the longest of the country, and the only one that bore both a road
and a railway.</p><h2>Figures</h2><table><tr><th>Year</th><th>Trains</th></tr><tr><td>1900</td><td>12</td></tr></table>
<ul><li>stone</li><li>iron</li></ul><img src="pic.png" alt="The bridge in 1900">
<script>alert("no")</script></article><footer>Imprint</footer></body></html>"""


async def parsed(
    parsers: ParserPool, data: str | bytes, kind: str = "text/html", *, pages: int = 300
) -> ParsedPage:
    """A page that can be read."""
    body = PageBody("http://a.example/b/c", kind, data.encode() if isinstance(data, str) else data, pages)
    answer = await parsers.do(ParserJob(20.0, 512 * MIB, body=body))
    assert answer.parsed is not None, answer.failed
    return answer.parsed


async def refusal(
    parsers: ParserPool,
    data: bytes,
    kind: str = "text/html",
    *,
    seconds: float = 20.0,
    memory: int = 512 * MIB,
) -> str:
    """Return the reason why a body is unreadable."""
    answer = await parsers.do(ParserJob(seconds, memory, body=PageBody("http://a.example/x", kind, data)))
    assert answer.failed is not None
    return answer.failed


@pytest.mark.promise("web:visit:markdown")
async def test_an_article_becomes_markdown_with_its_title_and_links(parsers: ParserPool) -> None:
    page = await parsed(parsers, ARTICLE)
    assert page.title == "The bridge of Kelder"
    for part in (
        "# The bridge",
        "**1821**",
        "[Anna Brook](http://a.example/people/anna)",
        "| 1900 | 12 |",
        "- stone",
        "![The bridge in 1900](http://a.example/b/pic.png)",
    ):
        assert part in page.text
    assert "alert" not in page.text
    assert page.links == [
        ("Home", "http://a.example/home"),
        ("Anna Brook", "http://a.example/people/anna"),
    ]


@pytest.mark.promise("web:visit:pdf")
async def test_a_pdf_becomes_the_text_of_its_pages(parsers: ParserPool) -> None:
    data = pdf("The first page.", "The second page.", "The third.", title="A report")
    page = await parsed(parsers, data, "application/pdf")
    assert page.title == "A report"
    assert page.text == (
        "[page 1]\n\nThe first page.\n\n[page 2]\n\nThe second page.\n\n[page 3]\n\nThe third."
    )
    part = await parsed(parsers, data, "text/html", pages=2)
    assert "third" not in part.text
    assert part.note == "the first 2 of 3 pages"


@pytest.mark.promise("web:visit:hostile")
async def test_an_unreadable_page_gives_the_reason(parsers: ParserPool) -> None:
    assert await refusal(parsers, pdf("x", password="word"), "application/pdf") == (
        "the PDF is encrypted with a password"
    )
    assert await refusal(parsers, b"%PDF-1.7 nothing", "application/pdf") == "the PDF is damaged"
    assert await refusal(parsers, pdf("x")[:200], "application/pdf") == "the PDF is damaged"


@pytest.mark.promise("web:visit:hostile")
@pytest.mark.parametrize(
    "data",
    [
        b"<div>" * 200_000,
        b"<p>" + b"<a href='" * 50_000,
        b"<!doctype html><!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;&a;'>&b;",
        b"\x00\xff" * 10_000,
        b"<table>" * 3_000 + b"<td>x" * 3_000,
        b"<html>&#xD800;&#0;\xed\xa0\x80</html>",
        b"",
    ],
    ids=["nested", "unclosed", "entities", "noise", "tables", "surrogates", "nothing"],
)
async def test_hostile_pages_end_within_limits_and_the_next_page_is_read(
    parsers: ParserPool, data: bytes
) -> None:
    answer = await parsers.do(
        ParserJob(5.0, 512 * MIB, body=PageBody("http://a.example/", "text/html", data))
    )
    assert answer.failed is not None or answer.parsed is not None
    assert (await parsed(parsers, "<p>Still here.</p>")).text == "Still here."


@pytest.mark.promise("web:visit:hostile")
async def test_time_and_memory_of_one_page_are_limited(parsers: ParserPool) -> None:
    large = b"<html><body>" + b"<p>Some <b>words</b> that are <i>marked</i> up.</p>" * 150_000
    assert await refusal(parsers, large, seconds=0.2) == "parsing it took too long"
    assert "memory" in await refusal(parsers, large, memory=20 * MIB)
    assert (await parsed(parsers, "<p>Still here.</p>")).text == "Still here."


@pytest.mark.promise("web:visit:size")
async def test_of_a_very_long_text_a_beginning_is_kept(parsers: ParserPool) -> None:
    page = await parsed(parsers, "word " * 500_000, "text/plain")
    assert len(page.text) == 2_000_000
    assert page.note == "the first 2000000 of its 2499999 characters"


@pytest.mark.promise("web:visit:hostile")
async def test_the_process_that_parses_knows_nothing_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "never-to-be-seen")
    parsers = ParserPool(1)
    before = set(psutil.Process().children())
    try:
        await parsed(parsers, "<p>x</p>")
        (process,) = [
            candidate
            for candidate, words in commands()
            if candidate not in before and "mcp_servers.web._parser_process" in words
        ]
        assert "never-to-be-seen" not in str(process.environ())
    finally:
        await parsers.close()
    assert not process.is_running()


@pytest.mark.promise("web:visit:hostile")
async def test_a_caller_that_gives_up_takes_the_parsing_with_it() -> None:
    parsers = ParserPool(1)
    large = b"<html><body>" + b"<p>Some <b>words</b>.</p>" * 300_000
    with anyio.move_on_after(0.5) as scope:
        await parsers.do(ParserJob(60.0, 512 * MIB, body=PageBody("http://a.example/", "text/html", large)))
    assert scope.cancelled_caught
    assert (await parsed(parsers, "<p>Still here.</p>")).text == "Still here."
    await parsers.close()


HOSTILE_REPLIES = {
    "too large": "b' ' * (32 * 1024 * 1024 + 1)",
    "a bomb": "b'[' + b'[],' * 8_000_000 + b'1]'",
    "many links": """b'{"parsed": {"title": "", "text": "", "links": [' + b'["",""],' * 100_000 + b'["",""]]}}'""",
    "deep": "b'[' * 200_000",
    "a wrong type": """b'{"failed": 7}'""",
}


@pytest.mark.promise("web:visit:hostile")
@pytest.mark.parametrize("which", HOSTILE_REPLIES)
async def test_a_hostile_reply_is_one_failure_and_the_process_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str
) -> None:
    program = (
        "import sys; from runtimes import read_frame, write_frame; read_frame(sys.stdin.buffer.read)\n"
        f"write_frame(1, {HOSTILE_REPLIES[which]})\nsys.stdin.buffer.read()"
    )
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n{program}")
    script.chmod(0o700)
    parsers = ParserPool(1)
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", str(script))
        with pytest.raises(ToolFailure, match="web: the parser process failed") as failure:
            await parsed(parsers, "<p>x</p>")
    assert failure.value.kind is ErrorKind.UNAVAILABLE
    assert (await parsed(parsers, "<p>Still here.</p>")).text == "Still here."
    await parsers.close()


@pytest.mark.promise("web:extra")
async def test_without_the_extra_reading_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> str | None:
        return None if name == "protego" else name

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    with pytest.raises(ToolFailure, match=r"agentflow.* extras add web") as failure:
        await ParserPool(1).do(ParserJob(1.0, MIB))
    assert failure.value.kind is ErrorKind.UNAVAILABLE
    listed = WebBackend(environment=dict).unusable({"serper_api_key": "k"})
    assert listed["visit"] == listed["read"] == missing_extra("reading pages", "web")


@pytest.mark.promise("web:visit:hostile")
def test_the_parser_cannot_open_files_connect_or_start_processes() -> None:
    code = """
import os, socket, subprocess
from runtimes import restrict_calls
restrict_calls()
def refused(work):
    try:
        work()
    except PermissionError:
        return True
print(all(map(refused, (
    lambda: open("/etc/hostname"),
    lambda: open("/tmp/x", "w"),
    lambda: socket.socket(),
    lambda: os.fork(),
    lambda: os.kill(os.getppid(), 0),
    lambda: os.listdir("/"),
    lambda: os.execv("/bin/true", ["true"]),
    lambda: os.unlink("/tmp/x"),
))), sum(range(1000)), len(bytes(50_000_000)), flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True 499500 50000000\n", 0), done.stderr


@pytest.mark.promise("web:visit:hostile")
def test_no_process_outlives_a_server_that_is_killed() -> None:
    code = """
import anyio, os, signal, psutil
from mcp_servers.web import WebBackend
from mcp_servers.web._jobs import PageBody, ParserJob
from mcp_servers.web._parsers import ParserPool
async def main():
    await ParserPool(1).do(ParserJob(20.0, 2**29, body=PageBody("http://a.example/", "text/html", b"<p>x")))
    print(*(one.pid for one in psutil.Process().children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
anyio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    (pid,) = map(int, done.stdout.split())
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(20)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
