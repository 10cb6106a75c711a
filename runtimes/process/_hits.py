"""How often an instance has hit its limits, read from its cgroup's own files."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from runtimes.process.linux import _cgroups


class Hits(NamedTuple):
    """Counts since the instance was made; 0 where there is no cgroup to count."""

    memory: int
    """Processes killed for lack of memory."""
    processes: int
    """Processes that were not started because there were too many."""


class LimitHits:
    """The open files of one instance's counters."""

    def __init__(self, files: Mapping[str, int]) -> None:
        self._files = dict(files)

    def read(self) -> Hits:
        """The counts now."""
        files = self._files
        try:
            return Hits(
                _cgroups.counter(files.get("oom", -1), "oom_kill"),
                _cgroups.counter(files.get("pids", -1), "max"),
            )
        except OSError:
            # The cgroup is gone, and the instance with it: whatever comes next says so.
            return Hits(0, 0)

    def close(self) -> None:
        """Let go of the files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
