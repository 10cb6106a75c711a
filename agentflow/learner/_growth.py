"""What is said about groups that grow as trees."""

from typing import TYPE_CHECKING

from pydantic import Field

from agentflow.settings import Section

if TYPE_CHECKING:
    from agentflow.growth import GrowthSettings

__all__ = ["GrowthRules"]


class GrowthRules(Section):
    """Groups as trees: the planner proposes several actions at once, and every leaf is an episode."""

    max_depth: int = Field(default=3, ge=1)
    """Actions from the task to the deepest leaf."""
    branching_factor: int = Field(default=2, ge=1)
    """Actions that the planner is asked for at once, above `depth_threshold`."""
    depth_threshold: int = Field(default=2, ge=0)
    """From this depth on it is asked for one."""
    merge_duplicates: bool = True
    """What it proposes twice is done once and counts twice; else it is asked for something else, as in synthesis."""
    tips: str = ""
    """Guidance for the planner."""
    task_description: str = ""
    """What the tasks are, for the planner."""

    @property
    def settings(self) -> "GrowthSettings":
        """How trees grow."""
        from agentflow.growth import GrowthSettings  # brings the sandbox along

        return GrowthSettings(
            max_depth=self.max_depth,
            branching_factor=self.branching_factor,
            depth_threshold=self.depth_threshold,
            merge_duplicates=self.merge_duplicates,
            tips=self.tips,
            seed_description=self.task_description,
        )
