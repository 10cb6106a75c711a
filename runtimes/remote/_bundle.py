"""Archive of the programs that run inside a remote sandbox: this project's, and the libraries they import."""

import importlib.util
import io
import tarfile
from functools import cache
from pathlib import Path

from runtimes.remote.inside._paths import LIBRARY

_PROJECT = Path(__file__).parents[2]
_FOLDERS = ("runtimes/docker", "runtimes/egress", "runtimes/process", "runtimes/remote/inside")
_FILES = (
    "agentflow/__init__.py",
    "agentflow/_secrets.py",
    "agentflow/_terminal.py",
    "agentflow/_typeguards.py",
    "agentflow/errors.py",
    "agentflow/extras.py",
    "runtimes/remote/__init__.py",
)
_LIBRARIES = ("anyio", "idna", "sniffio", "typing_extensions")
"""Pure Python. anyio imports the others, depending on its version."""

_BOOT = f"import sys; sys.path.insert(0, {LIBRARY!r}); from runtimes.remote.inside._start import main; main()"


@cache
def bundle() -> bytes:
    """Return the archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
        sources = [_PROJECT / name for name in _FILES] + sorted((_PROJECT / "runtimes").glob("*.py"))
        for folder in _FOLDERS:
            sources += sorted(
                path for path in (_PROJECT / folder).rglob("*") if path.suffix in (".py", ".bash")
            )
        for path in sources:
            archive.add(path, str(path.relative_to(_PROJECT)), filter=_anonymous)
        for name in _LIBRARIES:
            _add_library(archive, name)
    return out.getvalue()


def _add_library(archive: tarfile.TarFile, name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return
    origin = Path(spec.origin)
    sources = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
    parent = origin.parent.parent if spec.submodule_search_locations else origin.parent
    for path in sources:
        archive.add(path, str(path.relative_to(parent)), filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the names and ids of this machine."""
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mode = 0o644
    return info


def unpack_command(archive: str) -> str:
    """Return the shell command that unpacks the archive and prints `python` if its interpreter is usable."""
    return (
        f"mkdir -p {LIBRARY} && tar -xzf {archive} -C {LIBRARY} && rm -f {archive} && chmod -R a+rX {LIBRARY} && "
        "command -v bash >/dev/null && python3 -I -c 'import sys; print(sys.version_info >= (3, 11))'"
    )


def program_command(program: str, argument: str) -> str:
    """Return the shell command that runs a program of `runtimes.remote.inside._start`.

    :param argument: text without quotes.
    """
    return f'python3 -I -c "{_BOOT}" {program} {argument}'
