"""What looks into data files. It runs in the session's sandbox, never in the server: files may be anybody's."""

__all__: list[str] = []
