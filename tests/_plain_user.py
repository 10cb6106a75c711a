"""Ordinary user of this machine, for tests that must hold without root."""

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
USER = "agentflow-test"
ENVIRONMENT = ".venv-user"
SOURCES = ("agentflow", "mcp_servers", "runtimes", "tests")


class Unavailable(Exception):
    """The user is unavailable here; the message has the reason."""


@dataclass(frozen=True, slots=True)
class PlainUser:
    """User without privileges, with an interpreter that has the project's packages."""

    name: str
    """Login name."""
    home: Path
    """Home directory."""
    python: Path
    """Interpreter that the user can run."""
    source: Path
    """Directory with the project's packages that the user can read."""

    def run(
        self, *argv: str, timeout: float = 60, input: str | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, from its home, in a clean environment."""
        clean = {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "LANG": "C.UTF-8",
            "PATH": f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(self.source),
            "PYTHONDONTWRITEBYTECODE": "1",
        } | (env or {})
        return subprocess.run(
            argv,
            cwd=self.home,
            env=clean,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
            **_identity(self.name),
        )

    def run_python(
        self, script: str, *, timeout: float = 60, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python source as this user."""
        return self.run(str(self.python), "-c", script, timeout=timeout, env=env)


@contextmanager
def plain_user() -> Generator[PlainUser]:
    """Return the user that runs the tests; as root, a user created for them.

    :raises Unavailable: if it can't be created, or has no interpreter.
    """
    if os.geteuid() != 0:
        own = pwd.getpwuid(os.geteuid())
        yield PlainUser(own.pw_name, Path(own.pw_dir), Path(sys.executable), ROOT)
        return
    if not (ROOT / ENVIRONMENT / "bin/python").exists():
        raise Unavailable(
            f"no {ENVIRONMENT}: run `make test` (it needs a Python >= 3.11 that other users can reach)"
        )
    if shutil.which("useradd") is None:
        raise Unavailable("no useradd: install the package passwd")
    with _one_at_a_time():
        home = _ensure_user()
    with _readable_sources() as place:
        yield PlainUser(USER, home, place / ENVIRONMENT / "bin/python", place)


@contextmanager
def _one_at_a_time() -> Generator[None]:
    """Hold a lock shared by every process of the suite."""
    with (ROOT / ENVIRONMENT / ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ensure_user() -> Path:
    """Create the user, with a home and a range of ids to map, unless it exists."""
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(
            ["useradd", "--create-home", "--shell", "/bin/sh", USER], check=True, capture_output=True
        )
        entry = pwd.getpwnam(USER)
    for option, table in (("--add-subuids", "/etc/subuid"), ("--add-subgids", "/etc/subgid")):
        ranges = Path(table).read_text(encoding="utf-8") if Path(table).exists() else ""
        if not any(line.startswith(f"{USER}:") for line in ranges.splitlines()):
            first = _first_free_id(ranges)
            subprocess.run(
                ["usermod", option, f"{first}-{first + 65535}", USER], check=True, capture_output=True
            )
    return Path(entry.pw_dir)


def _first_free_id(ranges: str) -> int:
    """Return the first id above every range of /etc/subuid or /etc/subgid."""
    fields = [line.split(":") for line in ranges.splitlines() if line.count(":") == 2]
    return max([100_000, *(int(first) + int(count) for _, first, count in fields)])


class _Identity(TypedDict, total=False):
    user: str
    group: int
    extra_groups: list[int]


def _identity(user: str) -> _Identity:
    """Return the arguments that make a subprocess run as that user."""
    if os.geteuid() != 0:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _can_read(path: Path) -> bool:
    return subprocess.run(["test", "-r", str(path)], check=False, **_identity(USER)).returncode == 0


@contextmanager
def _readable_sources() -> Generator[Path]:
    """Return the checkout if everybody can read it, else a copy of its packages and environment."""
    if _can_read(ROOT / ENVIRONMENT / "bin/python") and _can_read(ROOT / "agentflow"):
        yield ROOT
        return
    # Not one of pytest's directories: another run of pytest would make them unreadable.
    with tempfile.TemporaryDirectory(prefix="agentflow-plain-user-") as directory:
        place = Path(directory)
        shutil.copytree(ROOT / ENVIRONMENT, place / ENVIRONMENT, symlinks=True)
        leave_out = shutil.ignore_patterns("__pycache__", "node_modules")
        for package in SOURCES:
            shutil.copytree(ROOT / package, place / package, ignore=leave_out)
        subprocess.run(["chmod", "-R", "go+rX", directory], check=True)
        yield place
