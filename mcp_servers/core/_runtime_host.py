"""The runtime of a server: started when the first session needs it, ended with the server."""

from collections.abc import Callable

import anyio

from agentflow.errors import AgentFlowError
from runtimes import Runtime

__all__ = ["RuntimeHost", "process_runtime"]


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
