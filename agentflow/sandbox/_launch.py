"""Starting a server on this machine if none answers, and stopping it with its user."""

import json
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import IO
from urllib.parse import urlsplit

import anyio

from agentflow._import_path import module_command
from agentflow._loopback import is_loopback
from agentflow.actors import ChildSpec, Hosted, Process, Restart, StartFailed, Supervisor
from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox._settings import SandboxSettings
from mcp_servers import BACKENDS
from mcp_servers.serving import token_path

POLL_SECONDS = 0.02
STOP_SECONDS = 20.0
"""Seconds for a server to end its sessions."""
ADDRESS_PORT = {"http": 80, "https": 443}


def local_token(url: str) -> str | None:
    """Return the token that this user's server on this machine has written to its file, if any."""
    host, port = _address(url)
    path = token_path(port)
    return path.read_text(encoding="utf-8").strip() if is_loopback(host) and path.is_file() else None


class ServerLauncher:
    """Server of our own for an address, unless another process serves there."""

    def __init__(self, url: str, settings: SandboxSettings) -> None:
        self._host, self._port = _address(url)
        self._url = url
        self._settings = settings
        self._hosted: Hosted[None] | None = None

    async def ensure(self) -> None:
        """Ensure that a server answers: start one if necessary.

        :raises ToolFailure: `unavailable`, if no server can be started there.
        """
        if await self._answers():
            return
        if not is_loopback(self._host):
            message = f"no server answers at {self._url}, and one can be started on this machine only."
            raise ToolFailure(ErrorKind.UNAVAILABLE, message)
        hosted = Hosted(self._serve)
        try:
            await hosted.open()
        except ToolFailure:
            # Another process may have been faster and hold the port now.
            if not await self._answers():
                raise
        else:
            self._hosted = hosted

    async def close(self) -> None:
        """Stop the server, if it is ours."""
        if self._hosted is not None:
            await self._hosted.close()

    @asynccontextmanager
    async def _serve(self) -> AsyncGenerator[None]:
        with tempfile.TemporaryFile() as log:

            def server() -> Process:
                return Process(self._command(), env=self._environment(), stderr=log, ready=self._ready)

            spec = ChildSpec(
                id="tool server",
                start=server,
                restart=Restart.TRANSIENT,
                shutdown=STOP_SECONDS,
                start_timeout=self._settings.start_seconds,
            )
            try:
                async with Supervisor([spec]):
                    yield
            except StartFailed as error:
                message = f"no server could be started at {self._url}: {_last_line(log) or error}"
                raise ToolFailure(ErrorKind.UNAVAILABLE, message) from error

    def _command(self) -> list[str]:
        command = [*module_command("mcp_servers"), "--http", f"{self._host}:{self._port}"]
        config = self._settings.server_config
        return command if config is None else [*command, "--config", str(config)]

    def _environment(self) -> dict[str, str]:
        """Write the server's settings to a private file: they may contain secrets, and any user can read a command line."""
        settings = self._settings
        values: dict[str, object] = {"log_level": "warning"}
        if settings.token is not None:
            values["token"] = settings.token.get_secret_value()
        if settings.server_config is None:
            names = settings.backend_names or list(BACKENDS)
            values["backends"] = {name: settings.backend_settings.get(name, {}) for name in names}
            values["warmup"] = settings.warmup_names
            limits, env, mounts = asdict(settings.limits), settings.env, settings.mounts
            network = None if settings.network is None else asdict(settings.network)
            values["sessions"] = {"limits": limits, "env": env, "mounts": mounts, "network": network}
            chosen = settings.runtime
            values["runtime"] = (
                chosen if isinstance(chosen, str) else chosen.model_dump(mode="json", exclude_unset=True)
            )
        words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        return {**os.environ, **{f"AGENTFLOW_SERVER_{key.upper()}": word for key, word in words.items()}}

    async def _ready(self) -> None:
        """Wait for the first answer: the server accepts connections earlier, and its token file exists only then."""
        request = f"GET /health HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nConnection: close\r\n\r\n"
        while True:
            try:
                async with await anyio.connect_tcp(self._host, self._port) as stream:
                    await stream.send(request.encode())
                    await stream.receive()
                    return
            except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
                await anyio.sleep(POLL_SECONDS)

    async def _answers(self) -> bool:
        try:
            stream = await anyio.connect_tcp(self._host, self._port)
        except OSError:
            return False
        await stream.aclose()
        return True


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or ADDRESS_PORT.get(parts.scheme, 80)


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
