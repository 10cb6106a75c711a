"""Access to a server over HTTP: its options, tokens, hosts, origins and rate limits."""

import fcntl
import hashlib
import hmac
import mmap
import os
import struct
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from agentflow._loopback import is_loopback
from agentflow.errors import ConfigurationError
from mcp_servers.core._session_tools import SESSIONS
from mcp_servers.core._shares import ClientQuota
from mcp_servers.serving._client_profiles import ClientProfile
from runtimes import MIB

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Host names and addresses of the loopback interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Address, clients and limits of an HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 18890
    """Port to listen on; 0: any free port."""
    name: str | None = None
    """Name of the server among several, which requests are routed by."""
    tokens: Mapping[str, str] | None = None
    """Bearer token of each principal; `None`: no token needed, which only a loopback address allows."""
    scopes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])
    """Backends of each principal that may not use all."""
    quotas: Mapping[str, ClientQuota] = field(default_factory=dict[str, ClientQuota])
    """Principals among whom the server is divided, each with its quota; by default those that have a token."""
    allowed_origins: tuple[str, ...] = ()
    """Further origins of web pages that may use the server."""
    allowed_hosts: tuple[str, ...] = ()
    """Further `host:port` names that the server answers to."""
    profiles: Mapping[str, ClientProfile] = field(default_factory=dict[str, ClientProfile])
    """Forms of results by client name."""
    requests_per_minute: float | None = None
    """Maximum requests per minute of one principal."""
    rate_file: Path | None = None
    """File in which servers on one machine share that limit."""
    body_bytes: int = 16 * MIB
    """Maximum request size."""
    max_concurrent_calls: int = 256
    """Maximum concurrent calls per backend; further calls wait, and principals are served in turn."""
    max_waiting_calls: int = 4096
    """Maximum waiting calls per backend; one more is refused as `busy`."""
    grace_seconds: float = 10.0
    """Time for running calls to finish when the server stops."""

    def clients(self) -> Mapping[str, ClientQuota]:
        """Return the principals among whom the server is divided."""
        return self.quotas or dict.fromkeys(self.tokens or (), ClientQuota())

    def check(self) -> None:
        """Check that only authorized clients can reach the server.

        :raises ConfigurationError: if other machines could use it without a token.
        """
        if self.tokens is None and not is_loopback(self.host):
            message = f"host {self.host!r} is reachable from other machines: set a token, or bind 127.0.0.1"
            raise ConfigurationError(message)


class BearerTokens:
    """Maps bearer tokens to principals, in constant time for wrong tokens."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._digests = [(principal, _digest(token.encode())) for principal, token in tokens.items()]

    def principal(self, authorization: bytes | None) -> str | None:
        """Return the principal of an `Authorization` header, or `None`."""
        if authorization is None:
            return None
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        sent = _digest(token.strip())
        owner: str | None = None
        for principal, digest in self._digests:
            if hmac.compare_digest(sent, digest):
                owner = principal
        return owner


class Scopes:
    """Backends that each principal may use. A principal that is not listed may use all."""

    def __init__(self, backends: Mapping[str, Iterable[str]] | None = None) -> None:
        self._backends = {principal: frozenset(names) for principal, names in (backends or {}).items()}

    def __bool__(self) -> bool:
        return bool(self._backends)

    def allow(self, principal: str, backend: str) -> bool:
        """Return true if the principal may use the backend; every principal may use the session tools."""
        allowed = self._backends.get(principal)
        return allowed is None or backend in allowed or backend == SESSIONS


class Origins:
    """Checks of `Host` and `Origin` against DNS rebinding and cross-site requests from a browser."""

    def __init__(self, host: str, port: int, origins: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        """Allow the server's own names and the given ones.

        A server bound to all addresses does not know its names: it accepts every host unless `hosts` are given.
        """
        names = dict.fromkeys([host, *(LOOPBACK if is_loopback(host) else ())])
        own_names = [f"[{name}]" if ":" in name else name for name in names]
        extra_names = [name.lower() for name in hosts]
        self._any_host = host in ("0.0.0.0", "::") and not extra_names
        self._hosts = frozenset(
            [*(f"{name}:{port}" for name in own_names), *(own_names if port == 80 else ()), *extra_names]
        )
        self._origins = frozenset([*(f"http://{name}:{port}" for name in own_names), *origins])

    def allow_host(self, host: bytes | None) -> bool:
        """Return true if the host is one of this server's names."""
        return self._any_host or (host is not None and host.decode("latin-1").lower() in self._hosts)

    def allow_origin(self, origin: bytes | None) -> bool:
        """Return true if the origin may send requests, or if there is none because the client is not a web page."""
        return origin is None or origin.decode("latin-1") in self._origins


class RateLimit:
    """Limit per principal: `per_minute` requests on average, with bursts of the same size."""

    def __init__(
        self,
        per_minute: float,
        principals: Iterable[str] = (),
        *,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param principals: all principals, for a shared file.
        :param file: file in which the servers of a machine share the limit.
        :raises ConfigurationError: if it can't be used.
        """
        self._interval = 60 / per_minute
        self._clock = clock
        self._shared = None if file is None else _SharedTimes(file, sorted(principals))
        # When the requests admitted so far would end, if they had come at the rate.
        self._times: MutableMapping[str, float] = {} if self._shared is None else self._shared

    def wait(self, principal: str) -> float:
        """Return the seconds to wait before the next request; 0 means that the request is admitted and counted."""
        with nullcontext() if self._shared is None else self._shared.locked():
            now = self._clock()
            burst = max(60.0, self._interval)
            then = max(now, self._times.get(principal, 0.0))
            if then > now + burst + self._interval:
                then = now  # a file from before the machine started
            excess = then + self._interval - now - burst
            # The sums of many intervals are not exact.
            if excess > self._interval * 1e-6:
                return excess
            self._times[principal] = then + self._interval
            return 0.0


_TIME = struct.Struct("d")


class _SharedTimes(MutableMapping[str, float]):
    """A time for each principal, in a file that several processes map into their memory."""

    def __init__(self, path: Path, principals: Sequence[str]) -> None:
        self._offsets = {principal: index * _TIME.size for index, principal in enumerate(principals)}
        size = max(1, len(principals)) * _TIME.size
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            weakref.finalize(self, os.close, self._file)
            if os.fstat(self._file).st_size < size:
                os.truncate(self._file, size)
            self._memory = mmap.mmap(self._file, size)
        except OSError as error:
            raise ConfigurationError(f"rate_file: {path}: {error.strerror}") from None

    @contextmanager
    def locked(self) -> Generator[None]:
        """Exclude the other processes."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def __getitem__(self, principal: str) -> float:
        (value,) = _TIME.unpack_from(self._memory, self._offsets[principal])
        return float(value)

    def __setitem__(self, principal: str, value: float) -> None:
        _TIME.pack_into(self._memory, self._offsets[principal], value)

    def __delitem__(self, principal: str) -> None:
        self[principal] = 0.0

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


def token_path(port: int, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the token file of this user's server on that port."""
    state = environment.get("XDG_STATE_HOME") or Path(
        environment.get("HOME") or Path.home(), ".local", "state"
    )
    return Path(state, "agentflow", f"token-{port}")


@contextmanager
def token_file(path: Path, token: str) -> Generator[None]:
    """Keep a generated token at `path` while the server runs.

    See docs/mcp-servers.md.

    :raises ConfigurationError: if the file cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Created unreadable for others and then moved, so that there is no moment at which others could read it.
        descriptor, draft = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot write the token ({error.strerror}): pass --token") from None
    try:
        yield
    finally:
        if path.exists() and path.read_text(encoding="utf-8").strip() == token:
            path.unlink()


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
