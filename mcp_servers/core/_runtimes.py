"""The runtime that isolates sessions: its settings, and its lifetime in a server."""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal

import anyio
from pydantic import Discriminator, Tag

from agentflow.errors import AgentFlowError, ConfigurationError
from mcp_servers.core._failures import did_you_mean
from runtimes import InstanceSpec, Runtime
from runtimes.docker import ContainerOptions
from runtimes.remote import RemoteOptions

_CONTAINERS = ("docker", "runc", "gvisor")
_REMOTE = ("daytona", "e2b", "k8s", "modal")
RUNTIMES: Final = ("process", *_CONTAINERS, *_REMOTE)
"""Names of the runtimes: on this machine, from the lightest isolation to a kernel of its own, and those of services."""


class RuntimeSettings(ContainerOptions, RemoteOptions):
    """A runtime with options."""

    name: Literal["process", "docker", "runc", "gvisor", "daytona", "e2b", "k8s", "modal"]
    """Name of the runtime."""
    idle: bool = False
    """process: sandboxed programs run at idle priority, with CPU time that no other process wants; else with a fair share."""


def _kind(value: object) -> str:
    return "word" if isinstance(value, str) else "options"


RuntimeChoice = Annotated[
    Annotated[str, Tag("word")] | Annotated[RuntimeSettings, Tag("options")], Discriminator(_kind)
]
"""A runtime's name, or a mapping with a `name` and options."""


def check_runtime(choice: str | RuntimeSettings) -> None:
    """Check that the runtime exists and supports its options.

    :raises ConfigurationError: if not.
    """
    if isinstance(choice, str):
        if choice not in RUNTIMES:
            raise ConfigurationError(f"no runtime {choice!r}.{did_you_mean(choice, RUNTIMES)}")
        return
    for option in sorted(choice.model_fields_set - {"name"}):
        if choice.name not in _TAKEN_BY[option]:
            takers = " or ".join(_TAKEN_BY[option])
            raise ConfigurationError(f"runtime: {choice.name} has no option {option}; {takers} does")


_TAKEN_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "cpus": _CONTAINERS,
    "idle": ("process",),
    "image": ("docker",),
    "internet": ("daytona", "e2b", "modal"),
    "lifetime": _REMOTE,
    "namespace": ("k8s",),
    "network": ("docker",),
    "pool": ("process", *_CONTAINERS),
    "rootfs": ("runc", "gvisor"),
    "socket": ("docker",),
    "start_seconds": (*_CONTAINERS, *_REMOTE),
    "template": _REMOTE,
    "url": ("k8s",),
    "user": _CONTAINERS,
    "writable": ("docker",),
}


def runtime_maker(choice: str | RuntimeSettings, spec: InstanceSpec) -> Callable[[], Runtime]:
    """Return a factory for the chosen runtime.

    :param spec: the instances that the runtime keeps ready, if it keeps any.
    :raises ConfigurationError: if there is no such runtime, or it does not support an option.
    """
    check_runtime(choice)
    options = RuntimeSettings.model_validate({"name": choice}) if isinstance(choice, str) else choice

    def make() -> Runtime:
        # Only the chosen runtime is imported, and only when something runs.
        if options.name == "process":
            from runtimes.process import ProcessRuntime

            return ProcessRuntime(pool=options.pool, pool_spec=spec, idle=options.idle)
        if options.name in ("daytona", "e2b", "k8s", "modal"):
            from runtimes.remote import RemoteRuntime

            return RemoteRuntime(options.name, _remote_options(options))
        from runtimes.docker import DockerRuntime

        return DockerRuntime(options, tier=options.name, pool_spec=spec)

    return make


def _remote_options(settings: RuntimeSettings) -> RemoteOptions:
    names = settings.model_fields_set & RemoteOptions.model_fields.keys()
    return RemoteOptions.model_validate({name: getattr(settings, name) for name in names})


def process_runtime() -> Runtime:
    """Return the default runtime."""
    from runtimes.process import ProcessRuntime  # imported only when something runs

    return ProcessRuntime()


class RuntimeHost:
    """Owner of a runtime. It enters and leaves the runtime in one task, as anyio requires."""

    def __init__(self, make: Callable[[], Runtime] = process_runtime) -> None:
        self._make = make
        self._wanted = anyio.Event()
        self._settled = anyio.Event()
        self._closed = anyio.Event()
        self._runtime: Runtime | None = None
        self._error: AgentFlowError | None = None

    async def get(self) -> Runtime:
        """Return the runtime; the first call starts it.

        :raises IsolationUnavailable: if this machine does not support the isolation.
        """
        self._wanted.set()
        await self._settled.wait()
        if self._runtime is None:
            assert self._error is not None
            raise self._error
        return self._runtime

    async def run(self) -> None:
        """Wait for the first `get`, start the runtime, and keep it until `close`."""
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
        """Stop the runtime and all its instances."""
        self._closed.set()
        self._wanted.set()
