"""Where untrusted code runs. See `runtimes._protocol` for what a runtime promises, `runtimes._machine` for a machine."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from runtimes._machine import Button, Machine, MachineRuntime, Screen, Window
    from runtimes._protocol import (
        MIB,
        WORKSPACE,
        Capabilities,
        Display,
        ExecResult,
        FileInfo,
        Fork,
        Instance,
        InstanceSpec,
        Language,
        Limits,
        Outcome,
        OutputSink,
        PythonError,
        RunResult,
        Runtime,
        Snapshot,
        Stream,
        Usage,
    )

__all__ = [
    "MIB",
    "WORKSPACE",
    "Button",
    "Capabilities",
    "Display",
    "ExecResult",
    "FileInfo",
    "Fork",
    "Instance",
    "InstanceSpec",
    "Language",
    "Limits",
    "Machine",
    "MachineRuntime",
    "Outcome",
    "OutputSink",
    "PythonError",
    "RunResult",
    "Runtime",
    "Screen",
    "Snapshot",
    "Stream",
    "Usage",
    "Window",
]

_MACHINE = ["Button", "Machine", "MachineRuntime", "Screen", "Window"]

# Programs inside sandboxes import this package and start in milliseconds.
__getattr__ = lazy_exports(
    __name__, {"._machine": _MACHINE, "._protocol": [name for name in __all__ if name not in _MACHINE]}
)
