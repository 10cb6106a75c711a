"""Cgroups of containers that run without a daemon, found again by name and removed."""

import contextlib
import os
import time
from collections.abc import Callable

PREFIX = "agentflow-oci-"
"""Prefix of their names; the realm and the server follow."""

_TOP = "/sys/fs/cgroup"
_TRIES = 100


def remove_dead_cgroups(prefix: str, lives: Callable[[str], bool]) -> None:
    """Remove the cgroups named after the prefix and a server that is not alive."""
    if os.path.exists(f"{_TOP}/cgroup.controllers"):
        hierarchies = [_TOP]
    else:
        hierarchies = [entry.path for entry in _folders(_TOP)]
    for hierarchy in hierarchies:
        for entry in _folders(hierarchy):
            if entry.name.startswith(prefix) and not lives(entry.name.removeprefix(prefix)):
                _remove(entry.path)


def _remove(folder: str) -> None:
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            for entry in _folders(folder):
                with contextlib.suppress(OSError):
                    os.rmdir(entry.path)
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            # Its processes are still dying.
            time.sleep(0.01)
        else:
            return


def _folders(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
