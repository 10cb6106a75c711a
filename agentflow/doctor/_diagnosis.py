"""Result of a check."""

from enum import StrEnum

from msgspec import Struct, field


class DiagnosisState(StrEnum):
    """State of a checked part."""

    WORKS = "works"
    """It works."""
    PARTLY = "partly"
    """It works with the limitations in the text."""
    MISSING = "missing"
    """It does not work; the text says how to fix it."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Result of one check."""

    area: str
    """`installation`, `runtimes`, `containment`, `backends`, `models`, `networks` or `live`."""
    name: str
    """Name of the checked part."""
    state: DiagnosisState
    """State of the part."""
    text: str = field(default="", name="said")
    """Abilities of the part; or what is missing, and what to install or set."""
    variable: str = ""
    """Environment variable of a model provider that nobody has configured."""
    command: str = ""
    """Command that installs what is missing."""
