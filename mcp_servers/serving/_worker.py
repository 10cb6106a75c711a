"""A worker of a server: an ordinary server on a Unix socket, which gets its settings on standard input."""

import os
import signal
import socket
import sys

import anyio
import msgspec

from agentflow.errors import AgentFlowError, ConfigurationError
from agentflow.telemetry import start_tracing
from mcp_servers.core._runtimes import RuntimeHost, runtime_maker
from mcp_servers.serving._http import HttpServer, listen_unix
from mcp_servers.serving._settings import ServerSettings, make_table, set_up_logging
from mcp_servers.serving._workers import WorkerStart, WorkerState


class ServerWorker:
    """Serves until its front process is gone or a signal arrives."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    async def run(self) -> int:
        """Serve. Return the exit status."""
        with self._control.makefile("rb") as lines:
            line = await anyio.to_thread.run_sync(lines.readline, abandon_on_cancel=True)
        if not line:
            return 0
        start = msgspec.json.decode(line, type=WorkerStart)
        settings = ServerSettings.model_validate(start.settings)
        set_up_logging(settings.log_level)
        start_tracing(service="agentflow-tools")
        runtime = RuntimeHost(runtime_maker(settings.runtime, settings.sessions.spec()))
        status = 0
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.run)
            try:
                await self._serve(settings, start.tokens, runtime)
            except AgentFlowError as error:
                self._tell(
                    WorkerState(refusal=str(error), configuration=isinstance(error, ConfigurationError))
                )
                status = 1
            finally:
                runtime.close()
        return status

    async def _serve(
        self, settings: ServerSettings, tokens: dict[str, str] | None, runtime: RuntimeHost
    ) -> None:
        assert settings.socket is not None, "a worker listens on a Unix socket"
        table, warmup = make_table(settings, runtime)
        try:
            with listen_unix(settings.socket) as listener:
                server = HttpServer(table, settings.http_options(tokens), listener)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._stop_on_signal, server)
                    await server.serve(warmup=warmup, waiting=lambda names: self._tell(WorkerState([*names])))
                    group.cancel_scope.cancel()
        finally:
            await table.close()

    def _tell(self, state: WorkerState) -> None:
        self._control.sendall(msgspec.json.encode(state) + b"\n")

    async def _stop_on_signal(self, server: HttpServer) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            await anext(signals)
            server.stop()


def main() -> int:
    """Serve, controlled by standard input. Return the exit status."""
    control = socket.socket(fileno=os.dup(0))
    # Code in this process and its children must not use the connection.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return anyio.run(ServerWorker(control).run)


if __name__ == "__main__":
    sys.exit(main())
