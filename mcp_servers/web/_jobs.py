"""Jobs and replies of the parser process."""

from typing import Final

from msgspec import Struct

from mcp_servers.web._results import PagePassage

VERSION: Final = 1
"""Version of the output; cached pages of another version are not used."""
MAX_REPLY: Final = 32 * 1024 * 1024
"""Size of the largest reply in bytes."""


class PageBody(Struct, frozen=True):
    """Response body of a site."""

    url: str
    """Final address of the page."""
    content_type: str
    data: bytes
    pdf_pages: int = 300
    """Most pages of a PDF to read."""


class ParsedPage(Struct, frozen=True):
    """A page as text."""

    title: str
    text: str
    """Text as Markdown."""
    links: list[tuple[str, str]] = []
    """Text and address of each link."""
    note: str | None = None
    """Note on omitted content, if any."""


class UnparseablePage(Exception):
    """A page has no readable text; the message gives the reason."""


class RobotsQuery(Struct, frozen=True):
    """Request to check an address against a robots.txt."""

    text: str
    """Content of the file."""
    agent: str
    url: str


class PassageQuery(Struct, frozen=True):
    """Request for the passages of a page that match a query best."""

    text: str
    query: str
    count: int


class ParserJob(Struct, frozen=True):
    """Job of a parser process; exactly one of its tasks is set."""

    seconds: float
    memory_bytes: int
    body: PageBody | None = None
    """Page to parse."""
    robots: RobotsQuery | None = None
    """Address to check against a robots.txt."""
    question: PassageQuery | None = None
    """Passages to find in a text."""


class ParserReply(Struct, frozen=True):
    """Reply of a parser process."""

    parsed: ParsedPage | None = None
    passages: list[PagePassage] = []
    """Passages, best first."""
    allowed: bool = True
    """The robots.txt allows the address."""
    failed: str | None = None
    """Reason of a failure."""
