"""Package installation: the server downloads wheels without running code from them, and the session unpacks them offline."""

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

import anyio
from pydantic import Field, SecretStr

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.settings import Section
from mcp_servers.code._results import InstallResult
from mcp_servers.core._call import CallContext
from mcp_servers.core._sessions import Session
from runtimes import MIB, WORKSPACE, Instance

_PASSED_ON = frozenset(
    ("PATH", "HOME", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
)
TARGET = f"{WORKSPACE}/.packages"
WHEELS = f"{TARGET}/.wheels"

# Name, extras and version constraints only: no pip options, no URLs or paths.
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[A-Za-z0-9._, -]+\])?"
    r"\s*([<>=!~]=?=?\s*[A-Za-z0-9.*+!]+\s*(,\s*[<>=!~]=?=?\s*[A-Za-z0-9.*+!]+\s*)*)?"
)

_ADD_PATH = f"""
import sys, importlib
sys.path.insert(0, {TARGET!r}) if {TARGET!r} not in sys.path else None
importlib.invalidate_caches()
"""

# Runs inside the sandbox. Both library folders of a wheel (a zip archive) are unpacked into the target.
_UNPACK = f"""
import os, pathlib, shutil, sys, zipfile
target, wheels = pathlib.Path({TARGET!r}), pathlib.Path({WHEELS!r})
for wheel in sorted(wheels.glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    for part in target.glob("*.data/*lib"):
        shutil.copytree(part, target, dirs_exist_ok=True)
    for data in target.glob("*.data"):
        shutil.rmtree(data)
    print("installed", wheel.name)
shutil.rmtree(wheels)
"""


class InstallSettings(Section):
    """Sources and limits of `code_install`. Only the server can set them."""

    index_url: SecretStr
    """Package index for the wheels; the URL may contain a password."""
    packages: frozenset[str] | None = None
    """Packages that may be requested; by default any. Dependencies are always allowed."""
    max_bytes: int = Field(default=200 * MIB, gt=0)
    """Maximum total size of the wheels of one call."""
    timeout: float = Field(default=120.0, gt=0)
    """Time limit of the download in seconds."""


@dataclass(slots=True)
class InstalledPackages:
    """Installed packages of a session, and whether its interpreter has them on its path."""

    installed: bool = False
    """Packages have been installed."""
    on_path: bool = False
    """The live interpreter has the target on its path."""

    async def restore(self, instance: Instance) -> None:
        """Add the target to the path of a fresh interpreter."""
        if self.installed and not self.on_path:
            await instance.run("python", f"exec({_ADD_PATH!r}, {{}});")
            self.on_path = True


async def install(
    packages: list[str], allowed: InstallSettings, session: Session, context: CallContext
) -> InstallResult:
    """Download wheels of the packages and their dependencies, and unpack them in the session.

    :raises ToolFailure: `bad_arguments`, `denied`, `timeout`, `unavailable` or `failed`.
    """
    for requirement in packages:
        _check(requirement, allowed)
    instance = await session.instance()
    with tempfile.TemporaryDirectory(prefix="agentflow-wheels-") as folder:
        wheels = await _download(packages, allowed, Path(folder), context)
        for done, wheel in enumerate(wheels, 1):
            await instance.write(f"{WHEELS}/{wheel.name}", await anyio.Path(wheel).read_bytes())
            context.progress(done, len(wheels), wheel.name)
    unpacked = await instance.exec(["python3", "-c", _UNPACK])
    log = (unpacked.stdout + unpacked.stderr).decode("utf-8", "replace")
    if unpacked.exit_code != 0:
        raise ToolFailure(ErrorKind.FAILED, f"code_install: {unpacked.detail or log[-500:]}", {"log": log})
    state = session.get(InstalledPackages)
    state.installed, state.on_path = True, False
    await state.restore(instance)
    return InstallResult(wheels=[wheel.name for wheel in wheels], log=log)


def _check(requirement: str, allowed: InstallSettings) -> None:
    match = _REQUIREMENT.fullmatch(requirement.strip())
    if match is None:
        message = f"code_install: {requirement!r} is not a package name with an optional version."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if allowed.packages is not None and _normal(match["name"]) not in map(_normal, allowed.packages):
        choices = ", ".join(sorted(allowed.packages)) or "none"
        raise ToolFailure(
            ErrorKind.DENIED, f"code_install: {match['name']!r} is not allowed. Allowed: {choices}."
        )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


async def _download(
    packages: list[str], allowed: InstallSettings, folder: Path, context: CallContext
) -> list[Path]:
    options = ["--no-input", "--disable-pip-version-check", "--only-binary", ":all:"]
    options += ["--quiet", "--dest", str(folder)]
    command = [sys.executable, "-P", "-m", "pip", "download", *options, "--", *packages]
    with anyio.move_on_after(context.seconds_left(allowed.timeout)):
        done = await anyio.run_process(command, stdin=DEVNULL, check=False, env=_environment(allowed))
        if done.returncode != 0:
            raise _failure(done.stderr.decode("utf-8", "replace"), allowed)
        wheels, size = _downloaded(folder)
        if size > allowed.max_bytes:
            message = f"code_install: {size} bytes of wheels exceed the limit of {allowed.max_bytes}."
            raise ToolFailure(ErrorKind.DENIED, message)
        return wheels
    raise ToolFailure(ErrorKind.TIMEOUT, "code_install: the download timed out.")


def _environment(allowed: InstallSettings) -> dict[str, str]:
    # Not on the command line, which every user of the machine can read; pip's own settings are not used.
    passed = {name: value for name, value in os.environ.items() if name.upper() in _PASSED_ON}
    index = allowed.index_url.get_secret_value()
    return {**passed, "PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull}


def _downloaded(folder: Path) -> tuple[list[Path], int]:
    wheels = sorted(folder.glob("*.whl"))
    return wheels, sum(wheel.stat().st_size for wheel in wheels)


def _failure(log: str, allowed: InstallSettings) -> ToolFailure:
    if "No module named pip" in log:
        return ToolFailure(ErrorKind.UNAVAILABLE, "code_install: the server's Python has no pip.")
    # The index URL may contain a password.
    shown = log.replace(allowed.index_url.get_secret_value(), "the index")
    errors = [line.removeprefix("ERROR: ") for line in shown.splitlines() if line.startswith("ERROR:")]
    return ToolFailure(ErrorKind.FAILED, f"code_install: {' '.join(errors)[-500:] or shown[-500:]}")
