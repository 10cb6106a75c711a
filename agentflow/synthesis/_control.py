"""Control server of a synthesis: an MCP server on loopback, with a token that only this user can read."""

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from pydantic import Field

from agentflow._private_files import replace_file
from agentflow.actors import Context
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.synthesis._seeds import new_seeds
from agentflow.telemetry import get_logger
from mcp_servers import Backend, Output, ToolTable, tool

if TYPE_CHECKING:
    from agentflow.synthesis.pipeline import SynthesisRun

logger = get_logger(__name__)

OWNER = "owner"
LOAD_AFTER_SECONDS = 2.0
"""A run that ends earlier has no control server."""


class StatusOutput(Output):
    """Progress of a run."""

    phase: str
    """starting, growing, paused, stopping, writing, done or stopped."""
    seeds: int
    """Number of seeds."""
    done: int
    """Number of finished seeds."""
    open_trees: int
    """Number of seeds in work."""
    nodes: dict[str, int]
    """Nodes by verdict, counted by this process."""
    questions: int
    """Number of accepted question-answer pairs."""
    rejected: int
    """Number of rejected drafts."""
    calls_in_flight: int
    """Model calls without a response."""
    calls_failed: int
    """Model calls that failed for good."""
    tokens: int
    """Prompt and completion tokens of the whole run."""
    cost: float
    """Their cost, by the configured prices."""
    seconds: float
    """Seconds since this process began."""


class SeedsAdded(Output):
    """Seeds that were added to the journal."""

    ids: list[str]
    """Their ids, in the given order."""
    origin: str
    """Name of the list."""
    note: str = ""
    """Additional information."""


class RunBackend(Backend):
    """Tools of the control server."""

    name = "run"
    description = "Watch and control the running synthesis."

    def __init__(self, run: "SynthesisRun", new_id: Callable[[], str] = lambda: secrets.token_hex(4)) -> None:
        self._run = run
        self._new_id = new_id

    @tool(title="Status", read_only=True)
    async def status(self) -> StatusOutput:
        """Return the progress of the run: seeds, nodes, questions, tokens. Use it to watch."""
        status = self._run.status()
        return StatusOutput(
            phase=status.phase.value,
            seeds=status.seeds,
            done=status.done,
            open_trees=status.active,
            nodes=status.nodes,
            questions=status.questions,
            rejected=status.rejected,
            calls_in_flight=status.calls_in_flight,
            calls_failed=status.calls_failed,
            tokens=status.tokens,
            cost=status.cost,
            seconds=round(status.seconds, 3),
        )

    @tool(title="Pause", destructive=False, idempotent=True)
    async def pause(self) -> StatusOutput:
        """Begin no new model call and no new action; those in flight complete. Use it to free resources for a while."""
        self._run.pause()
        return await self.status()

    @tool(title="Resume", destructive=False, idempotent=True)
    async def resume(self) -> StatusOutput:
        """Continue after a pause."""
        self._run.resume()
        return await self.status()

    @tool(title="Stop", destructive=False, idempotent=True)
    async def stop(self) -> StatusOutput:
        """Stop the run cleanly. Nothing is lost; starting it again resumes it. Use it to free the machine."""
        self._run.stop("requested through its control server")
        return await self.status()

    @tool(title="Add seeds", destructive=False)
    async def add_seeds(
        self,
        seeds: Annotated[
            list[str | dict[str, object]],
            Field(description='Seeds: texts, or {"content": ..., "kwargs": {...}, "id": ...}.'),
        ],
        name: Annotated[
            str, Field(description="A name for this list: adding the same list under it again adds nothing.")
        ] = "",
    ) -> SeedsAdded:
        """Add seeds to the run; they are stored when this returns. Use it to explore more."""
        origin = f"control/{name or self._new_id()}"
        try:
            added, in_time = await self._run.add_seeds(new_seeds(seeds), origin)
        except ConfigurationError as error:
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, str(error)) from None
        note = "" if in_time else "The run is ending; start it again to grow them."
        return SeedsAdded(ids=[seed.id for seed in added], origin=origin, note=note)


class ControlServer:
    """Child of the run's supervisor that serves the control tools and writes their address to a file."""

    def __init__(self, run: "SynthesisRun", file: Path, *, port: int = 0) -> None:
        self._run = run
        self._file = file
        self._port = port

    async def run(self, context: Context) -> None:
        """Serve until the run ends."""
        context.ready()
        # The SDK takes a second to load: short runs skip it, and no run waits for it.
        await anyio.sleep(LOAD_AFTER_SECONDS)
        await anyio.to_thread.run_sync(import_module, "mcp_servers.serving._http", abandon_on_cancel=True)
        try:
            async with ToolTable([RunBackend(self._run)]) as table:
                await self._serve(context, table)
        except (ConfigurationError, OSError) as error:
            logger.warning("no control server", reason=str(error))

    async def _serve(self, context: Context, table: ToolTable) -> None:
        from mcp_servers import HttpOptions, HttpServer

        token = secrets.token_urlsafe(32)
        server = HttpServer(table, HttpOptions(port=self._port, tokens={OWNER: token}, grace_seconds=1))
        address = json.dumps({"url": server.url, "token": token, "pid": os.getpid()})

        def ready() -> None:
            replace_file(self._file, address.encode())
            logger.info("control server", url=server.url, file=str(self._file))

        context.on_stop(server.stop)
        try:
            await server.serve(ready)
        finally:
            with suppress(OSError):
                if self._file.read_text(encoding="utf-8") == address:
                    self._file.unlink()
