"""Sandboxes made of namespaces: the default runtime. Linux, no daemon, no root needed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtimes.process._instance import ProcessInstance
    from runtimes.process._probe import missing
    from runtimes.process._runtime import PRELOAD, ProcessRuntime

__all__ = ["PRELOAD", "ProcessInstance", "ProcessRuntime", "missing"]

_HOMES = {
    "PRELOAD": "_runtime",
    "ProcessInstance": "_instance",
    "ProcessRuntime": "_runtime",
    "missing": "_probe",
}


def __getattr__(name: str) -> object:
    # The trusted processes import this package too, and must stay small: nothing is loaded before it is asked for.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
