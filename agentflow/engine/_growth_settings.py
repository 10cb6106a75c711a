"""Contracts of growth: its settings, and the roles it needs."""

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from agentflow.sandbox import Sandbox
from agentflow.trace import Action, ActionOutcome, Judgement, JudgementRequest, Plan, PlanRequest, Reply


class PlannerPort(Protocol):
    """Planner of a grower: `agentflow.team.Planner`, or any class with this method. See docs/engine.md."""

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        """Propose different actions, as many as requested if possible. A failed call is a failed reply."""
        ...


class ExecutorPort(Protocol):
    """Executor of a grower: `agentflow.team.Executor`, or any class with this method. See docs/engine.md."""

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool in a sandbox. A failed call is an outcome."""
        ...


class VerifierPort(Protocol):
    """Verifier of a grower: `agentflow.team.Verifier`, or any class with these methods. See docs/engine.md."""

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        """Judge an observation without a model; `None` if `judge` must be called."""
        ...

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        """Judge an observation. A failed call is a failed reply."""
        ...


class Unforkable(StrEnum):
    """Policy for a sandbox that cannot be forked and whose path cannot be replayed safely. See docs/engine.md."""

    CHAIN = "chain"
    """The first child continues in its parent's sandbox; its siblings are not tried."""
    REFUSE = "refuse"
    """No child is tried."""


class GrowthSettings(Struct, frozen=True, kw_only=True):
    """Shape and rules of a tree.

    Example::

        GrowthSettings(max_depth=3, branching_factor=2, depth_threshold=2)
    """

    max_depth: int = 5
    """Number of actions from the root to the deepest leaf."""
    branching_factor: int = 2
    """Number of children of a node above `depth_threshold`."""
    depth_threshold: int = 3
    """Depth from which every node has one child."""
    action_similarity: float = 0.9
    """Similarity from which two searches count as duplicates, among siblings and on a path; above 1 disables it."""
    max_asks: int = 3
    """Maximum number of planner calls at a node until enough proposals are not duplicates."""
    merge_duplicates: bool = False
    """Merge duplicates instead of asking again: an action proposed twice at a node grows once with a count of two, and
    an action that exists elsewhere in the tree is allowed. Training needs this, because the policy must not be
    corrected."""
    on_unforkable: Unforkable = Unforkable.CHAIN
    """Policy for branches that cannot be isolated."""
    recovery_share: float = 0.2
    """Share of the nodes of a full tree that may be recovery children: the only child of a failed or empty node, which sees
    the failure and continues from the state after it. 0 disables them."""
    tips: str = ""
    """The user's guidance for exploration."""
    aims: tuple[tuple[str, ...], ...] = ()
    """Kinds of questions that the planner reads for, by turns of seeds; empty: none in particular."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    inputs: tuple[str, ...] = ()
    """Input folders and files as the tools see them, one line each, for the planner."""

    def children(self, depth: int) -> int:
        """Return the number of children of a node at this depth."""
        if depth >= self.max_depth:
            return 0
        return self.branching_factor if depth < self.depth_threshold else 1

    def aims_of(self, seed: int) -> tuple[str, ...]:
        """Return the kinds of questions that the planner of a seed reads for, by the seed's index."""
        return self.aims[seed % len(self.aims)] if self.aims else ()

    @property
    def recoveries(self) -> int:
        """Maximum number of recovery children of a tree."""
        size, width = 0, 1
        for depth in range(self.max_depth):
            width *= self.children(depth)
            size += width
        return int(self.recovery_share * size)

    @property
    def width(self) -> int:
        """Maximum number of nodes on a level."""
        return max(1, self.branching_factor) ** min(self.depth_threshold, self.max_depth)
