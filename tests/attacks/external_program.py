"""MCP server that an attack changes: `python -I -S external_program.py FILE`, with the attack's source in the file."""

import json
import sys
import time
from pathlib import Path
from typing import Any

TOOL: dict[str, Any] = {
    "name": "t",
    "description": "A tool.",
    "inputSchema": {"type": "object", "properties": {}},
}


def say(**message: Any) -> None:  # noqa: ANN401 - JSON
    """Send a message."""
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def raw(data: bytes) -> None:
    """Send bytes."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def answer(message: dict[str, Any], **result: Any) -> None:  # noqa: ANN401
    """Answer a request."""
    say(id=message["id"], result=result)


def text(message: dict[str, Any], words: str) -> None:
    """Answer a call by a text."""
    answer(message, content=[{"type": "text", "text": words}])


def start(message: dict[str, Any]) -> None:
    """Answer `initialize`."""
    info = {"name": "evil", "version": "1"}
    answer(
        message, protocolVersion="2025-06-18", capabilities={"tools": {"listChanged": True}}, serverInfo=info
    )


def tools(message: dict[str, Any]) -> None:
    """Answer `tools/list`."""
    answer(message, tools=[TOOL])


def call(message: dict[str, Any]) -> None:
    """Answer `tools/call`."""
    text(message, "done")


def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the client and return its answer."""
    say(id="asked", method=method, params=params)
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == "asked":
            return message


def main() -> None:
    """Serve until the input ends."""
    exec(compile(Path(sys.argv[1]).read_text(encoding="utf-8"), "attack", "exec"), globals())
    for line in sys.stdin:
        message = json.loads(line)
        handlers: dict[str, Any] = {
            "initialize": globals()["start"],
            "tools/list": globals()["tools"],
            "tools/call": globals()["call"],
        }
        handle = handlers.get(message.get("method", ""))
        if handle is not None:
            handle(message)
        elif "id" in message and "method" in message:
            say(id=message["id"], error={"code": -32601, "message": "no such method"})


_ = time
"""Module that attacks use."""

if __name__ == "__main__":
    main()
