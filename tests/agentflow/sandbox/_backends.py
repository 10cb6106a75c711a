"""Small real backends that need no isolation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import anyio
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import Backend, Image, ResourceLink, Session, tool
from mcp_servers import CallContext

PIXEL = b"\x89PNG\r\n\x1a\n not really"


@dataclass
class Tally:
    """Count of a session."""

    value: int


class CounterBackend(Backend):
    """Counts, per session."""

    name = "counter"
    description = "Counts."

    def __init__(self) -> None:
        self.life: list[str] = []
        """Events in order."""
        self.entered = anyio.Event()
        """Set when `stay` runs."""
        self.left = anyio.Event()
        """Set when `stay` was cancelled."""

    async def warmup(self) -> None:
        """Remember it."""
        self.life.append("warmup")

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Begin with the setting `start`."""
        start = settings.get("start", 0)
        assert isinstance(start, int)
        self.life.append(f"initialize {start}")
        session.put(Tally(start))

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the value."""
        self.life.append("fork")
        forked.put(Tally(session.get(Tally).value))

    async def cleanup(self, session: Session) -> None:
        """Remember it."""
        self.life.append("cleanup")

    async def shutdown(self) -> None:
        """Remember it."""
        self.life.append("shutdown")

    @tool(destructive=False)
    async def up(self, session: Session, by: Annotated[int, Field(description="How much.", ge=0)] = 1) -> int:
        """Count up. Use it to count."""
        tally = session.get(Tally)
        tally.value += by
        return tally.value

    @tool(read_only=True)
    async def stay(self, session: Session, context: CallContext) -> int:
        """Report progress and stay until cancelled. Use it to wait."""
        context.progress(1, 2, "staying")
        self.entered.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.left.set()
        raise AssertionError("unreachable")


class EchoBackend(Backend):
    """Says things back; holds nothing."""

    name = "echo"
    description = "Says things back."

    def __init__(self) -> None:
        self.calls = 0
        """Number of runs of `say`."""

    @tool(read_only=True)
    async def say(self, text: Annotated[str, Field(description="What.")]) -> dict[str, object]:
        """Say it back. Use it to hear yourself."""
        self.calls += 1
        return {"text": text}

    @tool(read_only=True)
    async def nothing(self) -> dict[str, object]:
        """Do nothing. Use it to measure."""
        return {}

    @tool(read_only=True)
    async def show(self, context: CallContext) -> dict[str, object]:
        """Show a picture. Use it to look."""
        context.show(Image(PIXEL))
        return {}

    @tool()
    async def keep(
        self, session: Session, context: CallContext, text: Annotated[str, Field(description="What.")]
    ) -> dict[str, object]:
        """Keep the text whole. Use it for long ones."""
        link: ResourceLink = session.keep("text.txt", "text/plain", text.encode())
        context.show(link)
        return {"characters": len(text)}

    @tool()
    async def refuse(self, kind: Annotated[str, Field(description="The kind.")]) -> dict[str, object]:
        """Fail in that way. Use it to fail."""
        raise ToolFailure(ErrorKind(kind), f"refused as {kind}.", {"partial": "output"})

    @tool()
    async def crash(self) -> dict[str, object]:
        """Raise something unexpected. Use it to crash."""
        raise LookupError("nobody expected this")
