"""Promises of isolation, and the state of each on machines that lack a mechanism.

`agentflow doctor containment` shows the table for this machine, docs/security.md for all; tests check each cell.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Lack: TypeAlias = Literal["landlock", "cgroups", "cpu-cgroup", "autogroup", "id-range"]
"""Mechanism that a machine lacks; `autogroup`: the kernel divides the CPU by session, and no cgroup limits it."""

LACKS: Final[Mapping[Lack, str]] = {
    "landlock": "no Landlock",
    "cgroups": "no cgroups",
    "cpu-cgroup": "no cgroup for the CPU",
    "autogroup": "the same, autogroup on",
    "id-range": "no range of ids",
}
"""Descriptions, the columns of the table."""

_ONE_USER = "by namespaces only: all sandboxes are the same user of the host"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainmentPromise:
    """One promise. It holds without a mechanism unless that is in `partly` or `lost`. See docs/security.md."""

    name: str
    """Short name."""
    text: str
    """The promise."""
    partly: Mapping[Lack, str] = field(default_factory=dict[Lack, str])
    """Weaker promise that holds instead, by missing mechanism."""
    lost: Mapping[Lack, str] = field(default_factory=dict[Lack, str])
    """Reason for which it does not hold, by missing mechanism."""

    def cell(self, lack: Lack) -> str:
        """Return the state without a mechanism: `holds`, `partly: …` or `no: …`."""
        if lack in self.lost:
            return f"no: {self.lost[lack]}"
        return f"partly: {self.partly[lack]}" if lack in self.partly else "holds"

    def effects(self, lacks: Collection[Lack]) -> list[str]:
        """Return the states other than `holds` of a machine that lacks these mechanisms."""
        cells = [self.cell(lack) for lack in LACKS if lack in lacks]
        return list(dict.fromkeys(cell for cell in cells if cell != "holds"))


CONTAINMENT: Final[tuple[ContainmentPromise, ...]] = (
    ContainmentPromise(
        name="host-files", text="no file of the host can be changed; only system programs can be read"
    ),
    ContainmentPromise(name="host-processes", text="no process of the host can be seen, signalled or traced"),
    ContainmentPromise(name="host-network", text="no socket, interface or address outside can be reached"),
    ContainmentPromise(
        name="privileges", text="no call configures the machine or gives a capability outside"
    ),
    ContainmentPromise(
        name="neighbours",
        text="files, memory and processes of other sandboxes can't be read or changed",
        partly={"id-range": _ONE_USER},
    ),
    ContainmentPromise(name="disk-limits", text="size and number of a sandbox's files are limited"),
    ContainmentPromise(
        name="memory-limit",
        text="the memory of a whole sandbox is limited",
        partly={"cgroups": "each process is limited, and what it keeps outside of its address space"},
    ),
    ContainmentPromise(name="process-limit", text="the number of a sandbox's processes is limited"),
    ContainmentPromise(
        name="kernel-quotas",
        text="no sandbox uses up what the kernel allows one user: inotify, timers, locked memory, message queues",
        partly={"id-range": "sandboxes share half of what the server's user may use"},
    ),
    ContainmentPromise(
        name="cpu-share",
        text="all sandboxes together weigh as much as one ordinary process on every CPU",
        lost={
            "cgroups": "each process has a share",
            "cpu-cgroup": "each process has a share",
            "autogroup": "each command has the share of a program",
        },
    ),
    ContainmentPromise(name="cleanup", text="nothing that a sandbox started outlives it or the server"),
    ContainmentPromise(
        name="live-forks",
        text="a live session can be forked into a new sandbox",
        lost={"id-range": "install the package uidmap, or run as root"},
    ),
    ContainmentPromise(
        name="root-inside",
        text="commands can run as a root that has power over its own sandbox only",
        lost={"id-range": "install the package uidmap, or run as root"},
    ),
)
"""The promises, the rows of the table."""


def containment_table() -> str:
    """Return the table of promises and missing mechanisms as Markdown, as in docs/security.md."""
    head = ["Promise", *LACKS.values()]
    rows = [
        [f"`{promise.name}`: {promise.text}", *(promise.cell(lack) for lack in LACKS)]
        for promise in CONTAINMENT
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
