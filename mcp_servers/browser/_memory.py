"""The memory of one Chromium, bounded for all of its processes together where this user may make cgroups."""

import os
from typing import Any, Final, TypeAlias

from runtimes.process.linux import _cgroups as cgroups

__all__ = ["NO_GROUP", "Group", "half_of_the_machine", "make_group", "remove_group"]

Group: TypeAlias = dict[str, Any]
"""A group as JSON: what it takes to enter it, and to remove it."""

NO_GROUP: Final[Group] = {"doors": [], "folders": {}, "version": 0}
"""Where none was made."""
_MEMBERS = "chromium"
_COUNTED = ("memory", "")
"""The controllers that count memory: of version 1, and of version 2."""


def half_of_the_machine() -> int:
    """Half of the machine's memory, bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def make_group(realm: str, name: str, memory: int) -> Group:
    """A group whose processes may use so much together; one without doors, where none can be made."""
    hierarchies = cgroups.prepare(realm, name, idle=False)
    made = cgroups.make(hierarchies, _MEMBERS, memory, None)
    for fd in (*made.members, made.oom, made.memory, made.pids_events, made.folder):
        if fd >= 0:
            os.close(fd)
    # Only memory is shared out: a share of the processor would be that of one process, however many pages there are.
    counted = [folder for controller, folder in hierarchies.folders.items() if controller in _COUNTED]
    return {
        "doors": [f"{folder}/{_MEMBERS}/cgroup.procs" for folder in counted],
        "folders": hierarchies.folders,
        "version": hierarchies.version,
    }


def remove_group(group: Group) -> bool:
    """Remove it. Waits a little for dying processes; `False` while some are left."""
    cgroups.remove_all(cgroups.Hierarchies(group["version"], group["folders"]))
    return not any(os.path.exists(folder) for folder in group["folders"].values())
