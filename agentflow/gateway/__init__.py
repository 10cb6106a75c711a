"""Gateway: model APIs for any agent, one key per episode, and the exact tokens of every call.

See docs/gateway.md.
"""

from typing import TYPE_CHECKING

from agentflow.gateway._types import (
    BegunEpisode,
    Dialect,
    EndedEpisode,
    EpisodeBranch,
    EpisodeMode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeReceipt,
    EpisodeState,
    GatewayCall,
    GatewayError,
    GatewayStatus,
    RecordedCall,
    rewards_of,
    token_tree,
    trained_tokens,
)
from agentflow.models import PromptOrigin
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.gateway._answers import (
        AgentConversations,
        Answerer,
        ExactAnswerer,
        PlainAnswerer,
        RecordingAnswerer,
    )
    from agentflow.gateway._client import GatewayClient
    from agentflow.gateway._episodes import EpisodeRegistry
    from agentflow.gateway._live import LiveEpisode
    from agentflow.gateway._process import Gateway, run_gateway
    from agentflow.gateway._settings import AgentSettings, EpisodeLimits, GatewaySettings, UpstreamSettings
    from agentflow.gateway._store import (
        EpisodeStore,
        RecordedEpisode,
        recorded_calls,
        recorded_episode,
        recorded_ids,
        recorded_image,
    )
    from agentflow.gateway._swarm_routes import add_swarm_routes

__all__ = [
    "AgentConversations",
    "AgentSettings",
    "Answerer",
    "BegunEpisode",
    "Dialect",
    "EndedEpisode",
    "EpisodeBranch",
    "EpisodeLimits",
    "EpisodeMode",
    "EpisodeOffer",
    "EpisodeOutcome",
    "EpisodeReceipt",
    "EpisodeRegistry",
    "EpisodeState",
    "EpisodeStore",
    "ExactAnswerer",
    "Gateway",
    "GatewayCall",
    "GatewayClient",
    "GatewayError",
    "GatewaySettings",
    "GatewayStatus",
    "LiveEpisode",
    "PlainAnswerer",
    "PromptOrigin",
    "RecordedCall",
    "RecordedEpisode",
    "RecordingAnswerer",
    "UpstreamSettings",
    "add_swarm_routes",
    "recorded_calls",
    "recorded_episode",
    "recorded_ids",
    "recorded_image",
    "rewards_of",
    "run_gateway",
    "token_tree",
    "trained_tokens",
]

# A client loads no server.
__getattr__ = lazy_exports(
    __name__,
    {
        "._answers": [
            "AgentConversations",
            "Answerer",
            "ExactAnswerer",
            "PlainAnswerer",
            "RecordingAnswerer",
        ],
        "._client": ["GatewayClient"],
        "._episodes": ["EpisodeRegistry"],
        "._live": ["LiveEpisode"],
        "._process": ["Gateway", "run_gateway"],
        "._settings": ["AgentSettings", "EpisodeLimits", "GatewaySettings", "UpstreamSettings"],
        "._store": [
            "EpisodeStore",
            "RecordedEpisode",
            "recorded_calls",
            "recorded_episode",
            "recorded_ids",
            "recorded_image",
        ],
        "._swarm_routes": ["add_swarm_routes"],
    },
)
