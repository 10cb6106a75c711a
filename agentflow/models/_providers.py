"""Where a model's name leads: an address, how it is spoken to, and the variable that holds its key."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.models._dialects import (
    AnthropicDialect,
    AzureDialect,
    Dialect,
    GeminiDialect,
    LiteLlmDialect,
    OllamaDialect,
    OpenAiDialect,
)
from agentflow.models._forms import Form
from agentflow.models._settings import ModelSettings, Speaks

__all__ = ["PROVIDERS", "Address", "Provider", "find_address", "is_loopback"]


class Provider(Struct, frozen=True, kw_only=True):
    """Whoever has models."""

    url: str
    """Its address; empty: each has one of his own."""
    variable: str
    """Holds the key."""
    others: tuple[str, ...] = ()
    """Hold the key too."""
    place: str = ""
    """Holds the address, where it is another."""
    speaks: Speaks = "openai"
    """How it is spoken to."""
    longest: str = "max_tokens"
    """How the longest answer is called there."""
    best: Form = "json_schema"
    """How an answer is held to its schema there."""
    tokens: bool = False
    """It can tell the tokens that it read and wrote."""
    listing: str = "/models"
    """Lists its models, after the address."""

    def key(self, environment: Mapping[str, str]) -> str:
        """The key; empty: none is there."""
        found = (environment.get(name, "") for name in (self.variable, *self.others))
        return next(filter(None, found), "")

    def address(self, environment: Mapping[str, str]) -> str:
        """The address, without a slash at its end; empty: nobody says where it is."""
        return self.trimmed(environment.get(self.place, "") or self.url)

    def trimmed(self, url: str) -> str:
        """An address as requests' paths go on from it, however much of it a person wrote."""
        url = url.rstrip("/")
        return url.removesuffix("/v1").removesuffix("/openai") if self.speaks == "azure" else url

    def dialect(self, environment: Mapping[str, str]) -> Dialect:
        """How it is spoken to."""
        match self.speaks:
            case "anthropic":
                return AnthropicDialect()
            case "azure":
                return AzureDialect(environment.get("AZURE_OPENAI_API_VERSION", ""))
            case "gemini":
                return GeminiDialect()
            case "ollama":
                return OllamaDialect()
            case _:
                return OpenAiDialect(self.longest)


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(
        url="https://api.openai.com/v1", variable="OPENAI_API_KEY", longest="max_completion_tokens"
    ),
    "anthropic": Provider(
        url="https://api.anthropic.com/v1", variable="ANTHROPIC_API_KEY", speaks="anthropic"
    ),
    "azure": Provider(
        url="",
        variable="AZURE_OPENAI_API_KEY",
        place="AZURE_OPENAI_ENDPOINT",
        speaks="azure",
        listing="/openai/v1/models",
    ),
    "dashscope": Provider(
        url="https://dashscope.aliyuncs.com/compatible-mode/v1",
        variable="DASHSCOPE_API_KEY",
        place="DASHSCOPE_BASE_URL",
    ),
    # It knows that an answer is JSON, not which.
    "deepseek": Provider(url="https://api.deepseek.com/v1", variable="DEEPSEEK_API_KEY", best="json_object"),
    "gemini": Provider(
        url="https://generativelanguage.googleapis.com/v1beta",
        variable="GEMINI_API_KEY",
        others=("GOOGLE_API_KEY",),
        speaks="gemini",
    ),
    "groq": Provider(url="https://api.groq.com/openai/v1", variable="GROQ_API_KEY"),
    "mistral": Provider(url="https://api.mistral.ai/v1", variable="MISTRAL_API_KEY"),
    "ollama": Provider(
        url="http://127.0.0.1:11434",
        variable="OLLAMA_API_KEY",
        place="OLLAMA_BASE_URL",
        speaks="ollama",
        listing="/api/tags",
    ),
    "openrouter": Provider(url="https://openrouter.ai/api/v1", variable="OPENROUTER_API_KEY"),
    "together": Provider(url="https://api.together.xyz/v1", variable="TOGETHER_API_KEY"),
    "vllm": Provider(
        url="http://127.0.0.1:8000/v1", variable="VLLM_API_KEY", place="VLLM_BASE_URL", tokens=True
    ),
    "xai": Provider(url="https://api.x.ai/v1", variable="XAI_API_KEY", others=("GROK_API_KEY",)),
}
"""Providers, by the first part of `provider/model`."""

LITELLM = "litellm"
"""The first part of a name whose rest LiteLLM's library understands."""

_DEPLOYMENT = "AZURE_OPENAI_DEPLOYMENT"


class Address(Struct, frozen=True, kw_only=True):
    """How to reach a model."""

    url: str
    """The endpoint, without a slash at its end."""
    key: str
    """Its key; empty: none is needed."""
    model: str
    """The model's name there."""
    dialect: Dialect
    """How it is spoken to."""
    best: Form = "json_schema"
    """How an answer is held to its schema there."""
    tokens: bool = False
    """It may be able to tell the tokens that it read and wrote."""
    source: str
    """Where a person looks for the key."""


def find_address(settings: ModelSettings, environment: Mapping[str, str]) -> Address:
    """Where that model is.

    :raises ConfigurationError: if its key, its address or its name is missing.
    """
    if settings.name.startswith(f"{LITELLM}/") and not settings.base_url:
        return _in_this_process(settings)
    named, model = _split(settings, environment)
    provider = PROVIDERS[named or ("openai" if settings.speaks == "auto" else settings.speaks)]
    own = bool(settings.base_url)
    url = _address(settings, provider, environment)
    key = settings.api_key.get_secret_value() or provider.key(environment)
    if not key and not is_loopback(url):
        raise ConfigurationError(
            f"model {settings.name}: no key for {url}; set {provider.variable} or the setting api_key"
        )
    if settings.tokens and not (provider.tokens or (own and provider.speaks == "openai")):
        raise _no_tokens(settings.name, url)
    plain = own and provider.speaks == "openai" and url != provider.url
    return Address(
        url=url,
        key=key,
        model=model,
        dialect=OpenAiDialect() if plain else provider.dialect(environment),
        best="json_schema" if own else provider.best,
        tokens=bool(settings.tokens),
        source="api_key" if settings.api_key.get_secret_value() else provider.variable,
    )


def _in_this_process(settings: ModelSettings) -> Address:
    if settings.tokens:
        raise _no_tokens(settings.name, "LiteLLM")
    return Address(
        url=LITELLM,
        key=settings.api_key.get_secret_value(),
        model=settings.name.removeprefix(f"{LITELLM}/"),
        dialect=LiteLlmDialect(),
        source="its provider's key",
    )


def _no_tokens(name: str, who: str) -> ConfigurationError:
    return ConfigurationError(
        f"model {name}: {who} tells no tokens; use vLLM (vllm/…, or its base_url) or tokens=false"
    )


def _split(settings: ModelSettings, environment: Mapping[str, str]) -> tuple[str, str]:
    """The provider that the name begins with, if it does, and what the model is called there."""
    prefix, slash, rest = settings.name.partition("/")
    if settings.base_url:
        return "", settings.name
    if settings.name == "azure":
        if not (deployment := environment.get(_DEPLOYMENT, "")):
            raise ConfigurationError(
                f"model azure: no deployment; set {_DEPLOYMENT} or name azure/DEPLOYMENT"
            )
        return "azure", deployment
    if not slash or prefix not in PROVIDERS:
        return "", settings.name
    if settings.speaks not in ("auto", PROVIDERS[prefix].speaks):
        raise ConfigurationError(
            f"model {settings.name}: {prefix} does not speak {settings.speaks}; set base_url or take speaks away"
        )
    return prefix, rest


def _address(settings: ModelSettings, provider: Provider, environment: Mapping[str, str]) -> str:
    url = provider.trimmed(settings.base_url) or provider.address(environment)
    if not url:
        raise ConfigurationError(f"model {settings.name}: no address; set {provider.place} or base_url")
    return url


def is_loopback(url: str) -> bool:
    """Whether that address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
