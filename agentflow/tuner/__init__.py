"""Tuner: train the model behind any agent, unchanged but for its base URL.

`tune(solve, tasks)` plays episodes in this process; `Swarm` plays them in other processes and on other machines.
See docs/tuner.md.
"""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.tuner._config import AgentRules, TuneConfig, load_tune_config
    from agentflow.tuner._gateway_rollout import GatewayRollout
    from agentflow.tuner._swarm import TOKEN_VARIABLE, Swarm, SwarmEpisode
    from agentflow.tuner._tune import atune, serve_run, tune, tune_run
    from agentflow.tuner._workflow import PolicyEndpoint, WorkflowPlayers

__all__ = [
    "TOKEN_VARIABLE",
    "AgentRules",
    "GatewayRollout",
    "PolicyEndpoint",
    "Swarm",
    "SwarmEpisode",
    "TuneConfig",
    "WorkflowPlayers",
    "atune",
    "load_tune_config",
    "serve_run",
    "tune",
    "tune_run",
]


# A client of a swarm imports neither rollouts nor learners.
__getattr__ = lazy_exports(
    __name__,
    {
        "._config": ["AgentRules", "TuneConfig", "load_tune_config"],
        "._gateway_rollout": ["GatewayRollout"],
        "._swarm": ["TOKEN_VARIABLE", "Swarm", "SwarmEpisode"],
        "._tune": ["atune", "serve_run", "tune", "tune_run"],
        "._workflow": ["PolicyEndpoint", "WorkflowPlayers"],
    },
)
