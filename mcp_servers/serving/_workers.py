"""Several worker processes behind one port: ordinary servers on Unix sockets, supervised, behind a proxy."""

import asyncio
import json
import logging
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from pathlib import Path

import anyio
import httpx2
import msgspec

from agentflow._import_path import module_command
from agentflow.actors import (
    Backoff,
    ChildSpec,
    Context,
    DynamicSupervisor,
    Process,
    ProcessEnded,
    RestartLimitReached,
    StartFailed,
)
from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.http_server import ACCEPTED_AT_ONCE, WAITING_CONNECTIONS, Connections, max_connections
from mcp_servers.core._shares import ClientQuota
from mcp_servers.serving._access import HttpOptions, Origins
from mcp_servers.serving._http import (
    HEALTH,
    METRICS,
    READY,
    public_address,
    url_of,
)
from mcp_servers.serving._http_framing import MessageHead, refusal, response
from mcp_servers.serving._metrics import Metrics, own_usage, together
from mcp_servers.serving._proxy import ClientLink, Upstream
from mcp_servers.serving._server_names import UNIX, worker_name
from mcp_servers.serving._settings import OWNER, ServerSettings

logger = logging.getLogger(__name__)

RESTARTS, PERIOD = 10, 60.0
"""Worker deaths within a period (in seconds) that end the server."""
ASK_SECONDS = 5.0
"""Time to wait for a worker when all workers are asked."""
END_SECONDS = 30.0
"""Time for the workers to end their sessions, after that for running calls."""


class WorkerStart(msgspec.Struct):
    """To a worker: start to serve."""

    settings: dict[str, object]
    """Settings of the worker."""
    tokens: dict[str, str] | None
    """Token of each client."""


class WorkerState(msgspec.Struct):
    """From a worker: its state during the start."""

    waiting: list[str] = []
    """Backends that are still being warmed up; the worker answers calls to the others."""
    refusal: str = ""
    """Reason why it cannot serve, in one line."""
    configuration: bool = False
    """The settings are the reason."""


class WorkerHandle:
    """One worker process, from start to end."""

    def __init__(self, server: "WorkerServer", number: int) -> None:
        self._server = server
        self.number = number
        """Number of the worker; a restarted worker keeps its number."""
        self.socket = server.socket_of(number)
        """The Unix socket on which it listens."""
        self.active = 0
        """Requests that it is answering, without streams that only listen."""
        self.sessions = 0
        """Number of its sessions when it last answered."""
        self.full_for: set[bytes] = set()
        """`Authorization` headers of clients that can start no more sessions in it."""
        self.served = 0
        """Number of requests sent to it so far."""
        self.waiting: Sequence[str] = ()
        """Its backends that are still being warmed up."""

    async def run(self, context: Context) -> None:
        """Run as a child of a supervisor.

        :raises ProcessEnded: if the process has died.
        """
        if self._server.stopping:
            return
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
                group.start_soon(self._follow, ours)
                try:
                    await process.run(context)
                except ProcessEnded as ended:
                    failure = ended
                group.cancel_scope.cancel()
        finally:
            theirs.close()
            self._server.lost(self)
        if failure is not None:
            raise failure

    async def _follow(self, control: socket.socket) -> None:
        """Start the worker, and follow its state."""
        reader, writer = await asyncio.open_unix_connection(sock=control)
        with suppress(ConnectionError):
            writer.write(msgspec.json.encode(self._server.start_message(self.number)) + b"\n")
            await writer.drain()
            while line := await reader.readline():
                state = msgspec.json.decode(line, type=WorkerState)
                if state.refusal:
                    self._server.refused_to_serve(self, state)
                else:
                    self.waiting = state.waiting
                    self._server.serves(self)
        # The connection ends shortly before the process does; no request may be sent to it in between.
        self._server.lost(self)
        writer.close()


class WorkerServer:
    """A server with several workers."""

    def __init__(
        self, settings: ServerSettings, backends: Sequence[str], options: HttpOptions, listener: socket.socket
    ) -> None:
        """:param backends: names of the backends to warm up.
        :raises ConfigurationError: if the options would admit unauthorized clients.
        """
        options.check()
        self.size = settings.workers
        """Number of workers when all are available."""
        self.stopping = False
        """The workers end, and none is restarted."""
        self._settings = settings
        self._backends = backends
        self._options = options
        self._listener = listener
        self.host, self.port = public_address(listener, options)
        self._origins = Origins(options.host, self.port, options.allowed_origins, options.allowed_hosts)
        self._metrics = Metrics()
        self._live: dict[str, WorkerHandle] = {}
        self._refusal: AgentFlowError | None = None
        self._started = False
        self._changed = anyio.Event()
        self._stop = anyio.Event()
        self._folder: Path

    @property
    def url(self) -> str:
        """URL of all backends together."""
        return url_of(self.host, self.port)

    def stop(self) -> None:
        """Stop every worker: each lets its running calls finish for `grace_seconds` and ends its sessions."""
        self.stopping = True
        self._stop.set()
        self._changed.set()

    async def serve(self, ready: Callable[[], object] = lambda: None) -> None:
        """Serve until `stop`.

        :param ready: is called when all workers are ready.
        :raises AgentFlowError: if a worker cannot serve, or they die repeatedly.
        """
        with tempfile.TemporaryDirectory(prefix="agentflow-workers-") as folder:
            self._folder = Path(folder)
            seconds = self._options.grace_seconds + END_SECONDS
            template = ChildSpec(
                id="worker",
                start=partial(WorkerHandle, self),
                shutdown=seconds,
            )
            workers = DynamicSupervisor(
                template, intensity=RESTARTS, period=PERIOD, backoff=Backoff(), name="workers"
            )
            connections = Connections(max_connections(), name="tool server")
            with connections.watched():
                await self._supervise(workers, connections, ready)
        if self._refusal is not None:
            raise self._refusal

    async def _supervise(
        self, workers: DynamicSupervisor, connections: Connections, ready: Callable[[], object]
    ) -> None:
        """Keep the workers running and pass requests on to them, until `stop`."""
        async with anyio.create_task_group() as group:
            server = await self._listen(connections, group.start_soon)
            try:
                async with workers:
                    for number in range(1, self.size + 1):
                        await workers.start_child(number)
                    await self._warm()
                    if self._refusal is None and not self.stopping:
                        self._started = True
                        ready()
                        await self._stop.wait()
                    self.stopping = True
            except (RestartLimitReached, StartFailed):
                self._refusal = self._refusal or AgentFlowError(
                    "the server's workers die repeatedly; see their log"
                )
            server.close()
            connections.abort_all()
            group.cancel_scope.cancel()

    async def _listen(self, connections: Connections, start_soon: Callable[..., object]) -> asyncio.Server:
        """Begin to accept connections."""

        def accepted() -> asyncio.Protocol:
            return connections.limited(lambda: ClientLink(self, connections, start_soon))

        # Connections accepted in one turn of the event loop, before others are answered.
        loop = asyncio.get_running_loop()
        if self._listener.family == socket.AF_UNIX:
            server = await loop.create_unix_server(accepted, sock=self._listener, backlog=ACCEPTED_AT_ONCE)
        else:
            server = await loop.create_server(accepted, sock=self._listener, backlog=ACCEPTED_AT_ONCE)
        self._listener.listen(WAITING_CONNECTIONS)
        return server

    async def _warm(self) -> None:
        """Wait until every worker has warmed its backends up, one cannot, or the server is stopped."""
        while self._refusal is None and self._waiting_for() and not self.stopping:
            self._changed = anyio.Event()
            await self._changed.wait()

    def _waiting_for(self) -> list[str]:
        """Return the backends that some worker has not warmed up yet."""
        if len(self._live) < self.size:
            return [*self._backends] or ["workers"]
        return [*dict.fromkeys(name for worker in self._live.values() for name in worker.waiting)]

    def server(self, name: str | None) -> Upstream | None:
        """Return the worker of that name, if it is available."""
        return None if name is None else self._live.get(name)

    def least_busy(self, *, starting: bytes | None, last: Upstream | None) -> Upstream | None:
        """Return the worker with the fewest requests; `None` if none is available.

        :param starting: `Authorization` header of a client that starts a session: the fewest sessions count.
        :param last: worker of the last request of the connection, preferred among equals.
        """

        def load(worker: WorkerHandle) -> tuple[bool, int, bool, int]:
            if starting is None:
                return False, worker.active, worker is not last, worker.served
            return starting in worker.full_for, worker.sessions + worker.active, False, worker.served

        return min(self._live.values(), key=load, default=None)

    def unreachable(self, server: Upstream) -> None:
        """Record that a worker accepts no connections: its process ends."""
        self._live = {name: worker for name, worker in self._live.items() if worker is not server}

    def local(self, head: MessageHead) -> Awaitable[bytes] | None:
        """Return the response to a request that concerns all workers."""
        path = head.line[1].partition(b"?")[0].rstrip(b"/").decode("latin-1")
        if path not in (HEALTH, READY, METRICS):
            return None
        return self._metrics_of_all(head) if path == METRICS else self._state(head, path)

    async def _state(self, head: MessageHead, path: str) -> bytes:
        if not self._origins.allow_host(head.fields.get(b"host")):
            return self._refused(421, "421 Misdirected Request", "this server does not serve that host")
        if not self._origins.allow_origin(head.fields.get(b"origin")):
            return self._refused(403, "403 Forbidden", "pages of that origin may not use this server")
        state: dict[str, object]
        waiting = self._waiting_for()
        if path == HEALTH:
            state = {"status": "stopping" if self.stopping else "ok"}
        elif self.stopping:
            state = {"ready": False, "status": "stopping"}
        else:
            state = {"ready": False, "waiting_for": waiting} if waiting else {"ready": True}
        status = "503 Service Unavailable" if state.get("ready") is False else "200 OK"
        return response(status, json.dumps(state).encode())

    def _refused(self, status: int, line: str, message: str) -> bytes:
        self._metrics.refused(status)
        return refusal(line, message)

    async def _metrics_of_all(self, head: MessageHead) -> bytes:
        """Return the metrics of all workers, labelled by worker, and of this process, labelled `front`."""
        available = {"agentflow_workers": ("Available workers.", len(self._live))}
        texts = {"front": self._metrics.render({**available, **own_usage()})}
        refused: bytes | None = None

        async def ask(worker: WorkerHandle) -> None:
            nonlocal refused
            transport = httpx2.AsyncHTTPTransport(uds=str(worker.socket))
            names = (b"authorization", b"host", b"origin")
            headers = [(name, head.fields[name]) for name in names if name in head.fields]
            with anyio.move_on_after(ASK_SECONDS), suppress(httpx2.HTTPError):
                async with httpx2.AsyncClient(transport=transport, headers=headers) as http:
                    answer = await http.get(f"http://worker{METRICS}")
                    if answer.status_code == 200:
                        texts[str(worker.number)] = answer.text
                    else:
                        line = f"{answer.status_code} {answer.reason_phrase}"
                        refused = response(line, answer.content, close=True)

        async with anyio.create_task_group() as group:
            for worker in tuple(self._live.values()):
                group.start_soon(ask, worker)
        if refused is not None:
            return refused
        return response("200 OK", together(dict(sorted(texts.items()))).encode(), "text/plain; version=0.0.4")

    def socket_of(self, number: int) -> Path:
        """Return the Unix socket of a worker."""
        return self._folder / f"{number}.sock"

    def start_message(self, number: int) -> WorkerStart:
        """Return the message that starts a worker, with its share of the server's limits."""
        settings, name = self._settings, partial(worker_name, self._settings.name)
        worker_settings = settings.model_dump(
            mode="json", exclude_unset=True, exclude={"token", "tokens", "workers"}
        )
        sessions, calls = worker_settings.setdefault("sessions", {}), worker_settings.setdefault("calls", {})
        sessions["max_sessions"] = ceil(settings.sessions.max_sessions / self.size)
        calls["max_concurrent"] = ceil(settings.calls.max_concurrent / self.size)
        calls["max_waiting"] = ceil(settings.calls.max_waiting / self.size)
        others = [other for other in range(1, self.size + 1) if other != number]
        tokens, quotas, scopes = self._options.tokens, settings.quotas(), settings.scopes()
        return WorkerStart(
            {
                **worker_settings,
                "host": self._options.host,
                "port": self.port,
                "name": name(number),
                "socket": str(self.socket_of(number)),
                "peers": {
                    **settings.peers,
                    **{name(other): f"{UNIX}{self.socket_of(other)}" for other in others},
                },
                "rate_file": str(settings.rate_file or self._folder / "rates"),
                "token": None if tokens is None else tokens.get(OWNER),
                "tokens": {
                    client: {
                        "token": token,
                        "backends": scopes.get(client),
                        **self._share(quotas.get(client, ClientQuota())),
                    }
                    for client, token in (tokens or {}).items()
                    if client != OWNER
                },
            },
            None if tokens is None else {**tokens},
        )

    def _share(self, quota: ClientQuota) -> dict[str, int | None]:
        """Return the part of a client's quota that one worker grants, rounded up."""
        sessions, calls = quota.sessions, quota.calls
        return {
            "max_sessions": None if sessions is None else ceil(sessions / self.size),
            "max_concurrent": None if calls is None else ceil(calls / self.size),
        }

    def serves(self, worker: WorkerHandle) -> None:
        """Record that the worker answers requests."""
        self._live[worker_name(self._settings.name, worker.number)] = worker
        self._changed.set()

    def refused_to_serve(self, worker: WorkerHandle, state: WorkerState) -> None:
        """Record that the worker cannot serve; during the server's start this ends the server."""
        if self._started:
            logger.error("worker %d: %s", worker.number, state.refusal)
        elif self._refusal is None:
            self._refusal = (ConfigurationError if state.configuration else AgentFlowError)(state.refusal)
            self._changed.set()

    def lost(self, worker: WorkerHandle) -> None:
        """Record that the worker has ended."""
        name = worker_name(self._settings.name, worker.number)
        if self._live.get(name) is worker:
            del self._live[name]
            if not self.stopping:
                logger.warning("worker %d has ended with its sessions and is restarted", worker.number)
