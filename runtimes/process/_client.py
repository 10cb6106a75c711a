"""Client of the host monitor: starts the trusted processes, sends requests, ends them."""

import asyncio
import contextlib
import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agentflow.errors import IsolationUnavailable, RuntimeFailure
from runtimes.process._channel import RequestChannel
from runtimes.process.trusted import _server_folder, _wire

_HERE = Path(__file__).parent
_START = "import sys; sys.path.insert(0, {root!r}); from runtimes.process.trusted._host_monitor import main; main({fds})"


class HostMonitorClient(RequestChannel):
    """The trusted processes of one runtime and the requests in flight."""

    async def start(self, preload: Sequence[str], *, idle: bool) -> None:
        """Start the host monitor and wait for the sandbox init process.

        :raises IsolationUnavailable: if sandboxes can't be isolated on this machine.
        """
        # A session needs three descriptors: the usual soft limit of 1024 would allow about 300 sessions.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        ours, theirs = _wire.socket_pair()
        alive_read, self._alive = os.pipe2(os.O_CLOEXEC)
        folder = os.path.join(_server_folder.parent_folder(), secrets.token_hex(6))
        program = _START.format(root=str(_HERE.parent.parent), fds=f"{theirs.fileno()}, {alive_read}")
        self._process = _start_program(program, (theirs.fileno(), alive_read))
        theirs.close()
        os.close(alive_read)
        _wire.send(
            ours,
            {
                "folder": folder,
                "path": os.environ.get("PATH", os.defpath),
                "preload": list(preload),
                "idle": idle,
                "shell_driver": (_HERE / "inside" / "_shell.bash").read_text(encoding="utf-8"),
                "shell_entry": (_HERE / "inside" / "_shell_entry.bash").read_text(encoding="utf-8"),
            },
        )
        try:
            await self.open(ours)
        except RuntimeFailure as error:
            raise IsolationUnavailable(f"the sandboxes' processes did not start: {error}") from error
        if not self.facts["started"]:
            await self.close()
            raise IsolationUnavailable(self.facts["error"])

    async def close(self) -> None:
        """End every sandbox and wait for the end of the trusted processes."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
        self.hang_up()
        waiting = self._loop.run_in_executor(None, self._process.wait)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)
        if not waiting.done():
            await waiting


def _start_program(program: str, fds: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start an interpreter that inherits only two descriptors."""
    return subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        pass_fds=fds,
        env={"LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
