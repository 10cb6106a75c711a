"""Settings of the world backend."""

from fnmatch import fnmatchcase
from typing import Final

from pydantic import Field

from agentflow.settings import Section

__all__ = ["HOUSEHOLD", "WorldSettings"]

HOUSEHOLD: Final = "agentflow/household-v0"
"""The name of the household."""


class WorldSettings(Section):
    """Settings of the world backend."""

    environments: list[str] = Field(default=[HOUSEHOLD, "BabyAI-*"])
    """The environments that there are, by their Gymnasium ids; `*` and `?` stand for any text, but none that names a
    module (`module:Name-v0`), which must be listed as it is."""
    arguments: dict[str, object] = Field(default_factory=dict[str, object])
    """Arguments that each environment is made with, but for the household."""
    pictures: bool = False
    """Show a picture with each observation, where the environment can draw one."""
    env: str = HOUSEHOLD
    """The environment of a session that asks for none."""
    seed: int = Field(default=0, ge=0)
    """The seed of a session's first episode; each further one that asks for none has the next number."""
    task: str | None = None
    """The kind of task of a session that asks for none; without it the seed decides."""
    steps: int | None = Field(default=None, ge=1)
    """Actions that an episode has; by default as many as its environment says, and 100 in the household."""

    def allows(self, env: str) -> bool:
        """Whether there is an environment of that id."""
        return env in self.environments or (
            ":" not in env and any(fnmatchcase(env, pattern) for pattern in self.environments)
        )
