"""Tests of mcp_servers.core."""
