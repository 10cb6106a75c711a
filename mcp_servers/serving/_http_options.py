"""How a server is reached over HTTP, and by whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentflow.errors import ConfigurationError
from mcp_servers.core._limits import MIB
from mcp_servers.serving._access import is_loopback

__all__ = ["HttpOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How a server is reached, and by whom."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 18890
    """The port; 0: any free one."""
    tokens: Mapping[str, str] | None = None
    """The token of each principal; `None`: everybody may come in, which only a loopback address allows."""
    scopes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])
    """The backends of each principal that may not use all."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use it, beside its own."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names that it answers to (`host:port`)."""
    requests_per_minute: float | None = None
    """Requests of one principal."""
    body_bytes: int = 16 * MIB
    """The largest request."""
    calls_at_once: int = 256
    """Calls of one backend that run at once; others wait, in fair turns of the principals."""
    calls_waiting: int = 4096
    """Calls of one backend that wait; one more is refused as `busy`."""
    grace_seconds: float = 10.0
    """Time for calls in progress to end when the server stops."""

    def check(self) -> None:
        """:raises ConfigurationError: if it would let strangers in."""
        if self.tokens is None and not is_loopback(self.host):
            message = f"host {self.host!r} can be reached by others: give a token, or bind 127.0.0.1"
            raise ConfigurationError(message)
