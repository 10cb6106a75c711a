"""Results of the world tools."""

from mcp_servers.core._call import Output


class WorldObservation(Output):
    """Observation and legal actions."""

    task: str
    """Task in words."""
    observation: str
    """Observation in words."""
    actions: list[str]
    """Legal actions; empty at the end, and if actions are not enumerable: see `action_format`."""
    action_format: str | None
    """Format of an action, if there is no list of them."""
    reward: float
    """Reward of the last action."""
    total_reward: float
    """Sum of all rewards."""
    steps: int
    """Number of actions taken."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; null if the environment does not report it."""


class WorldProgress(Output):
    """Progress of an episode."""

    env: str
    """Environment."""
    seed: int
    """Seed: the same seed and actions lead to the same state."""
    task: str
    """Task in words."""
    history: list[str]
    """Actions taken, in order."""
    steps: int
    """Number of actions."""
    total_reward: float
    """Sum of the rewards."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; null if the environment does not report it."""
    digest: str
    """Hash of the whole state: equal in two sessions whose worlds are equal."""
