"""Sandboxes of services as instances. See docs/remote-runtimes.md."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from runtimes.remote._daytona import DaytonaService
    from runtimes.remote._e2b import E2bService
    from runtimes.remote._instance import RemoteInstance
    from runtimes.remote._k8s import KubernetesService
    from runtimes.remote._modal import ModalService
    from runtimes.remote._runtime import RemoteRuntime
    from runtimes.remote._service import RemoteOptions, SandboxService, ServiceName

__all__ = [
    "DaytonaService",
    "E2bService",
    "KubernetesService",
    "ModalService",
    "RemoteInstance",
    "RemoteOptions",
    "RemoteRuntime",
    "SandboxService",
    "ServiceName",
]

# The programs inside a sandbox import this package with only the standard library.
__getattr__ = lazy_exports(
    __name__,
    {
        "._daytona": ["DaytonaService"],
        "._e2b": ["E2bService"],
        "._instance": ["RemoteInstance"],
        "._k8s": ["KubernetesService"],
        "._modal": ["ModalService"],
        "._runtime": ["RemoteRuntime"],
        "._service": ["RemoteOptions", "SandboxService", "ServiceName"],
    },
)
