"""Where a model's name leads: an address, and the variable that holds its key."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.models._settings import ModelSettings

__all__ = ["PROVIDERS", "Address", "find_address", "is_loopback"]


class _Provider(Struct, frozen=True):
    url: str
    variable: str
    longest: str = "max_tokens"


PROVIDERS: Mapping[str, _Provider] = {
    "openai": _Provider("https://api.openai.com/v1", "OPENAI_API_KEY", "max_completion_tokens"),
    "dashscope": _Provider("https://dashscope.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "deepseek": _Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "gemini": _Provider("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "groq": _Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": _Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "ollama": _Provider("http://127.0.0.1:11434/v1", "OLLAMA_API_KEY"),
    "openrouter": _Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": _Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "vllm": _Provider("http://127.0.0.1:8000/v1", "VLLM_API_KEY"),
    "xai": _Provider("https://api.x.ai/v1", "XAI_API_KEY"),
}
"""Providers whose endpoints speak OpenAI's protocol, by the first part of `provider/model`."""

_DEFAULT = PROVIDERS["openai"]


class Address(Struct, frozen=True):
    """How to reach a model."""

    url: str
    """The endpoint, without a slash at its end."""
    key: str
    """Its key; empty: none is needed."""
    model: str
    """The model's name there."""
    longest: str
    """How the longest answer is called there."""
    source: str
    """Where a person looks for the key."""


def find_address(settings: ModelSettings, environment: Mapping[str, str]) -> Address:
    """Where that model is.

    :raises ConfigurationError: if its key is missing.
    """
    prefix, slash, rest = settings.name.partition("/")
    named = None if settings.base_url or not slash else PROVIDERS.get(prefix)
    provider = named or _DEFAULT
    url = (settings.base_url or provider.url).rstrip("/")
    key = settings.api_key.get_secret_value() or environment.get(provider.variable, "")
    if not key and not is_loopback(url):
        raise ConfigurationError(
            f"model {settings.name}: no key for {url}; set {provider.variable} or the setting api_key"
        )
    longest = provider.longest if url == provider.url else "max_tokens"
    source = "api_key" if settings.api_key.get_secret_value() else provider.variable
    return Address(url, key, rest if named else settings.name, longest, source)


def is_loopback(url: str) -> bool:
    """Whether that address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
