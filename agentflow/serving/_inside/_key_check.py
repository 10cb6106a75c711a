"""Check of the key for every path of a vLLM whose weights can change. It runs inside vLLM's process, so it imports nothing of ours."""

import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_OPEN = ("/health",)


class KeyCheck:
    """ASGI middleware that refuses requests without the key; only `/health` needs none."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._wanted = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            authorization = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(authorization, self._wanted):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})
                return
        await self._app(scope, receive, send)
