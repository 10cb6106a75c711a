"""Settings of the attempts by which difficulty is measured."""

from pydantic import Field, model_validator

from agentflow.settings import Section


class DifficultySettings(Section):
    """Attempts by which the difficulty of a question is measured."""

    attempts: int = Field(default=0, ge=0, le=64)
    """Number of attempts at each question; 0: its difficulty is not measured."""
    window: tuple[float, float] = (0.25, 0.75)
    """Share of right attempts that a question must have, from the least to the most."""
    max_turns: int = Field(default=6, ge=1)
    """Maximum number of turns of an attempt."""

    @model_validator(mode="after")
    def _ordered(self) -> "DifficultySettings":
        low, high = self.window
        if not 0 <= low <= high <= 1:
            raise ValueError("window: give two shares from 0 to 1, the smaller first")
        return self
