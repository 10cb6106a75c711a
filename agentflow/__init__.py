"""AgentFlow: trees of agent trajectories in sandboxes that fork."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.sandbox import Backend, Sandbox, SyncSandbox, register_api_tool
    from agentflow.synthesis import SynthesisPipeline, load_config, load_seeds, synthesize

__all__ = [
    "Backend",
    "Sandbox",
    "SyncSandbox",
    "SynthesisPipeline",
    "load_config",
    "load_seeds",
    "register_api_tool",
    "synthesize",
]

_HOMES = {
    **dict.fromkeys(("Backend", "Sandbox", "SyncSandbox", "register_api_tool"), "agentflow.sandbox"),
    **dict.fromkeys(("SynthesisPipeline", "load_config", "load_seeds", "synthesize"), "agentflow.synthesis"),
}


def __getattr__(name: str) -> object:
    """Load a name's home when the name is first used: `import agentflow` itself stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
