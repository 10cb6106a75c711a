"""What the tools of the world backend return."""

from mcp_servers.core._call import Output

__all__ = ["Progress", "Seen"]


class Seen(Output):
    """What there is to see, and what can be done."""

    task: str
    """What is to be done, in words."""
    observation: str
    """What can be seen now, in words."""
    actions: list[str]
    """What can be done now; empty at the end, and where actions are no list: then `action_format` says how they look."""
    action_format: str | None
    """How an action is written, where there is no list of them."""
    reward: float
    """What the last action was worth."""
    total_reward: float
    """What all of them were worth."""
    steps: int
    """How many actions were done."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; null where the environment does not say."""


class Progress(Output):
    """How far an episode is."""

    env: str
    """Its environment."""
    seed: int
    """Its seed: the same one and the same actions lead to the same state."""
    task: str
    """What is to be done, in words."""
    history: list[str]
    """The actions that were done, in order."""
    steps: int
    """How many."""
    total_reward: float
    """What they were worth."""
    done: bool
    """The episode is over."""
    success: bool | None
    """The task is done; null where the environment does not say."""
    digest: str
    """A hash of the whole state: equal in two sessions whose worlds are equal."""
