"""The runtime that isolates sessions: its settings, and its lifetime in a server."""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal

import anyio
from pydantic import Discriminator, Tag

from agentflow.errors import AgentFlowError, ConfigurationError
from mcp_servers.core._failures import did_you_mean
from runtimes import InstanceSpec, Runtime
from runtimes.docker import ContainerOptions

__all__ = [
    "RUNTIMES",
    "RuntimeChoice",
    "RuntimeHost",
    "RuntimeSettings",
    "check_runtime",
    "process_runtime",
    "runtime_maker",
]

RUNTIMES: Final = ("process", "docker", "runc", "gvisor")
"""The words for runtimes, from the lightest isolation to a kernel of its own."""

_NO_OPTIONS = ContainerOptions()


class RuntimeSettings(ContainerOptions):
    """A runtime with options."""

    name: Literal["process", "docker", "runc", "gvisor"]
    """Which."""
    idle: bool = True
    """process: what runs inside gets the processor only when nobody else on the machine wants it."""

    def options(self) -> ContainerOptions:
        """The options alone."""
        return ContainerOptions.model_validate(self.model_dump(exclude={"name", "idle"}))


def _kind(value: object) -> str:
    return "word" if isinstance(value, str) else "options"


RuntimeChoice = Annotated[
    Annotated[str, Tag("word")] | Annotated[RuntimeSettings, Tag("options")], Discriminator(_kind)
]
"""A word, or a mapping with a `name` and options."""


def check_runtime(choice: str | RuntimeSettings) -> None:
    """:raises ConfigurationError: if there is no such runtime, or it has no such options."""
    if isinstance(choice, str):
        if choice not in RUNTIMES:
            raise ConfigurationError(f"no runtime {choice!r}.{did_you_mean(choice, RUNTIMES)}")
        return
    for option in sorted(choice.model_fields_set - {"name"}):
        if choice.name not in _TAKEN_BY[option]:
            takers = " or ".join(_TAKEN_BY[option])
            raise ConfigurationError(f"runtime: {choice.name} has no option {option}; {takers} has")


_CONTAINERS = ("docker", "runc", "gvisor")
_TAKEN_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "cpus": _CONTAINERS,
    "idle": ("process",),
    "image": ("docker",),
    "network": ("docker",),
    "pool": ("process", *_CONTAINERS),
    "rootfs": ("runc", "gvisor"),
    "socket": ("docker",),
    "start_seconds": _CONTAINERS,
    "user": _CONTAINERS,
    "writable": ("docker",),
}


def runtime_maker(choice: str | RuntimeSettings, spec: InstanceSpec) -> Callable[[], Runtime]:
    """What makes the chosen runtime; where it keeps instances ready, they are of that spec.

    :raises ConfigurationError: if there is no such runtime, or it has no such options.
    """
    check_runtime(choice)
    name, options = (choice, _NO_OPTIONS) if isinstance(choice, str) else (choice.name, choice.options())
    idle = isinstance(choice, str) or choice.idle

    def make() -> Runtime:
        # Only what runs something needs a runtime, and only the chosen one is loaded.
        if name == "process":
            from runtimes.process import ProcessRuntime

            return ProcessRuntime(pool=options.pool, pool_spec=spec, idle=idle)
        from runtimes.docker import DockerRuntime

        tier = "runc" if name == "runc" else "gvisor" if name == "gvisor" else "docker"
        return DockerRuntime(options, tier=tier, pool_spec=spec)

    return make


def process_runtime() -> Runtime:
    """The default runtime."""
    from runtimes.process import ProcessRuntime  # only what runs something needs it

    return ProcessRuntime()


class RuntimeHost:
    """Keeps a runtime in a task of its own, since whoever enters it must also leave it."""

    def __init__(self, make: Callable[[], Runtime] = process_runtime) -> None:
        self._make = make
        self._wanted = anyio.Event()
        self._settled = anyio.Event()
        self._closed = anyio.Event()
        self._runtime: Runtime | None = None
        self._error: AgentFlowError | None = None

    async def get(self) -> Runtime:
        """The runtime; started now, if it is the first time.

        :raises IsolationUnavailable: if this machine can't isolate what runs.
        """
        self._wanted.set()
        await self._settled.wait()
        if self._runtime is None:
            assert self._error is not None
            raise self._error
        return self._runtime

    async def run(self) -> None:
        """Wait until it is wanted, start it, keep it until `close`."""
        await self._wanted.wait()
        if self._closed.is_set():
            return
        try:
            async with self._make() as runtime:
                self._runtime = runtime
                self._settled.set()
                await self._closed.wait()
        except AgentFlowError as error:
            if self._settled.is_set():
                raise
            self._error = error
            self._settled.set()

    def close(self) -> None:
        """End it; every instance with it."""
        self._closed.set()
        self._wanted.set()
