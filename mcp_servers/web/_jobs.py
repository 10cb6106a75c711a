"""What goes to the process that parses, and what comes back."""

from typing import Final

from msgspec import Struct

from mcp_servers.web._results import PagePassage

__all__ = [
    "VERSION",
    "PageBody",
    "ParsedPage",
    "ParserJob",
    "ParserReply",
    "PassageQuery",
    "RobotsQuery",
    "UnparseablePage",
]

VERSION: Final = 1
"""Of what comes out; what was kept of another one is not used."""


class PageBody(Struct, frozen=True):
    """What a site sent."""

    url: str
    """Where it was found."""
    content_type: str
    """What the site says that it is."""
    data: bytes
    """Its bytes."""
    pdf_pages: int = 300
    """How many pages of a PDF are read."""


class ParsedPage(Struct, frozen=True):
    """A page as text."""

    title: str
    """Its title."""
    text: str
    """Its text as Markdown."""
    links: list[tuple[str, str]] = []
    """What its links are called, and where they lead."""
    note: str | None = None
    """What is missing, if something is."""


class UnparseablePage(Exception):
    """It can't be turned into text; the message says why."""


class RobotsQuery(Struct, frozen=True):
    """A question to a robots.txt."""

    text: str
    """The file."""
    agent: str
    """Who asks."""
    url: str
    """For what."""


class PassageQuery(Struct, frozen=True):
    """A question to a page."""

    text: str
    """The page."""
    query: str
    """What to look for."""
    count: int
    """How many passages to find."""


class ParserJob(Struct, frozen=True):
    """One thing to do."""

    seconds: float
    """Time for it."""
    memory_bytes: int
    """Memory for it."""
    body: PageBody | None = None
    """A page to parse."""
    robots: RobotsQuery | None = None
    """Or a question to a robots.txt."""
    question: PassageQuery | None = None
    """Or a question to a page."""


class ParserReply(Struct, frozen=True):
    """What came of it."""

    parsed: ParsedPage | None = None
    """The page."""
    passages: list[PagePassage] = []
    """The passages, best first."""
    allowed: bool = True
    """What the robots.txt says."""
    failed: str | None = None
    """Why nothing came of it."""
