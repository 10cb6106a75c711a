"""Where untrusted code runs. See `runtimes._protocol` for what a runtime promises, `runtimes._machine` for a machine."""

from typing import TYPE_CHECKING

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

_MACHINE = ("Button", "Machine", "MachineRuntime", "Screen", "Window")


def __getattr__(name: str) -> object:
    # The programs that build sandboxes, and those inside, import this package too, and start in milliseconds.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(
        importlib.import_module("runtimes._machine" if name in _MACHINE else "runtimes._protocol"), name
    )
