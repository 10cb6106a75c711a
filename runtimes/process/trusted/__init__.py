"""The trusted processes beside the server: warden, porter, mason and zygote.

Standard library only: they start fast, stay small, and are forked into sandboxes.
"""

__all__: list[str] = []
