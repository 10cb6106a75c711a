"""Gateway: model APIs for any agent, one key per episode, and the exact tokens of every call.

See docs/gateway.md.
"""

from agentflow.gateway._types import (
    BegunEpisode,
    Dialect,
    EndedEpisode,
    EpisodeMode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeReceipt,
    EpisodeState,
    GatewayAnswer,
    GatewayCall,
    GatewayError,
    PromptOrigin,
    RecordedCall,
    rewards_of,
)

__all__ = [
    "BegunEpisode",
    "Dialect",
    "EndedEpisode",
    "EpisodeMode",
    "EpisodeOffer",
    "EpisodeOutcome",
    "EpisodeReceipt",
    "EpisodeState",
    "GatewayAnswer",
    "GatewayCall",
    "GatewayError",
    "PromptOrigin",
    "RecordedCall",
    "rewards_of",
]
