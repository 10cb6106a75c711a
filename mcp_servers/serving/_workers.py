"""Several worker processes behind one port, supervised, each with a tool table of its own."""

import logging
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from agentflow._import_path import module_command
from agentflow.actors import (
    Backoff,
    ChildSpec,
    Context,
    Process,
    ProcessEnded,
    RestartLimitReached,
    StartFailed,
    Supervisor,
)
from agentflow.errors import AgentFlowError, ConfigurationError
from mcp_servers.core._session_tools import SESSIONS
from mcp_servers.core._shares import ClientQuota
from mcp_servers.serving._metrics import Metrics, own_usage, together
from mcp_servers.serving._relay import Relay
from mcp_servers.serving._settings import ServerSettings
from mcp_servers.serving._worker_messages import (
    EndSessions,
    Forward,
    Message,
    MetricsRequest,
    MetricsText,
    StartRefused,
    StartWorker,
    WarmingUp,
)
from mcp_servers.serving._worker_rpc import ConnectionLost, Frame, RpcConnection, RpcRequest

if TYPE_CHECKING:
    from starlette.types import ASGIApp


logger = logging.getLogger(__name__)

RESTARTS, PERIOD = 10, 60.0
"""Worker deaths within a period (in seconds) that end the server."""
ASK_SECONDS = 5.0
"""Time to wait for a worker when all workers are asked."""
END_SECONDS = 30.0
"""Time for the workers to end their sessions."""


class WorkerHandle:
    """One worker process, from start to end."""

    def __init__(self, workers: "WorkerProcesses", number: int) -> None:
        self._workers = workers
        self.number = number
        """Number of the worker; a restarted worker keeps its number."""
        self.active = 0
        """Requests that it is answering, without streams that only listen."""
        self.sessions = 0
        """Number of its sessions when it last answered."""
        self.full_for: set[str] = set()
        """Clients for which it had no session left when it last answered them."""
        self.served = 0
        """Number of requests sent to it so far."""
        self.waiting: Sequence[str] = ()
        """Its backends that are still being warmed up."""
        self._connection = RpcConnection(Frame[Message], self._answer)

    async def run(self, context: Context) -> None:
        """Run as a child of a supervisor.

        :raises ProcessEnded: if the process has died.
        """
        ours, theirs = socket.socketpair()

        async def started() -> None:
            theirs.close()

        # The number is for people who list processes.
        process = Process(
            [*module_command("mcp_servers.serving._worker"), str(self.number)],
            stdin=theirs.fileno(),
            ready=started,
        )
        failure: ProcessEnded | None = None
        try:
            async with anyio.create_task_group() as group:
                await group.start(self._talk, ours)
                group.start_soon(self._start)
                try:
                    await process.run(context)
                except ProcessEnded as ended:
                    failure = ended
                group.cancel_scope.cancel()
        finally:
            theirs.close()
            self._workers.lost(self)
        if failure is not None:
            raise failure

    def ask(self, request: Message) -> AbstractAsyncContextManager[AsyncGenerator[Message]]:
        """Send a request; the block iterates over the answer."""
        self.served += 1
        return self._connection.ask(request)

    def note_full(self, client: str, *, full: bool) -> None:
        """Record whether the worker has a session left for a client."""
        (self.full_for.add if full else self.full_for.discard)(client)

    async def _talk(self, ours: socket.socket, *, task_status: TaskStatus[None]) -> None:
        try:
            await self._connection.run(ours, task_status=task_status)
        finally:
            # The connection ends shortly before the process does; no request may be sent to it in between.
            self._workers.lost(self)

    async def _start(self) -> None:
        with suppress(ConnectionLost):
            async with self._connection.ask(self._workers.start_message(self.number)) as items:
                async for item in items:
                    if isinstance(item, StartRefused):
                        self._workers.refused_to_serve(self, item)
                    elif isinstance(item, WarmingUp):
                        self.waiting = item.backends
                        self._workers.serves(self)

    async def _answer(self, request: Message, reply: RpcRequest[Message]) -> None:
        """Forward a worker's request to other workers."""
        assert isinstance(request, Forward), "workers send only Forward requests"
        async with reply.cancelled_if_abandoned():
            if request.worker:
                await self._workers.ask_one(request, reply)
            else:
                await self._workers.ask_others(self, request, reply)


class WorkerProcesses:
    """A pool of worker processes as an HTTP application."""

    def __init__(self, settings: ServerSettings, backends: Sequence[str]) -> None:
        """Prepare to start them.

        :param backends: names of the served backends.
        """
        self.size = settings.workers
        """Number of workers when all are available."""
        self._settings = settings
        self._counts = Metrics()
        self._relay = Relay(self, settings.calls.body_bytes)
        paths = ["/mcp", *(f"/{name}/mcp" for name in backends if name != SESSIONS)]
        self.by_path: Mapping[str, ASGIApp] = dict.fromkeys(paths, self._relay)
        """ASGI application of each path."""
        self._live: dict[int, WorkerHandle] = {}
        self._refusal: AgentFlowError | None = None
        self._changed = anyio.Event()
        self._closing = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Keep the workers alive until `close`.

        :raises AgentFlowError: if they die repeatedly.
        """
        specs = [
            ChildSpec(id=f"worker-{number}", start=partial(WorkerHandle, self, number), shutdown=END_SECONDS)
            for number in range(1, self.size + 1)
        ]
        tree = Supervisor(specs, intensity=RESTARTS, period=PERIOD, backoff=Backoff(), name="workers")
        task_status.started()
        try:
            async with tree:
                await self._closing.wait()
        except (RestartLimitReached, StartFailed):
            raise AgentFlowError("the server's workers die repeatedly; see their log") from None

    async def warm(self, backends: Sequence[str], waiting: Callable[[Sequence[str]], object]) -> None:
        """Wait until every worker has warmed its backends up.

        :raises AgentFlowError: if a worker cannot.
        """
        while self._refusal is None:
            self._changed = anyio.Event()
            complete = len(self._live) == self.size
            missing = [name for worker in self._live.values() for name in worker.waiting]
            waiting([*dict.fromkeys(missing if complete else backends)])
            if complete and not missing:
                return
            await self._changed.wait()
        raise self._refusal

    async def end_sessions(self) -> None:
        """End every session of every worker."""
        await self._ask_all(EndSessions(), seconds=END_SECONDS)

    def close(self) -> None:
        """End every stream, then the workers."""
        self._relay.close()
        self._closing.set()

    def refused(self, status: int) -> None:
        """Count a refused request."""
        self._counts.refused(status)

    async def metrics_text(self) -> str:
        """Return the metrics of all workers, labelled by worker, and of this process, labelled `front`."""
        workers = {"agentflow_workers": ("Available workers.", len(self._live))}
        texts = {"front": self._counts.render({**workers, **own_usage()})}
        for worker, item in await self._ask_all(MetricsRequest()):
            texts[str(worker.number)] = item.text if isinstance(item, MetricsText) else ""
        return together(dict(sorted(texts.items())))

    def worker(self, number: int) -> WorkerHandle | None:
        """Return the worker of that number, if it is available."""
        return self._live.get(number)

    def least_busy(self, *, starting: str | None) -> WorkerHandle | None:
        """Return the worker with the fewest requests; `None` if none is available.

        :param starting: client that starts a session; the worker with the fewest sessions that has one left for it.
        """

        def load(worker: WorkerHandle) -> tuple[bool, int, int]:
            sessions = 0 if starting is None else worker.sessions
            return starting in worker.full_for, sessions + worker.active, worker.served

        return min(self._live.values(), key=load, default=None)

    def start_message(self, number: int) -> StartWorker:
        """Return the message that starts a worker, with its share of the server's limits."""
        settings = self._settings
        share = settings.model_dump(mode="json", exclude_unset=True, exclude={"token", "tokens"})
        sessions, calls = share.setdefault("sessions", {}), share.setdefault("calls", {})
        sessions["max_sessions"] = ceil(settings.sessions.max_sessions / self.size)
        calls["max_concurrent"] = ceil(settings.calls.max_concurrent / self.size)
        calls["max_waiting"] = ceil(settings.calls.max_waiting / self.size)
        quotas = {client: self._share(quota) for client, quota in settings.quotas().items()}
        return StartWorker(
            settings=share, scopes=settings.scopes(), quotas=quotas, number=number, workers=self.size
        )

    def _share(self, quota: ClientQuota) -> ClientQuota:
        """Return the part of a client's quota that one worker grants, rounded up."""
        sessions, calls = quota.sessions, quota.calls
        return ClientQuota(
            sessions=None if sessions is None else ceil(sessions / self.size),
            calls=None if calls is None else ceil(calls / self.size),
        )

    def serves(self, worker: WorkerHandle) -> None:
        """Record that the worker answers requests."""
        self._live[worker.number] = worker
        self._changed.set()

    def refused_to_serve(self, worker: WorkerHandle, refusal: StartRefused) -> None:
        """Record that the worker cannot serve; during the server's start this ends the server."""
        logger.error("worker %d: %s", worker.number, refusal.message)
        self._refusal = (ConfigurationError if refusal.configuration else AgentFlowError)(refusal.message)
        self._changed.set()

    def lost(self, worker: WorkerHandle) -> None:
        """Record that the worker has ended."""
        if self._live.pop(worker.number, None) is not None and not self._closing.is_set():
            logger.warning("worker %d has ended with its sessions and is restarted", worker.number)

    async def ask_one(self, request: Forward, reply: RpcRequest[Message]) -> None:
        """Forward a request to the worker that it names.

        :raises ConnectionLost: if that worker is gone.
        """
        worker = self._live.get(request.worker)
        if worker is None:
            raise ConnectionLost
        async with worker.ask(request.request) as items:
            async for item in items:
                await reply.answer(item)

    async def ask_others(self, origin: WorkerHandle, request: Forward, reply: RpcRequest[Message]) -> None:
        """Forward a request to all workers but its sender."""
        for _, item in await self._ask_all(request.request, but=origin):
            await reply.answer(item)

    async def _ask_all(
        self, request: Message, *, but: WorkerHandle | None = None, seconds: float = ASK_SECONDS
    ) -> list[tuple[WorkerHandle, Message]]:
        """Return the items of the workers' answers; a worker that is gone or does not finish in time is left out."""
        answers: list[tuple[WorkerHandle, Message]] = []

        async def ask(worker: WorkerHandle) -> None:
            with anyio.move_on_after(seconds), suppress(ConnectionLost):
                async with worker.ask(request) as items:
                    answers.extend([(worker, item) async for item in items])

        async with anyio.create_task_group() as group:
            for worker in tuple(self._live.values()):
                if worker is not but:
                    group.start_soon(ask, worker)
        return answers
