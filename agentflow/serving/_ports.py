"""A port for a server that comes and goes."""

import socket
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["kept_port"]


@contextmanager
def kept_port(host: str) -> Generator[int]:
    """A free port that nobody else gets while a block lasts, whether somebody listens there just then or not.

    Whoever is to listen there sets `SO_REUSEADDR`, as servers do. It is never given to those who take any that is free.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, 0))
        yield kept.getsockname()[1]
