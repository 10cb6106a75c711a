"""Docker engine of the suite: private sockets and folders; it ends with its owner."""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Dockerd", "dockerd"]

_READY = "API listen on"


@dataclass(frozen=True, slots=True)
class Dockerd:
    """A running engine."""

    socket: Path
    """Its socket."""

    def docker(self, *words: str) -> str:
        """Return the output of the command-line client."""
        command = ["docker", "--host", f"unix://{self.socket}", *words]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()


@contextmanager
def dockerd() -> Generator[Dockerd]:
    """Start an engine; it ends with all its containers and images."""
    with tempfile.TemporaryDirectory(prefix="dockerd-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with subprocess.Popen(
            [
                # In its own mount namespace: other tests look at the machine's mounts.
                *("unshare", "--mount", "--propagation", "slave"),
                # It also ends when the suite is killed.
                *("setpriv", "--pdeathsig", "TERM", "dockerd"),
                *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
                *("--pidfile", str(folder / "pid"), "--host", f"unix://{folder / 'docker.sock'}"),
                *("--iptables=false", "--ip6tables=false", "--bridge=none"),
                *("--storage-driver", "overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            start_new_session=True,
        ) as process:
            try:
                yield _ready(process, folder)
            finally:
                process.terminate()
                process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _ready(process: subprocess.Popen[str], folder: Path) -> Dockerd:
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if _READY in line:
            _keep_reading(process)
            return Dockerd(folder / "docker.sock")
    raise RuntimeError("dockerd did not start: " + "".join(said[-5:]))


def _keep_reading(process: subprocess.Popen[str]) -> None:
    """Drain its output: a full pipe would block the engine."""
    assert process.stderr is not None
    threading.Thread(target=process.stderr.read, daemon=True).start()
