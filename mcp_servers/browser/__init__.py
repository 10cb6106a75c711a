"""The browser backend: web pages in a Chromium that is confined, by the tools of Playwright's MCP server."""

from mcp_servers.browser._backend import BrowserBackend
from mcp_servers.browser._settings import BrowserSettings

__all__ = ["BrowserBackend", "BrowserSettings"]
