"""Ports reserved for servers that restart."""

import socket
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def kept_port(host: str) -> Generator[int]:
    """Reserve a free port for the length of a block, even while its server is down.

    The server must set `SO_REUSEADDR`, as servers do. The port is never given to programs that ask for any free one.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, 0))
        yield kept.getsockname()[1]
