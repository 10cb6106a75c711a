"""Commands on a desktop. What one leaves running in the background goes on, as on any computer."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

__all__ = ["run"]


def run(
    argv: Sequence[str], environment: Mapping[str, str], seconds: float | None, most: int
) -> tuple[bool, int, bytes, bytes]:
    """Run a command to its end: whether its time was up, its status, and the beginning of its output and errors.

    Output goes to files: who stays in the background may keep a pipe open for ever.
    """
    with tempfile.TemporaryFile(dir="/tmp") as out, tempfile.TemporaryFile(dir="/tmp") as err:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
        )
        late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        code = process.returncode
        return late, code if code >= 0 else 128 - code, _beginning(out, most), _beginning(err, most)


def _beginning(file: IO[bytes], most: int) -> bytes:
    file.seek(0)
    return file.read(most)
