"""Names of engines and tools as others document them, and what they are here."""

from collections.abc import Mapping
from typing import Final

__all__ = ["CORPUS_TOOLS", "DOCUMENTED_TOOLS", "USUAL_TOOLS", "model_name", "tool_name"]

DOCUMENTED_TOOLS: Final[Mapping[str, str]] = {
    "Base_Generator_Tool": "base_generator",
    "Generalist_Solution_Generator_Tool": "base_generator",
    "Google_Search_Tool": "web_search",
    "Ground_Google_Search_Tool": "web_search",
    "Python_Code_Generator_Tool": "python_coder",
    "Python_Coder_Tool": "python_coder",
    "Web_RAG_Search_Tool": "web_read",
    "Web_Search_Tool": "web_read",
    "Wikipedia_RAG_Search_Tool": "web_wikipedia",
    "Wikipedia_Search_Tool": "web_wikipedia",
}
"""Documented name of a tool -> its name here."""

USUAL_TOOLS: Final = ("base_generator", "python_coder", "web_search", "web_wikipedia", "web_read")
"""What `all` means."""

CORPUS_TOOLS: Final = ("rag_search", "rag_get")
"""What `all` means without a model: search and reading, of the corpus that comes along."""

_DEFAULTS: Final[Mapping[str, str]] = {
    "dashscope": "dashscope/qwen2.5-7b-instruct",
    "gemini": "gemini/gemini-2.5-flash",
    "deepseek": "deepseek/deepseek-chat",
}
"""A provider alone -> one of its models."""

_PREFIXES: Final[Mapping[str, str]] = {
    "azure-": "azure/",
    "claude-": "anthropic/claude-",
    "dashscope-": "dashscope/",
    "deepseek-": "deepseek/deepseek-",
    "gemini-": "gemini/gemini-",
    "grok-": "xai/grok-",
    "litellm-": "litellm/",
    "ollama-": "ollama/",
    "together-": "together/",
    "vllm-": "vllm/",
}
"""How a documented name begins -> how it begins here. What stands after it is never looked at."""

_SERVERS: Final = ("litellm-", "ollama-", "together-", "vllm-", "dashscope-", "azure-")
"""Beginnings that name a server and are no part of the model's own name."""


def model_name(engine: str, base_url: str) -> str:
    """The model that a documented engine's name means; any other name is left as it is."""
    if base_url:
        return next((engine.removeprefix(each) for each in _SERVERS if engine.startswith(each)), engine)
    if engine in _DEFAULTS:
        return _DEFAULTS[engine]
    for before, here in _PREFIXES.items():
        if engine.startswith(before):
            return here + engine.removeprefix(before)
    return engine


def tool_name(name: str) -> str:
    """The tool that a documented name means; any other name is left as it is."""
    return DOCUMENTED_TOOLS.get(name, name)
