"""Programs that verify tasks inside a sandbox of their own; they import only the standard library."""

__all__: list[str] = []
