"""The ways in which providers are spoken to."""

from agentflow.models._dialects._anthropic import AnthropicDialect
from agentflow.models._dialects._dialect import Answered, Ask, Asked, Dialect, Outgoing
from agentflow.models._dialects._gemini import GeminiDialect
from agentflow.models._dialects._ollama import OllamaDialect
from agentflow.models._dialects._openai import AzureDialect, LiteLlmDialect, OpenAiDialect

__all__ = [
    "Answered",
    "AnthropicDialect",
    "Ask",
    "Asked",
    "AzureDialect",
    "Dialect",
    "GeminiDialect",
    "LiteLlmDialect",
    "OllamaDialect",
    "OpenAiDialect",
    "Outgoing",
]
