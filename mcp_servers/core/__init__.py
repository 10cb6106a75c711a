"""Tools, backends, sessions and the tool table that every entry point calls."""

__all__: list[str] = []
