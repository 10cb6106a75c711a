"""What verl hands to us has no types here, for verl is not installed where types are checked."""

from typing import Any, TypeAlias

__all__ = ["Theirs"]

Theirs: TypeAlias = Any
"""Something of verl's, or for it."""
