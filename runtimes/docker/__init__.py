"""Containers as sandboxes: made by a Docker engine, or by `runc` or gVisor's `runsc` without one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtimes.docker._instance import ContainerInstance
    from runtimes.docker._options import ContainerOptions
    from runtimes.docker._runtime import DockerRuntime

__all__ = ["ContainerInstance", "ContainerOptions", "DockerRuntime"]

_HOMES = {
    "ContainerInstance": "_instance",
    "ContainerOptions": "_options",
    "DockerRuntime": "_runtime",
}


def __getattr__(name: str) -> object:
    # The keeper inside imports this package too, with nothing but the standard library.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
