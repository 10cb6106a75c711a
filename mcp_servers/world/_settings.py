"""Settings of the world backend."""

from fnmatch import fnmatchcase

from pydantic import Field

from agentflow.settings import Section
from mcp_servers.world.household import HOUSEHOLD


class WorldSettings(Section):
    """Settings of the world backend."""

    environments: list[str] = Field(default=[HOUSEHOLD, "BabyAI-*"])
    """Offered environments, by Gymnasium id; `*` and `?` are wildcards, except for ids that name a module
    (`module:Name-v0`), which must be listed literally.
    """
    arguments: dict[str, object] = Field(default_factory=dict[str, object])
    """Arguments for creating each environment except the household."""
    pictures: bool = False
    """Show a picture with each observation, if the environment can render one."""
    env: str = HOUSEHOLD
    """Default environment of a session."""
    seed: int = Field(default=0, ge=0)
    """Seed of a session's first episode; each further episode without a seed uses the next number."""
    task: str | None = None
    """Default kind of task; without it the seed decides."""
    steps: int | None = Field(default=None, ge=1)
    """Maximum number of actions; the default is the environment's own, and 100 in the household."""
    evaluate: bool = False
    """Offer `world_inspect`, which shows what is hidden from the agent."""

    def allows(self, env: str) -> bool:
        """Return true if the environment is offered."""
        return env in self.environments or (
            ":" not in env and any(fnmatchcase(env, pattern) for pattern in self.environments)
        )
