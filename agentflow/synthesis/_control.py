"""Control server of a synthesis: an MCP server on loopback, with a token that only this user can read."""

import json
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import anyio
from pydantic import Field

from agentflow._private_files import replace_file
from agentflow.actors import Context
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure, unwrap_group
from agentflow.journal import this_process
from agentflow.runs import Phase
from agentflow.synthesis._report import PairPreview, SynthesisStatus
from agentflow.synthesis._seeds import new_seeds
from agentflow.telemetry import get_logger
from agentflow.trace import Usage
from mcp_servers import Backend, Output, ToolTable, tool

if TYPE_CHECKING:
    from agentflow.synthesis.pipeline import SynthesisRun

logger = get_logger(__name__)

OWNER = "owner"
_WATCHED_SECONDS = 3.0
_LAST_PHASES = (Phase.STOPPING, Phase.WRITING, Phase.DONE, Phase.STOPPED)
LOAD_AFTER_SECONDS = 2.0
"""A run that ends earlier has no control server."""


_STATUS_NAMES = {"open_trees": "active", "eta_seconds": "remaining"}
"""Fields of the status to which its output gives other names."""


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
    tasks: int = 0
    """Number of accepted tasks."""
    finished: int = 0
    """Number of seeds finished since this process began."""
    rate: float = 0.0
    """Seeds finished per second, without pauses; 0: none yet."""
    eta_seconds: float | None = None
    """Estimated seconds to the end; none: unknown."""
    failures: dict[str, int] = Field(default_factory=dict[str, int])
    """Failures that this process saw, by kind."""
    latest: list[str] = Field(default_factory=list[str])
    """The newest questions or instructions, each with its answer on a second line."""
    notes: list[str] = Field(default_factory=list[str])
    """Lines about the input."""

    @classmethod
    def of(cls, status: SynthesisStatus, notes: Sequence[str]) -> Self:
        """Return the progress as the output of a tool."""
        latest = ["\n".join([" ".join(pair.question.split()), pair.answer]).strip() for pair in status.latest]
        fields: dict[str, Any] = {
            name: getattr(status, _STATUS_NAMES.get(name, name))
            for name in cls.model_fields
            if name != "notes"
        }
        fields |= {
            "phase": status.phase.value,
            "seconds": round(status.seconds, 3),
            "rate": round(status.rate, 6),
            "eta_seconds": None if status.remaining is None else round(status.remaining, 1),
            "latest": latest,
        }
        return cls(**fields, notes=[*notes])

    def status(self) -> SynthesisStatus:
        """Return the progress as the run itself shows it; its tokens are not divided by role."""
        pairs = (text.partition("\n") for text in self.latest)
        fields: dict[str, Any] = {_STATUS_NAMES.get(name, name): value for name, value in self}
        del fields["tokens"], fields["notes"]
        fields |= {
            "phase": Phase(self.phase),
            "usage": {"all": Usage(prompt_tokens=self.tokens)},
            "latest": tuple(PairPreview(question, answer) for question, _, answer in pairs),
        }
        return SynthesisStatus(**fields)


class ActorsOutput(Output):
    """Parts of a run that are at work."""

    actors: list[dict[str, str]]
    """Id, kind and state of each supervised actor."""
    calls: list[dict[str, int]]
    """Calls of each model: in flight, waiting, limit, so far, failed."""


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
        self._watched = -inf
        self._end_seen = anyio.Event()

    async def tell_watchers(self) -> None:
        """Wait for a short time until a client that watches the run has asked once more and so learns that it ends."""
        if anyio.current_time() - self._watched < _WATCHED_SECONDS:
            with anyio.move_on_after(_WATCHED_SECONDS):
                await self._end_seen.wait()

    @tool(title="Status", read_only=True)
    async def status(
        self,
        known_phase: Annotated[
            str, Field(description="The phase that you know: wait for another one.", max_length=20)
        ] = "",
        wait_seconds: Annotated[float, Field(description="Longest time to wait.", ge=0, le=10)] = 0.0,
    ) -> StatusOutput:
        """Return the progress of the run: seeds, nodes, questions, tokens. Use it to watch."""
        with anyio.move_on_after(wait_seconds):
            await self._run.wait_for_phase_after(known_phase)
        status = self._run.status()
        if status.phase in _LAST_PHASES:
            self._end_seen.set()
        elif wait_seconds:
            self._watched = anyio.current_time()
        return StatusOutput.of(status, self._run.notes)

    @tool(title="Actors", read_only=True)
    async def actors(self) -> ActorsOutput:
        """Return the supervised actors and the calls in flight. Use it to find what a run waits for."""
        actors = [
            {"id": actor.id, "kind": actor.kind, "state": actor.state.value} for actor in self._run.actors()
        ]
        names = ("in_flight", "waiting", "limit", "calls", "failures")
        calls = [{name: getattr(model, name) for name in names} for model in self._run.calls()]
        return ActorsOutput(actors=actors, calls=calls)

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
            backend = RunBackend(self._run)
            async with ToolTable([backend]) as table:
                await self._serve(context, backend, table)
        except* (ConfigurationError, OSError) as group:
            logger.warning("no control server", reason=str(unwrap_group(group)))

    async def _serve(self, context: Context, backend: RunBackend, table: ToolTable) -> None:
        from mcp_servers import HttpOptions, HttpServer

        token = secrets.token_urlsafe(32)
        server = HttpServer(table, HttpOptions(port=self._port, tokens={OWNER: token}, grace_seconds=1))
        record = {"url": server.url, "token": token, "pid": os.getpid(), "process": this_process()}
        address = json.dumps(record)

        def ready() -> None:
            replace_file(self._file, address.encode())
            logger.info("control server", url=server.url, file=str(self._file))

        ending = anyio.Event()
        context.on_stop(ending.set)

        async def end() -> None:
            await ending.wait()
            await backend.tell_watchers()
            server.stop()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(end)
                await server.serve(ready)
                tasks.cancel_scope.cancel()
        finally:
            with suppress(OSError):
                if self._file.read_text(encoding="utf-8") == address:
                    self._file.unlink()
