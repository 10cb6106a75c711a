"""Start of a stub: an HTTP server on a free port of the loopback interface, which prints the port."""

import sys
from typing import Any

import uvicorn


class _Announcing(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        sys.stdout.write(f"{self.servers[0].sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()


def serve(app: Any) -> None:
    """Serve until the process is told to end."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="on", ws="none", loop="asyncio")
    _Announcing(config).run()
