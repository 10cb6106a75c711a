"""What sandboxes are made of: the Linux kernel's own doors, as plain functions."""

__all__: list[str] = []
