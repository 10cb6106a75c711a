"""Tests of mcp_servers.serving."""
