"""Web backend: web search, reading of pages, and Wikipedia. See docs/web.md."""

from mcp_servers.web._backend import WebBackend
from mcp_servers.web._http import Network
from mcp_servers.web._settings import CacheSettings, ReadingSettings, WebSettings

__all__ = ["CacheSettings", "Network", "ReadingSettings", "WebBackend", "WebSettings"]
