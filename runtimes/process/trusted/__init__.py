"""Trusted processes beside the server: host monitor, mount helper, sandbox init process and zygote.

Standard library only: they start fast, stay small, and are forked into sandboxes.
"""

__all__: list[str] = []
