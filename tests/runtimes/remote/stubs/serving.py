"""Start of a stub: an HTTP server on a free port of the loopback interface, which prints the port."""

import socket
import sys

import uvicorn
from starlette.applications import Starlette


class _Announcing(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        sys.stdout.write(f"{self.servers[0].sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()


def serve(app: Starlette) -> None:
    """Serve until the process is told to end."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="error", lifespan="on", ws="none", loop="asyncio"
    )
    _Announcing(config).run()
