"""Language models: one protocol, typed calls, and clients for the APIs of providers.

`make_model` returns the model that some `ModelSettings` name. It retries requests and limits their concurrency. A call
that fails for good is a `ModelFailure` with a closed kind; a run that can't continue is a `RunStopped`. See docs/models.md.
"""

from agentflow.models._accounts import Accounts
from agentflow.models._endpoints import ModelEndpoints, RejectionMemory
from agentflow.models._http_model import ChatClient, OpenModel, Statistics
from agentflow.models._make import OFFLINE, make_model
from agentflow.models._names import SERVER_PREFIXES
from agentflow.models._protocol import (
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
    reply_of,
)
from agentflow.models._providers import PROVIDERS, is_loopback
from agentflow.models._settings import (
    RENAMED_MODEL_KEYS,
    ApiName,
    ModelSettings,
    Prices,
    StructuredOutput,
    TokenMode,
)

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
    "ImagePart",
    "Message",
    "Model",
    "ModelEndpoints",
    "ModelSettings",
    "ModelWrapper",
    "OpenModel",
    "Part",
    "Prices",
    "RejectionMemory",
    "Sampling",
    "Statistics",
    "StructuredOutput",
    "TextPart",
    "TokenMode",
    "ToolCall",
    "ToolReply",
    "ToolSpec",
    "ask_model",
    "is_loopback",
    "make_model",
    "reply_of",
]
