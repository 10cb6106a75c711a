"""What an examination finds."""

from enum import StrEnum

from msgspec import Struct

__all__ = ["Diagnosis", "DiagnosisState"]


class DiagnosisState(StrEnum):
    """Whether something works."""

    WORKS = "works"
    """It was tried, and it works."""
    PARTLY = "partly"
    """It works, but for what is said."""
    MISSING = "missing"
    """It does not work; what is said mends it."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    area: str
    """`runtimes`, `backends`, `models` or `networks`."""
    name: str
    """What it is."""
    state: DiagnosisState
    """Whether it works."""
    said: str = ""
    """What it is good for; or what is missing, and what to install or set."""
