"""Readers of data files. They run in the session's sandbox, never in the server, because files are untrusted."""

__all__: list[str] = []
