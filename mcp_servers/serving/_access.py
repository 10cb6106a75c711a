"""Access to a server over HTTP: its options, tokens, hosts, origins and rate limits."""

import hashlib
import hmac
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentflow.errors import ConfigurationError
from mcp_servers.core._session_tools import SESSIONS
from runtimes import MIB

__all__ = [
    "HttpOptions",
    "Origins",
    "RateLimit",
    "Scopes",
    "Tokens",
    "is_loopback",
    "made_token",
    "token_path",
]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine for itself."""


def is_loopback(host: str) -> bool:
    """Whether a server bound to it can only be reached from this machine."""
    return host in LOOPBACK or host.startswith("127.")


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


class Tokens:
    """Finds the principal of a bearer token. Takes equally long for every token that is wrong."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        """Take the token of each principal."""
        self._digests = [(principal, _digest(token.encode())) for principal, token in tokens.items()]

    def principal(self, authorization: bytes | None) -> str | None:
        """Whose `Authorization` header this is; `None`: nobody's."""
        if authorization is None:
            return None
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        given = _digest(token.strip())
        found: str | None = None
        for principal, digest in self._digests:
            if hmac.compare_digest(given, digest):
                found = principal
        return found


class Scopes:
    """Which backends each principal may use. Who is not named may use all."""

    def __init__(self, backends: Mapping[str, Iterable[str]] | None = None) -> None:
        """Take the backends of each principal that may not use all."""
        self._backends = {principal: frozenset(names) for principal, names in (backends or {}).items()}

    def __bool__(self) -> bool:
        return bool(self._backends)

    def allow(self, principal: str, backend: str) -> bool:
        """Whether it may use that backend; that of the sessions everybody may."""
        own = self._backends.get(principal)
        return own is None or backend in own or backend == SESSIONS


class Origins:
    """Checks `Host` and `Origin`, so that a web page can't reach the server through its visitor's browser."""

    def __init__(self, host: str, port: int, origins: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        """Allow the server's own names, and those given.

        A server bound to all addresses can't know its names: it takes every host, unless some are given.
        """
        names = dict.fromkeys([host, *(LOOPBACK if is_loopback(host) else ())])
        own = [f"[{name}]" if ":" in name else name for name in names]
        given = [name.lower() for name in hosts]
        self._any_host = host in ("0.0.0.0", "::") and not given
        self._hosts = frozenset([*(f"{name}:{port}" for name in own), *(own if port == 80 else ()), *given])
        self._origins = frozenset([*(f"http://{name}:{port}" for name in own), *origins])

    def allow_host(self, host: bytes | None) -> bool:
        """Whether a request for this host is for us."""
        return self._any_host or (host is not None and host.decode("latin-1").lower() in self._hosts)

    def allow_origin(self, origin: bytes | None) -> bool:
        """Whether a page from there may ask; no origin: it is no page."""
        return origin is None or origin.decode("latin-1") in self._origins


class RateLimit:
    """So many requests a minute for each principal, a minute's worth at once."""

    def __init__(self, per_minute: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow `per_minute` requests on average and at once."""
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, principal: str) -> float:
        """Seconds to wait before the request may be made; 0: it is made now, and counted."""
        now = self._clock()
        left, then = self._buckets.get(principal, (self._per_minute, now))
        left = min(self._per_minute, left + (now - then) * self._per_minute / 60)
        if left < 1:
            self._buckets[principal] = (left, now)
            return (1 - left) * 60 / self._per_minute
        self._buckets[principal] = (left - 1, now)
        return 0.0


def token_path(port: int, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the token of this user's server on that port lies."""
    state = environment.get("XDG_STATE_HOME") or Path(
        environment.get("HOME") or Path.home(), ".local", "state"
    )
    return Path(state, "agentflow", f"token-{port}")


@contextmanager
def made_token(path: Path) -> Generator[str]:
    """A new token, kept at `path` while the server runs.

    :raises ConfigurationError: if it can't be written.
    """
    token = secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made readable for nobody else from the start, then moved: there is no moment at which others could read it.
        descriptor, draft = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: the token can't be written ({error.strerror}): pass --token"
        ) from None
    try:
        yield token
    finally:
        if path.exists() and path.read_text(encoding="utf-8").strip() == token:
            path.unlink()


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
