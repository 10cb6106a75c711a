"""Settings of the browser backend."""

from typing import Literal

from pydantic import Field

from agentflow.settings import Section
from runtimes.egress import AddressPolicy

MIB = 1024 * 1024

Cap = Literal["core", "vision", "pdf"]

SERVER_ONLY = frozenset({"allow_private", "allowed_hosts", "caps", "executable", "memory_bytes"})
"""Settings that a client cannot override for its session."""


class BrowserSettings(Section):
    """Settings of the browser backend."""

    caps: tuple[Cap, ...] = ("core", "vision", "pdf")
    """Enabled groups of tools: `core`; `vision`, the mouse by pixel coordinates; `pdf`."""
    executable: str | None = None
    """Chromium executable; by default the first one found on the system."""
    memory_bytes: int | None = Field(default=None, ge=512 * MIB)
    """Memory limit of all pages together, or of each process where cgroups are not writable; by default half of the machine's."""
    allow_private: bool = False
    """Allow pages of private networks and of this machine; link-local addresses (cloud metadata) stay blocked."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that may have any address: a name, `*.name` or an address, each optionally with `:port`."""
    viewport: tuple[int, int] = (1280, 720)
    """Initial width and height of the page in pixels."""
    locale: str = "en-US"
    """Language requested from pages."""
    timezone: str = "UTC"
    """Time zone reported to pages."""
    user_agent: str | None = None
    """User agent string; by default Chromium's own."""
    action_seconds: float = Field(default=5, gt=0)
    """Time an action waits for its element to become ready."""
    navigation_seconds: float = Field(default=30, gt=0)
    """Time a page may take to load."""
    settle_seconds: float = Field(default=5, ge=0)
    """Time to wait, after an action, for the requests that it caused."""
    script_seconds: float = Field(default=30, gt=0)
    """Time limit of JavaScript given to `browser_evaluate`."""
    snapshot_characters: int = Field(default=60_000, ge=200)
    """Longest snapshot in a result; a longer one is cut in the middle and kept in full as a resource."""
    tabs: int = Field(default=16, ge=1)
    """Most open tabs of a session; an additional one is closed at once."""
    records: int = Field(default=1_000, ge=1)
    """Most console messages, and most requests, kept for each tab; the oldest are dropped."""
    file_bytes: int = Field(default=64 * MIB, ge=1)
    """Largest file to download, upload or save."""

    @property
    def policy(self) -> AddressPolicy:
        """Addresses that pages may connect to."""
        return AddressPolicy(self.allow_private, tuple(host.lower() for host in self.allowed_hosts))
