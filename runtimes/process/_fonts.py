"""Matplotlib's list of fonts, made once per machine.

Making it takes matplotlib seconds, and after five of them it says so on stderr. A sandbox starts without files of
earlier ones, so each would make its own: it gets a copy instead.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_PATTERN = "fontlist-v*.json"
_MAKE_SECONDS = 120.0


def font_list() -> Path | None:
    """Return matplotlib's list of fonts, which is made if this user has none; `None` without matplotlib.

    Fonts in the user's home are left out: sandboxes do not see them.
    """
    try:
        version = importlib.metadata.version("matplotlib")
        folder = _cache_folder(version)
        if not (lists := sorted(folder.glob(_PATTERN))):
            _make(folder)
            lists = sorted(folder.glob(_PATTERN))
    except (importlib.metadata.PackageNotFoundError, OSError, RuntimeError, subprocess.SubprocessError):
        # Without matplotlib, a home, or room in it: then sandboxes make their own lists.
        return None
    return lists[-1] if lists else None


def _cache_folder(version: str) -> Path:
    """Return the folder of the list: its content depends on matplotlib's files, too."""
    home = os.environ.get("XDG_CACHE_HOME")
    name = hashlib.sha256(f"{sys.prefix} {version}".encode()).hexdigest()[:16]
    return (Path(home) if home else Path.home() / ".cache") / "agentflow" / "fonts" / name


def _make(folder: Path) -> None:
    """Let matplotlib make the list; another process may do the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        subprocess.run(
            [sys.executable, "-I", "-c", "import matplotlib.font_manager"],
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": draft, "MPLCONFIGDIR": draft},
            cwd=draft,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAKE_SECONDS,
            check=True,
        )
        for made in Path(draft).glob(_PATTERN):
            made.replace(folder / made.name)
