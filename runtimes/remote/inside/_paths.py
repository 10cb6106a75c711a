"""Paths inside every remote sandbox."""

ROOT = "/run/agentflow"
"""Folder of the programs; only root may enter it."""
LIBRARY = f"{ROOT}/lib"
"""Source of the programs; the path that those of containers have."""
SOCKET = f"{ROOT}/socket"
"""Socket of the sandbox server."""
SPOOL = f"{ROOT}/spool"
"""Folder of the files that carry large requests and replies."""
INLINE_BYTES = 48 * 1024
"""Size up to which a request travels on a command line, and a reply on its standard output."""
SAVED_FOLDERS = ("home/agent", "tmp")
"""Folders of a snapshot."""
NO_SERVER = "!gone"
"""Answer to a request if the sandbox server has ended."""
