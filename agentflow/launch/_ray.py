"""Workers on the machines of a Ray cluster: one actor on each, which Ray places and restarts."""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import anyio
import anyio.to_thread

from agentflow._terminal import printable
from agentflow.errors import ConfigurationError, error_line
from agentflow.extras import missing_extra
from agentflow.launch._status import POLL_SECONDS
from agentflow.launch._workers import LocalWorkers, WorkerCommand, WorkerEnd
from agentflow.telemetry import get_logger

logger = get_logger(__name__)

CONNECT_SECONDS: Final = 10.0
"""Time in which the cluster must accept a connection."""
_CONNECTIONS: Final = 3
"""Times that a connection is tried if the cluster accepts it and can't serve it."""
_SHARE: Final = 0.001
"""Share of a machine's own resource in Ray, which places an actor on it, also after it was away."""


class _HostWorkers:
    """Ray actor: the workers of one machine. Ray restarts it with its machine, and calls `run` again."""

    def __init__(self, command: WorkerCommand, number: int) -> None:
        self._workers = LocalWorkers(command, number)

    async def run(self) -> Sequence[WorkerEnd]:
        """Run them to their ends."""
        return await self._workers.run()

    async def stop(self) -> None:
        """Stop them in order."""
        self._workers.stop()


@dataclass(frozen=True)
class _Placed:
    """Actor of a machine, and the reply that it owes."""

    actor: Any
    reply: Any


class RayWorkers:
    """Workers on all machines of a Ray cluster; machines may join and leave meanwhile.

    Example::

        ends = await RayWorkers("ray://10.0.0.1:10001", command, 1).run()
    """

    def __init__(
        self,
        address: str,
        command: WorkerCommand,
        number: int,
        *,
        working_dir: str | None = None,
        label: tuple[str, str] | None = None,
        max_machines: int | None = None,
    ) -> None:
        """:param address: `ray://HOST:PORT`, `HOST:PORT` or `auto`.
        :param number: number of run processes on each machine.
        :param working_dir: folder that Ray copies to each machine.
        :param label: name and value of a label; only machines with it are used.
        :param max_machines: maximum number of machines with workers; `None`: all.
        :raises ConfigurationError: if Ray is not installed.
        """
        if find_spec("ray") is None:
            raise ConfigurationError(missing_extra("--on: Ray", "ray"))
        self.stopping = False
        """They were asked to stop, or one of them has failed."""
        self._ray: Any = None
        self._address = address
        self._command = command
        self._number = number
        self._working_dir = working_dir
        self._label = label
        self._max_machines = max_machines
        self._placed: dict[str, _Placed] = {}
        self._ends: list[WorkerEnd] = []
        self._stops = 0
        self._sent = 0

    @property
    def active(self) -> int:
        """Number of machines with workers."""
        return len(self._placed)

    def stop(self) -> None:
        """Stop all in order; called again, they do not wait for calls in flight."""
        self.stopping = True
        self._stops += 1

    async def run(self) -> Sequence[WorkerEnd]:
        """Run workers on each machine until all have ended. After a failure the others are stopped.

        :raises ConfigurationError: if the cluster can't be reached.
        """
        # Not in the main thread: there Ray would replace the handlers of signals.
        await anyio.to_thread.run_sync(self._connect)
        try:
            while not await anyio.to_thread.run_sync(self._step):
                pass
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._ray.shutdown)
        return self._ends

    def _connect(self) -> None:
        shown = printable(" ".join(self._address.split()))[:200]
        host, colon, port = self._address.removeprefix("ray://").rpartition(":")
        try:
            # Ray would wait for minutes.
            if colon:
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError, ValueError) as error:
            raise ConfigurationError(f"--on {shown}: the Ray cluster can't be reached: {error}") from None
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Each try takes 40 seconds, and by default there are 20. A server that is no Ray cluster accepts a connection, too.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
        self._ray = import_module("ray")
        # It would warn that this is not the main thread.
        logging.getLogger("ray").setLevel(logging.ERROR)
        environment = {} if self._working_dir is None else {"working_dir": self._working_dir}
        for left in reversed(range(_CONNECTIONS)):
            try:
                self._ray.init(
                    address=self._address,
                    runtime_env=environment,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    configure_logging=False,
                )
                return
            except Exception as error:  # boundary: Ray raises many types
                # So Ray reports that the process which its head starts for each client ended at once.
                if isinstance(error, ConnectionAbortedError) and left:
                    logger.warning("ray client server did not start", error=error_line(error))
                    continue
                raise ConfigurationError(
                    f"--on {shown}: the Ray cluster can't be reached: {error_line(error)}"
                ) from error

    def _step(self) -> bool:
        """Place workers on new machines and collect ends; return true once all have ended."""
        machines = self._machines()
        if not self.stopping and not self._ends:
            for host in self._joining(machines):
                self._placed[host] = self._start_worker(host)
                logger.info("host joined", host=host)
        # Ray would restart those of a machine that is away, but nobody waits for it.
        live = {host: placed for host, placed in self._placed.items() if host in machines}
        if self._sent < self._stops:
            self._sent += 1
            for placed in live.values():
                placed.actor.stop.remote()
        if not live:
            return bool(self._ends) or self.stopping
        replies = [placed.reply for placed in live.values()]
        ready, _ = self._ray.wait(replies, num_returns=1, timeout=POLL_SECONDS)
        for host in [host for host, placed in live.items() if placed.reply in ready]:
            self._collect(host, self._placed.pop(host))
        return bool(self._ends) and not live.keys() & self._placed.keys()

    def _joining(self, machines: set[str]) -> list[str]:
        """Return the machines that get workers now."""
        free = sorted(machines - self._placed.keys())
        return free if self._max_machines is None else free[: self._max_machines - len(self._placed)]

    def _machines(self) -> set[str]:
        """Return the addresses of the living machines that may be used."""
        nodes: list[Mapping[str, Any]] = self._ray.nodes()
        return {str(node["NodeManagerAddress"]) for node in nodes if node["Alive"] and self._is_wanted(node)}

    def _is_wanted(self, node: Mapping[str, Any]) -> bool:
        if self._label is None:
            return node["Resources"].get("CPU", 0) >= 1
        name, value = self._label
        return node.get("Labels", {}).get(name) == value

    def _start_worker(self, host: str) -> _Placed:
        options = self._ray.remote(_HostWorkers).options(
            num_cpus=1,
            resources={f"node:{host}": _SHARE},
            max_restarts=-1,
            max_task_retries=-1,
        )
        command = self._command
        if command.shares_journal:
            command = replace(command, words=(*command.words, f"host_name={host}"))
        actor = options.remote(command, self._number)
        return _Placed(actor, actor.run.remote())

    def _collect(self, host: str, placed: _Placed) -> None:
        try:
            ends: Sequence[WorkerEnd] = self._ray.get(placed.reply)
        except Exception as error:  # boundary: Ray raises many types, and any that the actor raised
            ends = [WorkerEnd(1, error_line(error))]
        for end in ends:
            message = f"{host}: {end.message}" if end.status in (1, 2) else end.message
            self._ends.append(end._replace(message=message))
            if end.status in (1, 2):
                self.stop()
