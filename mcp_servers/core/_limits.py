"""What a tool table allows."""

from dataclasses import dataclass

__all__ = ["TableLimits"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """Limits of a tool table and its sessions. `None`: no limit of that kind."""

    sessions: int | None = 1024
    """Sessions alive at once; one more is refused as `busy`."""
    idle_seconds: float | None = 1800.0
    """A session that nobody uses ends after this long (where expiry runs: on servers)."""
    call_seconds: float | None = None
    """The longest that any call may take, whatever it asks for."""
    kept_bytes: int = 32 * MIB
    """Whole outputs and pictures kept per session."""
    end_seconds: float = 10.0
    """Time for each backend of a session to clean up when it ends, and for its instance to stop."""
