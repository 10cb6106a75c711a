"""The files backend: the files of a session's workspace."""

from mcp_servers.files._backend import FilesBackend, FilesSettings

__all__ = ["FilesBackend", "FilesSettings"]
