"""Trusted programs inside a container. Standard library only."""

__all__: list[str] = []
