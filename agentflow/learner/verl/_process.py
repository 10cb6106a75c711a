"""verl as a supervised child process: it ends, with Ray, however this process ends."""

import os
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from anyio.from_thread import start_blocking_portal

import agentflow
import runtimes
from agentflow.actors import ChildSpec, Context, Process, ProcessEnded, Restart, StartFailed, Supervisor
from agentflow.errors import AgentFlowError
from agentflow.learner._policy import OptimizerSettings, PolicySettings
from agentflow.learner.verl._exchange import READY
from agentflow.learner.verl._settings import VerlSettings, command_arguments

_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.1
_SLOW = "timed out during startup"
"""Ray's message after a start timeout of its helpers, as on a busy machine; the next start is faster."""
_TAIL_BYTES = 20_000


class VerlFailure(AgentFlowError):
    """verl failed or died. One line: the operation and verl's last error."""


class VerlProcess(Process):
    """verl's command."""

    ended: threading.Event
    """Set once it has ended."""

    async def run(self, context: Context) -> None:
        """Run as a supervisor's child."""
        try:
            await super().run(context)
        except ProcessEnded:
            # The pending request reports it, with verl's own error.
            return
        finally:
            self.ended.set()


@contextmanager
def running_verl(
    policy: PolicySettings, optimizer: OptimizerSettings, settings: VerlSettings
) -> Generator[tuple[Path, threading.Event, Path]]:
    """Start verl; yield the folder of requests, an event that is set when verl ends, and its log.

    :raises VerlFailure: if it does not become ready, with its last error.
    """
    python = settings.interpreter()
    # The path of a socket is limited to about 100 characters, and Ray's socket names are long.
    base = Path(tempfile.mkdtemp(prefix="af-"))
    try:
        folder, code, log = base / "orders", base / "code", settings.log or base / "verl.log"
        folder.mkdir()
        code.mkdir()
        # verl's environment has its own versions of our dependencies: it gets our packages and nothing else.
        for package in (agentflow, runtimes):
            (code / package.__name__).symlink_to(Path(str(package.__file__)).parent)
        arguments = command_arguments(policy, optimizer, settings, folder, base / "ray")
        command = [str(python), "-m", "verl.trainer.main_ppo", *arguments]
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(
                _running(command, _environment(settings, code), folder, log, settings.start_seconds)
            ) as ended,
        ):
            yield folder, ended, log
    finally:
        shutil.rmtree(base, ignore_errors=True)


@asynccontextmanager
async def _running(
    command: list[str], environment: dict[str, str], folder: Path, log: Path, seconds: float
) -> AsyncGenerator[threading.Event]:
    ended = threading.Event()

    async def ready() -> None:
        while not (folder / READY).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(_POLL_SECONDS)

    with log.open("ab") as output:

        def start() -> VerlProcess:
            ended.clear()
            process = VerlProcess(
                command, env=environment, cwd=folder, stdout=output, stderr=output, ready=ready
            )
            process.ended = ended
            return process

        spec = ChildSpec(
            id="verl",
            start=start,
            restart=Restart.TEMPORARY,
            shutdown=_STOP_SECONDS,
            start_timeout=seconds,
        )
        async with AsyncExitStack() as stack:
            for again in (True, False):
                try:
                    await stack.enter_async_context(Supervisor([spec], name="verl"))
                    break
                except StartFailed as failed:
                    error = last_error(log)
                    if not again or _SLOW not in error:
                        raise VerlFailure(f"verl did not become ready: {error or failed}") from failed
            yield ended


def _environment(settings: VerlSettings, code: Path) -> dict[str, str]:
    # Without compiled modules each of its processes takes a minute to start.
    unwanted = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "RAY_ADDRESS"}
    given = {name: value for name, value in os.environ.items() if name not in unwanted}
    return given | {
        "PYTHONPATH": str(code),
        "AGENTFLOW_VERL_DEVICE": "gpu" if settings.gpus else "cpu",
        # Otherwise Ray writes one into the user's home.
        "RAY_AUTH_TOKEN": os.urandom(16).hex(),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's name for single-machine mode, in which it listens on loopback only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "HYDRA_FULL_ERROR": "1",
    }


def last_error(log: Path) -> str:
    """Return the last error in a log, or its last line."""
    try:
        with log.open("rb") as output:
            output.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = [
                line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()
            ]
    except OSError:
        return ""
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return " ".join((errors or lines or [""])[-1].split())[:300]
