"""Sandboxes of E2B and Kubernetes as instances. See docs/remote-runtimes.md."""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from runtimes.remote._instance import RemoteInstance
    from runtimes.remote._runtime import RemoteRuntime
    from runtimes.remote._service import RemoteOptions, ServiceName

__all__ = ["RemoteInstance", "RemoteOptions", "RemoteRuntime", "ServiceName"]

# The programs inside a sandbox import this package with only the standard library.
__getattr__ = lazy_exports(
    __name__,
    {
        "._instance": ["RemoteInstance"],
        "._runtime": ["RemoteRuntime"],
        "._service": ["RemoteOptions", "ServiceName"],
    },
)
