"""What became of a task: the whole of one episode."""

from typing import Literal

from msgspec import Struct

from agentflow.trajectory._node import Failure, Tokens, Usage
from agentflow.trajectory._task import Ending, QueryAnalysis, Solution, Task, Turn

__all__ = ["Episode", "Exchange"]


class Exchange(Struct, frozen=True, kw_only=True):
    """One call of a model in an episode."""

    key: str
    """Its place in the episode: `analysis`, `2/next`, `2/command/again`, `solution`."""
    role: str
    """Who was asked: `analyst`, `planner`, `executor`, `verifier`, `generator`; `agent` where there is only
    one; `tool`: models inside of a tool."""
    usage: Usage
    """What it consumed."""
    failure: Failure | None = None
    """Why there is no answer, if there is none."""
    tokens: Tokens | None = None
    """What was read and written, token by token, where the engine was asked for it; without an answer that of the last
    one that could not be used."""
    unusable: tuple[Tokens, ...] = ()
    """The same of answers before it that could not be used."""
    seconds: float
    """When it was over, in seconds from the episode's beginning."""


class Episode(Struct, frozen=True, kw_only=True):
    """A task with all that was done for it, from the first call to the answer."""

    task: Task
    """The task."""
    agent: Literal["team", "single"]
    """Who worked on it."""
    ending: Ending
    """Why its turns came to an end."""
    analysis: QueryAnalysis | None = None
    """What the planner made of the question; `None`: it was not asked or could not say."""
    turns: tuple[Turn, ...] = ()
    """Memory as it was before anything of it was put in short."""
    solution: Solution | None = None
    """The answer; `None`: there is none, `failure` says why."""
    failure: Failure | None = None
    """Why there is no answer."""
    exchanges: tuple[Exchange, ...] = ()
    """Every call of a model, in order."""
    seconds: float = 0.0
    """How long it took."""
    diverged: tuple[int, ...] = ()
    """Turns whose action was done again in a fresh sandbox, because the one before was gone, and gave something else."""

    @property
    def answer(self) -> str:
        """The direct answer; empty: none."""
        return "" if self.solution is None else self.solution.answer

    @property
    def usage(self) -> dict[str, Usage]:
        """What it consumed, by role."""
        found: dict[str, Usage] = {}
        for exchange in self.exchanges:
            found[exchange.role] = found.get(exchange.role, Usage()) + exchange.usage
        return found

    @property
    def calls(self) -> dict[str, int]:
        """How many calls of a model it took, by role."""
        found: dict[str, int] = {}
        for exchange in self.exchanges:
            found[exchange.role] = found.get(exchange.role, 0) + 1
        return found
