"""Settings of the browser backend."""

from typing import Literal

from pydantic import Field

from agentflow.settings import Section
from mcp_servers.core._addresses import AddressPolicy

__all__ = ["SERVERS_OWN", "BrowserSettings", "Cap"]

MIB = 1024 * 1024

Cap = Literal["core", "vision", "pdf"]

SERVERS_OWN = frozenset({"allow_private", "allowed_hosts", "caps", "executable", "memory_bytes"})
"""Settings that no client can give for its session."""


class BrowserSettings(Section):
    """Settings of the browser backend."""

    caps: tuple[Cap, ...] = ("core", "vision", "pdf")
    """Groups of tools that may be used: `core`; `vision`, the mouse by pixels; `pdf`."""
    executable: str | None = None
    """The Chromium to run; by default the first one of the system."""
    memory_bytes: int | None = Field(default=None, ge=512 * MIB)
    """Memory for all pages together; where cgroups can't be made, for each. By default half of the machine's."""
    allow_private: bool = False
    """Pages of private networks and of this machine may be opened; link-local ones (cloud metadata) still not."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that may have any address: a name, `*.name` or an address, each with `:port` for that port alone."""
    viewport: tuple[int, int] = (1280, 720)
    """Width and height of the page in pixels, until `browser_resize`."""
    locale: str = "en-US"
    """The language that pages are asked for."""
    timezone: str = "UTC"
    """The time zone that pages see."""
    user_agent: str | None = None
    """What the browser calls itself; by default Chromium's own name."""
    action_seconds: float = Field(default=5, gt=0)
    """How long an action waits for its element to be there and ready."""
    navigation_seconds: float = Field(default=30, gt=0)
    """How long a page may take to load."""
    settle_seconds: float = Field(default=5, ge=0)
    """How long, after an action, is waited for what it made the page load."""
    script_seconds: float = Field(default=30, gt=0)
    """How long JavaScript given to `browser_evaluate` may run; then it is stopped."""
    snapshot_characters: int = Field(default=60_000, ge=200)
    """How much of a snapshot a result shows; what is longer is cut in the middle and kept whole as a resource."""
    tabs: int = Field(default=16, ge=1)
    """How many tabs a session may have open; one more is closed at once."""
    records: int = Field(default=1_000, ge=1)
    """How many console messages, and how many requests, are remembered of each tab; the oldest make room."""
    file_bytes: int = Field(default=64 * MIB, ge=1)
    """The largest file that is downloaded, uploaded or saved."""

    @property
    def policy(self) -> AddressPolicy:
        """Which addresses pages may connect to."""
        return AddressPolicy(self.allow_private, tuple(host.lower() for host in self.allowed_hosts))
