"""Run a server: `python -m mcp_servers BACKEND...`."""

import sys

from mcp_servers.serving._command import main

if __name__ == "__main__":
    sys.exit(main())
