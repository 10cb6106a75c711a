"""Root shell in a guest for evaluators: scripts that an image of ours runs, sent through a port that only the host has."""

import asyncio
import base64
import binascii
import shlex
import socket
from collections.abc import Sequence

import anyio

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes._protocol import ExecResult, Outcome

LONGEST_SCRIPT = 65_536
_LONGEST_ANSWER = 128 << 20
_GRACE = 20.0
_KILLED = 137
_IS_MISSING, _IS_NO_FILE = 66, 67


class GuestShell:
    """Host end of the port."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = anyio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._number = 0

    async def open(self) -> None:
        """Take over the connection."""
        self._streams = await asyncio.open_connection(sock=self._sock, limit=_LONGEST_ANSWER)

    async def ready(self) -> None:
        """Wait until the guest reports that it has booted."""
        while await self._line() != b"ready":
            pass

    async def run(self, argv: Sequence[str], timeout: float) -> ExecResult:
        """Run a command to its end.

        :raises ValueError: if the command is invalid.
        :raises RuntimeFailure: if the guest does not answer.
        """
        if not argv or not argv[0] or any("\0" in word for word in argv):
            raise ValueError("a command needs a program, and none of its arguments may contain a NUL")
        return await self._script(shlex.join(argv), timeout)

    async def read(self, path: str, timeout: float) -> bytes:
        """Return the content of a file; raise the matching `OSError`."""
        if "\0" in path:
            raise ValueError("a path must not contain a NUL")
        name = shlex.quote(path if path.startswith("/") else f"./{path}")
        script = f"[ -e {name} ] || exit {_IS_MISSING}; [ -f {name} ] || exit {_IS_NO_FILE}; cat {name}"
        result = await self._script(script, timeout)
        if result.exit_code == _IS_MISSING:
            raise FileNotFoundError(2, "no such file inside", path)
        if result.exit_code == _IS_NO_FILE:
            raise IsADirectoryError(21, "not a regular file inside", path)
        if result.exit_code:
            reason = result.stderr.decode(errors="replace").strip() or result.outcome.value
            raise OSError(5, f"cannot be read inside: {reason}", path)
        return result.stdout

    async def _script(self, script: str, timeout: float) -> ExecResult:
        text = base64.b64encode(script.encode("utf-8", "surrogateescape"))
        if len(text) > LONGEST_SCRIPT:
            raise ValueError(f"a command is limited to {LONGEST_SCRIPT * 3 // 4} bytes")
        async with self._lock:
            self._number += 1
            number = b"%d" % self._number
            assert self._streams is not None
            self._streams[1].write(b"%s %g %s\n" % (number, timeout, text))
            try:
                with anyio.fail_after(timeout + _GRACE):
                    while not (line := await self._line()).startswith(number + b" "):
                        # Rest of an answer whose request was cancelled.
                        pass
            except TimeoutError:
                raise RuntimeFailure(
                    "the guest's control shell does not answer; the guest hangs or was modified"
                ) from None
        return await anyio.to_thread.run_sync(_result, line)

    async def _line(self) -> bytes:
        assert self._streams is not None
        try:
            line = await self._streams[0].readline()
        except ValueError:
            raise RuntimeFailure("the guest's answer is too long") from None
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise InstanceGone("the machine has ended")
        return line.strip()

    def hold(self) -> anyio.Lock:
        """Return the lock that keeps commands from starting."""
        return self._lock

    def close(self) -> None:
        """Close the connection."""
        if self._streams is None:
            self._sock.close()
        else:
            self._streams[1].transport.abort()


def _result(line: bytes) -> ExecResult:
    try:
        _, code, *outputs = line.split(b" ")
        stdout, stderr = (b"" if text == b"=" else base64.b64decode(text, validate=True) for text in outputs)
        exit_code = _KILLED if code == b"late" else int(code)
    except (ValueError, binascii.Error):
        raise RuntimeFailure(
            "the guest's control shell sent a malformed answer; the guest was modified"
        ) from None
    late = code == b"late"
    return ExecResult(
        outcome=Outcome.TIMEOUT if late else Outcome.OK,
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr,
        detail="the command timed out and was killed with all its child processes" if late else "",
    )
