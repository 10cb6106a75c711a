"""Language models: one protocol, typed calls, engines behind it.

`make_model` gives the model that some `ModelSettings` name. Whatever goes wrong on the way to an endpoint is mended in
one place; what can't be is a `ModelFailure` of a closed kind, and a run that can't go on is a `RunStopped`.
"""

from agentflow.models._accounts import Accounts
from agentflow.models._chat import ChatClient
from agentflow.models._endpoints import Endpoints
from agentflow.models._http_model import OpenModel, Statistics
from agentflow.models._make import make_model
from agentflow.models._offline import OFFLINE
from agentflow.models._protocol import (
    Call,
    Completion,
    Image,
    Message,
    Model,
    Part,
    Sampling,
    Text,
    ToolCall,
    ToolReply,
    ToolSpec,
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
    "Accounts",
    "ApiName",
    "Call",
    "ChatClient",
    "Completion",
    "Endpoints",
    "Image",
    "Message",
    "Model",
    "ModelSettings",
    "OpenModel",
    "Part",
    "Prices",
    "Sampling",
    "Statistics",
    "StructuredOutput",
    "Text",
    "TokenMode",
    "ToolCall",
    "ToolReply",
    "ToolSpec",
    "is_loopback",
    "make_model",
]
