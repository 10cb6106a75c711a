"""A trainer as a supervised child process in an environment of its own: it ends however this process ends."""

import os
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from anyio.from_thread import start_blocking_portal

import agentflow
import runtimes
from agentflow.actors import ChildSpec, Context, Process, ProcessEnded, Restart, StartFailed, Supervisor
from agentflow.errors import AgentFlowError
from agentflow.learner._exchange import READY

_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.1
_SLOW = "timed out during startup"
"""Ray's message after a start timeout of its helpers, as on a busy machine; the next start is faster."""
_TAIL_BYTES = 20_000
_ERROR = re.compile(r"(?:^|\s)([\w.]*(?:Error|Exception): .*)")
"""An error at the end of a traceback, also behind the prefixes of Ray and of a logger."""


class TrainerProcess(Process):
    """The command of a trainer."""

    ended: threading.Event
    """Set once it has ended."""

    async def run(self, context: Context) -> None:
        """Run as a supervisor's child."""
        try:
            await super().run(context)
        except ProcessEnded:
            # The pending request reports it, with the trainer's own error.
            return
        finally:
            self.ended.set()


@contextmanager
def trainer_folder(shared: Path | None = None) -> Generator[Path]:
    """Yield a temporary folder that contains `orders`, for requests, and `code`, our packages to put on the path.

    A trainer's environment has its own versions of our dependencies: it gets our packages and nothing else.

    :param shared: parent folder that other machines see: the packages are copied; `None`: they are linked.
    """
    # The path of a socket is limited to about 100 characters, and Ray's socket names are long.
    base = Path(tempfile.mkdtemp(prefix="af-", dir=shared)).absolute()
    try:
        (base / "orders").mkdir()
        (base / "code").mkdir()
        for package in (agentflow, runtimes):
            source, target = Path(str(package.__file__)).parent, base / "code" / package.__name__
            if shared is None:
                target.symlink_to(source)
            else:
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def running_trainer(
    name: str,
    command: list[str],
    environment: Mapping[str, str],
    base: Path,
    log: Path,
    seconds: float,
    failure: Callable[[str], AgentFlowError],
) -> Generator[threading.Event]:
    """Start a trainer and wait until it accepts requests; yield an event that is set when it ends.

    :param base: folder of `trainer_folder`.
    :param failure: makes the error that is raised if it does not become ready, with its last error.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            _running(name, command, environment, base / "orders", log, seconds, failure)
        ) as ended,
    ):
        yield ended


@asynccontextmanager
async def _running(
    name: str,
    command: list[str],
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    seconds: float,
    failure: Callable[[str], AgentFlowError],
) -> AsyncGenerator[threading.Event]:
    ended = threading.Event()

    async def ready() -> None:
        while not (folder / READY).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(_POLL_SECONDS)

    with log.open("ab") as output:

        def start() -> TrainerProcess:
            ended.clear()
            process = TrainerProcess(
                command, env=environment, cwd=folder, stdout=output, stderr=output, ready=ready
            )
            process.ended = ended
            return process

        spec = ChildSpec(
            id=name, start=start, restart=Restart.TEMPORARY, shutdown=_STOP_SECONDS, start_timeout=seconds
        )
        async with AsyncExitStack() as stack:
            for again in (True, False):
                try:
                    await stack.enter_async_context(Supervisor([spec], name=name))
                    break
                except StartFailed as failed:
                    error = last_error(log)
                    if not again or _SLOW not in error:
                        raise failure(f"{name} did not become ready: {error or failed}") from failed
            yield ended


def trainer_environment(code: Path, *, own_ray: bool = True) -> dict[str, str]:
    """Return the environment variables of a trainer that uses Ray.

    :param own_ray: it starts a Ray of its own; otherwise it gets our variables of Ray, which name and unlock a cluster.
    """
    # Without compiled modules each of its processes takes a minute to start.
    unwanted = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH"}
    variables = {
        "PYTHONPATH": str(code),
        "RAY_USAGE_STATS_ENABLED": "0",
        "HYDRA_FULL_ERROR": "1",
        "RAY_COLOR_PREFIX": "0",
    }
    if own_ray:
        unwanted.add("RAY_ADDRESS")
        # Otherwise Ray writes one into the user's home.
        variables["RAY_AUTH_TOKEN"] = os.urandom(16).hex()
        # Ray's name for single-machine mode, in which it listens on loopback only.
        variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return {name: value for name, value in os.environ.items() if name not in unwanted} | variables


def last_error(*logs: Path) -> str:
    """Return the last error in the first of some logs that has one, or the last line of all of them."""
    last = ""
    for lines in map(_tail, logs):
        errors = [
            (place, found.group(1)) for place, line in enumerate(lines) if (found := _ERROR.search(line))
        ]
        if errors:
            place, error = errors[-1]
            # Its message continues, as Ray's about different versions.
            further = lines[place + 1 :] if error.endswith(":") else []
            return " ".join(" ".join([error, *further]).split())[:300]
        last = lines[-1] if lines else last
    return " ".join(last.split())[:300]


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as output:
            output.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = output.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
