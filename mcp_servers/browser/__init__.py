"""Browser backend: the tools of Playwright's MCP server, on web pages in a sandboxed Chromium. See docs/browser.md."""

from mcp_servers.browser._backend import BrowserBackend
from mcp_servers.browser._settings import BrowserSettings

__all__ = ["BrowserBackend", "BrowserSettings"]
