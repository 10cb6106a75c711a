"""Parser process: `python -m mcp_servers.web._parser_process`. It reads jobs and replies, one by one.

Each job runs in a fork with its own limits on time and memory, and a seccomp filter against opening files, connecting
and starting processes. The input is untrusted; any damage to the parser ends with the fork.
"""

import codecs
import contextlib
import encodings.aliases
import math
import os
import re
import resource
import signal
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Protocol
from urllib.parse import urljoin, urlsplit

import msgspec

from mcp_servers.web._jobs import MAX_REPLY, PageBody, ParsedPage, ParserJob, ParserReply, UnparseablePage
from mcp_servers.web._results import PagePassage
from runtimes import read_frame, restrict_calls, set_limit, write_frame

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
MAX_PASSAGE = 1_000
"""Maximum length of a passage in characters."""

_K1, _B = 1.2, 0.75

_PIECE = re.compile(r"\S.*?(?=\n\s*\n|\Z)", re.DOTALL)
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s)|[。！？]|\n|\Z)\s*", re.DOTALL)
_WORD = re.compile(r"[^\W_]+")
_LINK_TARGET = re.compile(r"\]\([^)\s]*\)")
_ENDINGS = ("ies", "ing", "es", "ed", "s")
# Scripts without spaces between words, which are indexed by pairs of characters.
_UNSPACED = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\u0e00-\u0eff\uf900-\ufaff]")


class _Element(Protocol):
    """The part of lxml's element interface used here."""

    def findtext(self, path: str) -> str | None: ...
    def iterfind(self, path: str) -> "Iterator[_Element]": ...
    def itertext(self) -> Iterator[str]: ...
    def get(self, key: str) -> str | None: ...


def parse(body: PageBody) -> ParsedPage:
    """Return the text of a page of any supported type, up to a limit.

    :raises UnparseablePage: if it has no text.
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
    trafilatura = import_module("trafilatura")
    tree = _element(document)
    if tree is None:
        return ParsedPage(title="", text="")
    title = " ".join((tree.findtext(".//title") or tree.findtext(".//h1") or "").split())
    links = list(_links(tree, body.url))
    text: str | None = trafilatura.extract(
        tree,
        url=body.url,
        output_format="markdown",
        include_links=True,
        include_images=True,
        include_comments=False,
        favor_recall=True,
    )
    if text is None or len(text) < MIN_ARTICLE_CHARS:
        whole = trafilatura.html2txt(_element(document))
        text = whole if len(whole) > len(text or "") else text
    return ParsedPage(title=title[:MAX_TITLE_CHARS], text=_tidy(text or ""), links=links)


def _element(document: str) -> _Element | None:
    """Return the root element of an HTML document; `None` if it is empty.

    :raises MemoryError: also if memory ran out inside libxml2, which reports it as a syntax error.
    """
    lxml_html = import_module("lxml.html")
    try:
        return lxml_html.document_fromstring(document)
    except lxml_html.etree.ParserError:
        return None
    except lxml_html.etree.XMLSyntaxError as error:
        if error.code == lxml_html.etree.ErrorTypes.ERR_NO_MEMORY:
            raise MemoryError from None
        raise


def _pdf(body: PageBody) -> ParsedPage:
    """Return the text of the first pages of a PDF.

    :raises UnparseablePage: if it is encrypted or damaged.
    """
    pdfium = import_module("pypdfium2")
    try:
        document = pdfium.PdfDocument(body.data)
    except pdfium.PdfiumError as error:
        encrypted = "password" in str(error).lower()
        reason = "the PDF is encrypted with a password" if encrypted else "the PDF is damaged"
        raise UnparseablePage(reason) from None
    count = len(document)
    texts: list[str] = []
    for number in range(min(count, body.pdf_pages)):
        try:
            text: str = document[number].get_textpage().get_text_range()
        except pdfium.PdfiumError:
            text = ""
        texts.append(f"[page {number + 1}]\n\n{text.strip()}")
    note = f"the first {len(texts)} of {count} pages" if len(texts) < count else None
    title: str = document.get_metadata_value("Title").strip() or _name_of(body.url)
    return ParsedPage(title=title[:MAX_TITLE_CHARS], text=_tidy("\n\n".join(texts)), note=note)


def _links(tree: _Element, base: str) -> Iterator[tuple[str, str]]:
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


def best_passages(text: str, query: str, count: int) -> list[PagePassage]:
    """Return the passages of a text that match a query best (BM25 within the text), best first; only those with a query word."""
    spans = list(_spans(text))
    words = [Counter(_terms(text[start:end])) for start, end in spans]
    lengths = [counts.total() for counts in words]
    average = sum(lengths) / len(lengths) if lengths and any(lengths) else 1.0
    scores = [0.0] * len(spans)
    for term in dict.fromkeys(_terms(query)):
        holding = [index for index, counts in enumerate(words) if term in counts]
        weight = math.log(1 + (len(spans) - len(holding) + 0.5) / (len(holding) + 0.5))
        for index in holding:
            times = words[index][term]
            length = 1 - _B + _B * lengths[index] / average
            scores[index] += weight * times * (_K1 + 1) / (times + _K1 * length)
    best = sorted(
        (index for index, score in enumerate(scores) if score > 0), key=lambda index: -scores[index]
    )
    return [
        PagePassage(text[spans[index][0] : spans[index][1]], *spans[index], round(scores[index], 4))
        for index in best[:count]
    ]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield paragraphs, short ones joined with the next; a heading starts a new passage."""
    start = end = -1
    for piece in _pieces(text):
        heading = text.startswith("#", piece[0])
        if start >= 0 and (heading or piece[1] - start > MAX_PASSAGE):
            yield start, end
            start = -1
        if start < 0:
            start = piece[0]
        end = piece[1]
    if start >= 0:
        yield start, end


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield paragraphs; long ones are split into sentences, and long sentences into parts."""
    for paragraph in _PIECE.finditer(text):
        start, end = paragraph.start(), paragraph.start() + len(paragraph[0].rstrip())
        if end - start <= MAX_PASSAGE:
            yield start, end
            continue
        for sentence in _SENTENCE.finditer(text, start, end):
            for first in range(sentence.start(), sentence.end(), MAX_PASSAGE):
                last = min(first + MAX_PASSAGE, sentence.end())
                stripped = text[first:last].strip()
                if stripped:
                    begin = first + text[first:last].index(stripped)
                    yield begin, begin + len(stripped)


def _terms(text: str) -> Iterator[str]:
    plain = _LINK_TARGET.sub("]", text).casefold()
    if not plain.isascii():
        parts = unicodedata.normalize("NFKD", plain)
        plain = unicodedata.normalize(
            "NFC", "".join(character for character in parts if not unicodedata.combining(character))
        )
    for word in _WORD.findall(plain):
        if _UNSPACED.search(word):
            yield from (word[index : index + 2] for index in range(max(len(word) - 1, 1)))
        else:
            yield _stem(word)


@lru_cache(maxsize=10_000)
def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word


_PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj trailer<</Root 1 0 R>>"
)
_WARM_UP = b"<html><title>t</title><body><article><h1>One</h1>" + b"<p>A word or two.</p>" * 20


def serve() -> None:
    """Do jobs from standard input until it ends."""
    _load()
    base = _virtual_bytes()
    while (job := read_frame(sys.stdin.buffer.read)) is not None:
        write_frame(1, _answer(job, base))


def _load() -> None:
    """Load everything that parsing needs once, because forks cannot open files."""
    for name in set(encodings.aliases.aliases.values()):
        with contextlib.suppress(LookupError):
            codecs.lookup(name)
    for kind, data in (("text/html", _WARM_UP), ("text/html", b"<p>caf\xe9"), ("application/pdf", _PDF)):
        parse(PageBody("http://warm.up/", kind, data))
    allows("User-agent: *\nDisallow: /x*", "a", "http://warm.up/")
    best_passages("Some words.", "words", 1)


def _answer(job: bytes, base: int) -> bytes:
    """Run a job in a fork and return its reply."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        for descriptor in (readable, 0, 1):
            os.close(descriptor)
        _work(job, base, writable)
    os.close(writable)
    with open(readable, "rb") as pipe:
        answer = pipe.read(MAX_REPLY + 1)
    if len(answer) > MAX_REPLY:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status == 0 and len(answer) <= MAX_REPLY:
        return answer
    return msgspec.json.encode(ParserReply(failed=_failure_reason(status, len(answer) > MAX_REPLY)))


def _work(job: bytes, base: int, writable: int) -> None:
    """Run the job in the fork and exit."""
    try:
        parser_job = msgspec.msgpack.decode(job, type=ParserJob)
        _limit(parser_job, base)
        answer = msgspec.json.encode(_result(parser_job))
        with open(writable, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    except MemoryError:
        os._exit(2)
    except BaseException:  # boundary: any error of a parser ends this fork
        os._exit(3)


def _result(job: ParserJob) -> ParserReply:
    try:
        if job.robots is not None:
            return ParserReply(allowed=allows(job.robots.text, job.robots.agent, job.robots.url))
        if job.question is not None:
            question = job.question
            return ParserReply(passages=best_passages(question.text, question.query, question.count))
        assert job.body is not None
        return ParserReply(parsed=parse(job.body))
    except UnparseablePage as error:
        return ParserReply(failed=str(error))
    except RecursionError:
        return ParserReply(failed="it is nested too deeply")


def _limit(job: ParserJob, base: int) -> None:
    seconds = job.seconds
    set_limit(resource.RLIMIT_AS, base + job.memory_bytes)
    set_limit(resource.RLIMIT_CPU, int(seconds) + 1)
    set_limit(resource.RLIMIT_FSIZE, 0)
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_NOFILE, 64)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    restrict_calls()


def _virtual_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _failure_reason(status: int, too_much: bool) -> str:
    if too_much:
        return "it has too much text"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL):
        return "parsing it took too long"
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 2:
        return "parsing it took too much memory"
    return "the parser broke on it"


if __name__ == "__main__":
    serve()
