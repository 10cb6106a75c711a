"""Programs, Python packages and driver code of a desktop."""

import compileall
import marshal
import os
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from runtimes import _framing

PROGRAMS = {"/usr/bin/Xvfb": "xvfb", "/usr/bin/openbox": "openbox", "/usr/bin/xkbcomp": "x11-xkb-utils"}
"""System programs, and the Debian packages that contain them."""
PACKAGES = ("Xlib", "PIL", "jeepney")
"""Python packages."""
_INSIDE = Path(__file__).parent / "inside"
_PREFIX = "runtimes.desktop.inside"

PYTHON = f"{sys.prefix}/bin/python3"
"""Interpreter of the driver, by its path: the agent may put another one first in `PATH`."""

BOOTSTRAP = (_INSIDE / "_bootstrap.py").read_text(encoding="utf-8")
"""Source of the bootstrap program."""


def missing_parts() -> list[str]:
    """List the missing_parts parts, one line each with the command that installs it."""
    packages = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    found = (
        [f"install {' '.join(packages)} (Debian, Ubuntu: apt-get install {' '.join(packages)})"]
        if packages
        else []
    )
    if any(find_spec(name) is None for name in PACKAGES):
        found.append("install agentflow's extra `desktop` (pip install 'agentflow[desktop]')")
    return found


@cache
def payload() -> bytes:
    """Return the compiled driver, cached, with the directories of its libraries."""
    modules = {"runtimes": b"", "runtimes.desktop": b"", _PREFIX: b""}
    sources = {"runtimes._framing": Path(_framing.__file__)}
    for path in sorted(_INSIDE.glob("*.py")):
        if path.stem not in ("__init__", "_bootstrap"):
            sources[f"{_PREFIX}.{path.stem}"] = path
    for name, path in sources.items():
        modules[name] = marshal.dumps(compile(path.read_text(encoding="utf-8"), f"<{name}>", "exec"))
    return marshal.dumps((_library_folders(), modules, f"{_PREFIX}._driver"))


def _library_folders() -> list[str]:
    folders: dict[str, None] = {}
    for name in ("Xlib", "six", "PIL", "jeepney"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        place = Path(spec.origin)
        if place.name == "__init__.py":
            place = place.parent
            if name != "PIL":
                # The instance shows them read-only, so every desktop would compile them again.
                compileall.compile_dir(os.fspath(place), quiet=2)
        folders[os.fspath(place.parent)] = None
    return list(folders)
