"""AgentFlow: trees of agent trajectories in sandboxes that fork."""

from importlib import import_module
from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.learner import atrain, train
    from agentflow.rollouts import aquick_rollout, arollout, quick_rollout, rollout
    from agentflow.sandbox import Backend, Sandbox, SyncSandbox, register_api_tool
    from agentflow.synthesis import SynthesisPipeline, asynthesize, load_config, load_seeds, synthesize
    from agentflow.team import construct_solver
    from agentflow.tuner import atune, tune

__version__ = "0.1.0"
"""Version of this distribution; its metadata are built from this line."""

__all__ = [
    "Backend",
    "Sandbox",
    "SyncSandbox",
    "SynthesisPipeline",
    "__version__",
    "aquick_rollout",
    "arollout",
    "asynthesize",
    "atrain",
    "atune",
    "construct_solver",
    "load_config",
    "load_seeds",
    "quick_rollout",
    "register_api_tool",
    "rollout",
    "synthesize",
    "train",
    "tune",
]


# `import agentflow` itself stays light.
_load = lazy_exports(
    __name__,
    {
        "agentflow.learner": ["atrain", "train"],
        "agentflow.rollouts": ["aquick_rollout", "arollout", "quick_rollout"],
        "agentflow.sandbox": ["Backend", "Sandbox", "SyncSandbox", "register_api_tool"],
        "agentflow.synthesis": [
            "SynthesisPipeline",
            "asynthesize",
            "load_config",
            "load_seeds",
            "synthesize",
        ],
        "agentflow.team": ["construct_solver"],
        "agentflow.tuner": ["atune", "tune"],
    },
)


def __getattr__(name: str) -> object:
    # `rollout` is a module that can be called: it stays reachable under its own name.
    return import_module("agentflow.rollout") if name == "rollout" else _load(name)
