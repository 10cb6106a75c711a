"""Interfaces of the Linux kernel that sandboxes are built with, as plain functions."""

__all__: list[str] = []
