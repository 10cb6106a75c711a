"""Programs inside a remote sandbox. They run as root, with the sandbox's own Python."""

__all__: list[str] = []
