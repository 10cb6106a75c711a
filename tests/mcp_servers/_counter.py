"""A backend that needs no runtime: a counter for each session, and tools with every kind of behaviour."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import anyio
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers import Backend, CallContext, Image, Output, Session, TextContent, Tool, tool

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c63f8cfc0f01f00050001ff5606a0c60000000049454e44ae426082"
)
"""A one-pixel image."""


def noise(size: int) -> bytes:
    """Return that many bytes with every value among them."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


class Count(Output):
    """Value of a counter."""

    count: int
    """The value."""


class State:
    """A session's counter."""

    def __init__(self, count: int) -> None:
        self.count = count


class Counter(Backend):
    """A counting backend that records the lifecycle of its sessions and calls."""

    name = "counter"
    description = "Counts."

    def __init__(self) -> None:
        self.events: list[str] = []
        self.entered = anyio.Event()
        self.release = anyio.Event()
        self.stopped = anyio.Event()

    async def warmup(self) -> None:
        self.events.append("warmup")

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        start = settings.get("start", 0)
        assert isinstance(start, int)
        session.put(State(start))
        self.events.append("initialize")

    async def fork(self, session: Session, forked: Session) -> None:
        forked.put(State(session.get(State).count))
        self.events.append("fork")

    async def cleanup(self, session: Session) -> None:
        self.events.append("cleanup")

    async def shutdown(self) -> None:
        self.events.append("shutdown")

    @tool(destructive=False)
    async def add(
        self,
        session: Session,
        amount: Annotated[int, Field(description="How much to add.", ge=0)] = 1,
    ) -> Count:
        """Add to the session's counter."""
        state = session.get(State)
        state.count += amount
        return Count(count=state.count)

    @tool(read_only=True)
    async def echo(self, text: Annotated[str, Field(description="What to give back.")]) -> dict[str, object]:
        """Return the text."""
        return {"text": text}

    @tool(read_only=True)
    async def length(self, text: Annotated[str, Field(description="What to measure.")]) -> int:
        """Return the length of the text."""
        return len(text)

    @tool(destructive=False)
    async def wait(self, session: Session) -> Count:
        """Wait until released."""
        self.entered.set()
        try:
            await self.release.wait()
        except BaseException:
            self.events.append("cancelled")
            self.stopped.set()
            raise
        return Count(count=session.get(State).count)

    @tool(destructive=False, interjects=True)
    async def let_go(self, session: Session) -> None:
        """Release the waiting calls."""
        self.release.set()

    @tool(read_only=True)
    async def steps(
        self, context: CallContext, number: Annotated[int, Field(description="How many steps.")] = 3
    ) -> int:
        """Report progress."""
        for step in range(number):
            context.progress(step + 1, number, f"step {step + 1}")
        return number

    @tool(read_only=True)
    async def picture(self, context: CallContext) -> dict[str, object]:
        """Show an image."""
        context.show(Image(PIXEL))
        return {}

    @tool(read_only=True)
    async def large(
        self,
        context: CallContext,
        image_bytes: Annotated[int, Field(description="Size of the image.")] = 0,
        text_length: Annotated[int, Field(description="Length of the text.")] = 0,
        steps: Annotated[int, Field(description="How many progress reports.")] = 0,
    ) -> dict[str, object]:
        """Return a large image or text, after reports of progress."""
        for step in range(steps):
            context.progress(step + 1, steps)
        if image_bytes:
            context.show(Image(noise(image_bytes)))
        return {"text": "x" * text_length}

    @tool(destructive=False)
    async def story(self, session: Session, context: CallContext) -> dict[str, object]:
        """Keep a long text and link to it."""
        context.show(session.keep("story.txt", "text/plain", b"once upon a time"))
        context.show(session.keep("blob.bin", "application/octet-stream", b"\x00\xff"))
        return {"cut": "once …"}

    @tool(read_only=True)
    async def fail(self, context: CallContext) -> None:
        """Fail with a typed failure and partial data."""
        context.show(TextContent("the part that worked"))
        raise ToolFailure(ErrorKind.DENIED, "not today", {"stdout": "half"})

    @tool(read_only=True)
    async def crash(self) -> None:
        """Fail with an unexpected exception."""
        raise ZeroDivisionError("of all things")

    @tool(read_only=True)
    async def broken_text(self) -> dict[str, object]:
        """Return data that JSON cannot represent."""
        return {"text": "lone \ud800", "number": float("nan"), "list": ["\udfff"]}


class Blocker(Backend):
    """Blocks the event loop, which backends must not do."""

    name = "blocker"
    description = "Blocks."

    @tool(destructive=False)
    async def freeze(
        self, session: Session, path: Annotated[str, Field(description="Where to wait for a writer.")]
    ) -> None:
        """Block the whole thread until a pipe is written to."""
        with open(path, "rb") as pipe:  # noqa: ASYNC230  # that is the point
            pipe.read()


class Noisy(Backend):
    """Prints to standard output, which carries the protocol."""

    name = "noisy"
    description = "Prints."

    @tool(read_only=True)
    async def shout(self) -> dict[str, object]:
        """Print, let a child print, and read standard input."""
        print("noise")  # noqa: T201  # that is the point
        child = await anyio.run_process(["sh", "-c", "echo noise; cat"], stdin=None, stdout=None, stderr=None)
        assert child.returncode == 0
        return {"read": sys.stdin.read()}


class Discoverer(Backend):
    """Discovers a tool during warmup, and may discover another one later."""

    name = "found"
    description = "Finds tools."
    discovers = True

    def __init__(self) -> None:
        self._tools: tuple[Tool, ...] = ()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Return the discovered tools."""
        return self._tools

    async def warmup(self) -> None:
        self.find("first")

    def find(self, word: str) -> None:
        """Replace the tools by one of that name."""

        async def repeat() -> str:
            """Say the word."""
            return word

        repeating = Tool.of(repeat, backend=self.name, verb=word)
        self._tools = (replace(repeating, verb=f"place.{word}", called=f"found_place_{word}"),)
