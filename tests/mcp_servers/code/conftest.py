from tests.mcp_servers.live import live, runtime

__all__ = ["live", "runtime"]
