"""A process with a small server of each kind: `python -m tests.agentflow.http_server._served KIND LIMIT HEADER_SECONDS`."""

import signal
import socket
import sys

import anyio
from aiohttp import web
from starlette.types import Receive, Scope, Send

from agentflow.http_server import AsgiServer, _servers, serving

KINDS = ("asgi", "aiohttp")


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def _handle(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _say(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


async def _serve(kind: str) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        if kind == "aiohttp":
            app = web.Application()
            app.router.add_get("/", _handle)
            async with serving(app) as url:
                _say(int(url.rpartition(":")[2]))
                async for _ in signals:
                    return
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = AsgiServer(_answer, name=kind)
            async with anyio.create_task_group() as group:
                group.start_soon(server.serve, [listener])
                await server.begun.wait()
                _say(listener.getsockname()[1])
                async for _ in signals:
                    server.should_exit = True
                    return


if __name__ == "__main__":
    kind, limit, header_seconds = sys.argv[1:]
    most = _servers.max_connections()
    _servers.max_connections = lambda: min(most, int(limit))
    _servers.HEADER_SECONDS = _servers.IDLE_SECONDS = float(header_seconds)
    _servers.CHECK_SECONDS = min(_servers.CHECK_SECONDS, float(header_seconds) / 4)
    anyio.run(_serve, kind)
