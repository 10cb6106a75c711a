"""How an episode goes."""

from typing import Literal

from pydantic import Field

from agentflow.settings import Section

__all__ = ["EpisodeSettings"]


class EpisodeSettings(Section):
    """How a task is worked on, by a team or by a single agent. An episode that hits a limit still answers."""

    max_turns: int = Field(default=10, ge=0)
    """Turns at most; 0: it is answered from what the model knows. Three are usual in training."""
    max_seconds: float = Field(default=300.0, gt=0)
    """How long it may take, the answer counted: what is in flight then is given up."""
    answer_seconds: float = Field(default=30.0, ge=0)
    """How much of that is kept for the answer; never more than half."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens read and written, from which on it only answers."""
    max_cost: float | None = Field(default=None, gt=0)
    """Money, in the currency of the prices, from which on it only answers."""
    memory_chars: int = Field(default=24_000, ge=1_000)
    """Characters of memory that roles are shown; beyond them the oldest turns are put in short."""
    verify: Literal["separate", "merged"] = "separate"
    """Who says whether memory answers the question: the verifier, or the planner together with the next step."""
    instructions: str = ""
    """The user's own words at the head of the planner's or the agent's prompt."""
