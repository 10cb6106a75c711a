"""The engine: grows trees and runs episodes. Every effect is journalled, so running the same again resumes it.

- `Grower` grows trees: a planner proposes actions, each branch acts in a fork of its parent's sandbox, a verifier judges,
  and a search chooses which nodes grow.
- `EpisodeEngine` has an agent work on a task in a sandbox of its own, within limits.

Agents and roles are classes of your own or those of `agentflow.team`. See docs/engine.md.
"""

from agentflow.engine._branching import BranchingEngine, Guide, Leaf, StateCopy
from agentflow.engine._episode import (
    AgentWork,
    DecisionPoints,
    EffectGate,
    EngineContext,
    EpisodeAgent,
    EpisodeEnded,
    EpisodeEngine,
    EpisodeSettings,
    OpenEpisode,
    TimedResult,
    run_now,
    turn_of,
)
from agentflow.engine._growth import (
    Grower,
    LevelRecord,
    NodeObserver,
    VerdictRecord,
    VerifierPort,
    plans_of,
    with_observations,
    without_observations,
)
from agentflow.engine._path_search import (
    Beam,
    BestFirst,
    EveryDecision,
    PathNode,
    PathSearch,
    TreeSearch,
    UncertainDecisions,
)
from agentflow.engine._proposals import PlannerPort
from agentflow.engine._sandboxes import BranchSandboxes, ExecutorPort, Prepare, Unforkable, is_repeatable
from agentflow.engine._search import GrowthSettings, LevelSearch, OpenNode, Search
from agentflow.engine._tool_cards import bind_action, card_of, fixed_arguments, fixed_names, no_such_tool

__all__ = [
    "AgentWork",
    "Beam",
    "BestFirst",
    "BranchSandboxes",
    "BranchingEngine",
    "DecisionPoints",
    "EffectGate",
    "EngineContext",
    "EpisodeAgent",
    "EpisodeEnded",
    "EpisodeEngine",
    "EpisodeSettings",
    "EveryDecision",
    "ExecutorPort",
    "Grower",
    "GrowthSettings",
    "Guide",
    "Leaf",
    "LevelRecord",
    "LevelSearch",
    "NodeObserver",
    "OpenEpisode",
    "OpenNode",
    "PathNode",
    "PathSearch",
    "PlannerPort",
    "Prepare",
    "Search",
    "StateCopy",
    "TimedResult",
    "TreeSearch",
    "UncertainDecisions",
    "Unforkable",
    "VerdictRecord",
    "VerifierPort",
    "bind_action",
    "card_of",
    "fixed_arguments",
    "fixed_names",
    "is_repeatable",
    "no_such_tool",
    "plans_of",
    "run_now",
    "turn_of",
    "with_observations",
    "without_observations",
]
