"""Text worlds: a built-in household, MiniGrid's rooms, any Gymnasium environment. See docs/world.md."""

from mcp_servers.world._backend import WorldBackend, WorldSettings

__all__ = ["WorldBackend", "WorldSettings"]
