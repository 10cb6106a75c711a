"""What growing asks of the roles. The team fills these; tests fill them with plain functions."""

from typing import Protocol

from agentflow.sandbox import Sandbox
from agentflow.trajectory import Action, Judgement, JudgementRequest, Outcome, Plan, PlanRequest, Reply

__all__ = ["Executor", "Planner", "Verifier"]


class Planner(Protocol):
    """Proposes what to do next."""

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """Different actions, as many as asked for where there are so many. A failed call is a reply."""
        ...


class Executor(Protocol):
    """Does it."""

    async def act(self, sandbox: Sandbox, action: Action) -> Outcome:
        """Call the tool in that sandbox. A failed call is an outcome."""
        ...


class Verifier(Protocol):
    """Says what came of it."""

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        """What the observation is worth, where that follows from the request alone. `None`: somebody is to be asked."""
        ...

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """What the observation is worth. A failed call is a reply."""
        ...
