"""What runs inside a container before anything untrusted does. Standard library only."""

__all__: list[str] = []
