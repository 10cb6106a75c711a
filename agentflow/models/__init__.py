"""Language models: one protocol, typed calls, and clients for the APIs of providers.

`make_model` returns the model that some `ModelSettings` name. It retries requests and limits their concurrency. A call
that fails after all attempts is a `ModelFailure` with a closed kind; a run that can't continue is a `RunStopped`. See docs/models.md.
"""

from agentflow.models._connection import ChatClient, ModelConnection, model_failures
from agentflow.models._conversations import (
    ConversationIndex,
    ConversationMatch,
    PromptOrigin,
    message_digests,
)
from agentflow.models._endpoints import ModelEndpoints, RateLimiter, RejectionMemory
from agentflow.models._model import OFFLINE, OpenModel, Statistics, make_model
from agentflow.models._protocol import (
    Accounts,
    Call,
    Completion,
    ImagePart,
    Message,
    Model,
    ModelWrapper,
    Part,
    Sampling,
    TextPart,
    ToolCall,
    ToolReply,
    ToolSpec,
    ask_model,
    escaped_message,
    escaped_tool,
    reply_of,
)
from agentflow.models._providers import PROVIDERS, has_replicas, is_loopback
from agentflow.models._settings import (
    RENAMED_MODEL_KEYS,
    SERVER_PREFIXES,
    ApiName,
    ModelSettings,
    Prices,
    StructuredOutput,
    TokenMode,
    cheapest_model,
)
from agentflow.models._token_engine import TokenEngine, engine_sampling

__all__ = [
    "OFFLINE",
    "PROVIDERS",
    "RENAMED_MODEL_KEYS",
    "SERVER_PREFIXES",
    "Accounts",
    "ApiName",
    "Call",
    "ChatClient",
    "Completion",
    "ConversationIndex",
    "ConversationMatch",
    "ImagePart",
    "Message",
    "Model",
    "ModelConnection",
    "ModelEndpoints",
    "ModelSettings",
    "ModelWrapper",
    "OpenModel",
    "Part",
    "Prices",
    "PromptOrigin",
    "RateLimiter",
    "RejectionMemory",
    "Sampling",
    "Statistics",
    "StructuredOutput",
    "TextPart",
    "TokenEngine",
    "TokenMode",
    "ToolCall",
    "ToolReply",
    "ToolSpec",
    "ask_model",
    "cheapest_model",
    "engine_sampling",
    "escaped_message",
    "escaped_tool",
    "has_replicas",
    "is_loopback",
    "make_model",
    "message_digests",
    "model_failures",
    "reply_of",
]
