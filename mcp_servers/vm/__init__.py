"""Machine backend: screenshots, pointer and keyboard. See docs/machines.md."""

from mcp_servers.vm._backend import VmBackend
from mcp_servers.vm._settings import DesktopSettings, VmSettings

__all__ = ["DesktopSettings", "VmBackend", "VmSettings"]
