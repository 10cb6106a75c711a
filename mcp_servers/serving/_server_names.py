"""Names of servers in the handles of their sessions: the one rule by which requests are routed.

A named server appends its name to each handle and to the id of each connection of the handshake era. A router looks at the
headers `Mcp-Param-Session` and `Mcp-Session-Id`, in this order, and at nothing else. A worker's name is a number, after the
name of its server if that has one: `a`, `a-2`, `2`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcp_servers.core._sessions import new_handle

NAME_PATTERN = r"(?:[a-z][a-z0-9]{0,31}(?:-[0-9]{1,3})?|[0-9]{1,3})"
"""Regular expression of the name of a server or worker."""

SESSION_HEADER = b"mcp-param-session"
"""Header with the session of a call."""
CONNECTION_HEADER = b"mcp-session-id"
"""Header with the id of a handshake-era connection."""
UNIX = "unix:"
"""Prefix of an address that is the path of a Unix socket."""

_NAME = rf"(?P<name>{NAME_PATTERN})\Z"
_HANDLE = re.compile(r"session-[0-9a-f]{24}-" + _NAME)
_CONNECTION = re.compile(r"(?P<id>[0-9a-f]{32})-" + _NAME)


def worker_name(server: str | None, number: int) -> str:
    """Return the name of a worker.

    :param server: name of the whole server, if it has one.
    """
    return f"{number}" if server is None else f"{server}-{number}"


def handles_of(name: str) -> Callable[[], str]:
    """Return a generator of session handles that end in the name of the server."""
    return lambda: f"{new_handle()}-{name}"


def server_of(handle: object) -> str | None:
    """Return the name of the server in a session handle."""
    match = _HANDLE.match(handle) if isinstance(handle, str) else None
    return None if match is None else match["name"]


def split_connection(connection: str) -> tuple[str, str | None]:
    """Split the id of a handshake-era connection into the SDK's id and the name of the server."""
    match = _CONNECTION.match(connection)
    return (connection, None) if match is None else (match["id"], match["name"])


def named_server(fields: Mapping[bytes, bytes]) -> str | None:
    """Return the name of the server that a request must reach: the last part of a session handle, or of a connection id."""
    if session := fields.get(SESSION_HEADER):
        return session.split(b"-", 2)[-1].decode("latin-1")
    if connection := fields.get(CONNECTION_HEADER):
        return connection.split(b"-", 1)[-1].decode("latin-1")
    return None


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Address of a server, as its peers reach it."""

    url: str
    """URL without a path; for a Unix socket that of the server's clients."""
    socket: str | None = None
    """Path of the Unix socket, if it has one."""
