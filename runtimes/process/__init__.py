"""Sandboxes made of namespaces: the default runtime. Linux, no daemon, no root needed."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from runtimes.process._containment import CONTAINMENT, LACKS, ContainmentPromise, Lack, containment_table
    from runtimes.process._instance import ProcessInstance
    from runtimes.process._probe import missing
    from runtimes.process._runtime import PRELOAD, ProcessRuntime

__all__ = [
    "CONTAINMENT",
    "LACKS",
    "PRELOAD",
    "ContainmentPromise",
    "Lack",
    "ProcessInstance",
    "ProcessRuntime",
    "containment_table",
    "missing",
]


# The trusted processes import this package and must stay small.
_HOMES = {
    "._containment": ["CONTAINMENT", "LACKS", "ContainmentPromise", "Lack", "containment_table"],
    "._instance": ["ProcessInstance"],
    "._probe": ["missing"],
    "._runtime": ["PRELOAD", "ProcessRuntime"],
}
__getattr__ = lazy_exports(__name__, _HOMES)
