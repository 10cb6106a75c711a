"""AgentFlow: trees of agent trajectories in sandboxes that fork."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.learner import train
    from agentflow.rollout import quick_rollout, rollout
    from agentflow.sandbox import Backend, Sandbox, SyncSandbox, register_api_tool
    from agentflow.synthesis import SynthesisPipeline, load_config, load_seeds, synthesize
    from agentflow.team import construct_solver

__all__ = [
    "Backend",
    "Sandbox",
    "SyncSandbox",
    "SynthesisPipeline",
    "construct_solver",
    "load_config",
    "load_seeds",
    "quick_rollout",
    "register_api_tool",
    "rollout",
    "synthesize",
    "train",
]

_HOMES = {
    "construct_solver": "agentflow.team",
    "train": "agentflow.learner",
    "quick_rollout": "agentflow.rollout",
    **dict.fromkeys(("Backend", "Sandbox", "SyncSandbox", "register_api_tool"), "agentflow.sandbox"),
    **dict.fromkeys(("SynthesisPipeline", "load_config", "load_seeds", "synthesize"), "agentflow.synthesis"),
}


def __getattr__(name: str) -> object:
    """Load a name's home when the name is first used: `import agentflow` itself stays light."""
    if name == "rollout":
        # The package itself, which can be called: it stays reachable by its name.
        return import_module("agentflow.rollout")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
