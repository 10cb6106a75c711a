"""Entry points of a tool table: stdio, HTTP, worker processes, the command line."""

__all__: list[str] = []
