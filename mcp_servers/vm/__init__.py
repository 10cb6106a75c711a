"""The vm backend: a screen to look at, a pointer and a keyboard to act with."""

from mcp_servers.vm._backend import VmBackend
from mcp_servers.vm._settings import DesktopSettings, VmSettings

__all__ = ["DesktopSettings", "VmBackend", "VmSettings"]
