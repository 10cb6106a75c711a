"""Container runtimes: a Docker engine, or `runc` or gVisor's `runsc` without one. See docs/docker-runtime.md."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from runtimes.docker._instance import ContainerInstance
    from runtimes.docker._plan import ContainerOptions
    from runtimes.docker._runtime import DockerRuntime

__all__ = ["ContainerInstance", "ContainerOptions", "DockerRuntime"]


# The init process of a container imports this package with only the standard library.
_HOMES = {
    "._instance": ["ContainerInstance"],
    "._plan": ["ContainerOptions"],
    "._runtime": ["DockerRuntime"],
}
__getattr__ = lazy_exports(__name__, _HOMES)
