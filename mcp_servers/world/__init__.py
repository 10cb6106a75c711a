"""Worlds to act in, told in words: a household of our own, MiniGrid's rooms, any Gymnasium environment."""

from mcp_servers.world._backend import WorldBackend
from mcp_servers.world._settings import WorldSettings

__all__ = ["WorldBackend", "WorldSettings"]
