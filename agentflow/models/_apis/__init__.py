"""APIs of providers: requests and answers of each."""

from agentflow.models._apis._anthropic import AnthropicApi
from agentflow.models._apis._api import (
    AnswerSchema,
    EncodedRequest,
    PreparedCall,
    ProviderApi,
    separate_reasoning,
    without_reasoning,
)
from agentflow.models._apis._gemini import GeminiApi
from agentflow.models._apis._ollama import OllamaApi
from agentflow.models._apis._openai import AzureApi, OpenAiApi

__all__ = [
    "AnswerSchema",
    "AnthropicApi",
    "AzureApi",
    "EncodedRequest",
    "GeminiApi",
    "OllamaApi",
    "OpenAiApi",
    "PreparedCall",
    "ProviderApi",
    "separate_reasoning",
    "without_reasoning",
]
