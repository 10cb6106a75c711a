"""Where a model's name leads: an address, how it is spoken to, and the variable that holds its key."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.models._answer_format import AnswerFormat
from agentflow.models._apis import (
    AnthropicApi,
    AzureApi,
    GeminiApi,
    LiteLlmApi,
    OllamaApi,
    OpenAiApi,
    ProviderApi,
)
from agentflow.models._settings import ApiName, ModelSettings

__all__ = ["PROVIDERS", "ModelAddress", "Provider", "find_address", "is_loopback"]


class Provider(Struct, frozen=True, kw_only=True):
    """Whoever has models."""

    url: str
    """Its address; empty: each has one of his own."""
    key_variable: str
    """Holds the key."""
    other_key_variables: tuple[str, ...] = ()
    """Hold the key too."""
    url_variable: str = ""
    """Holds the address, where it is another."""
    api: ApiName = "openai"
    """How it is spoken to."""
    max_tokens_field: str = "max_tokens"
    """How the longest answer is called there."""
    answer_format: AnswerFormat = "json_schema"
    """How an answer is held to its schema there."""
    tokens: bool = False
    """It can tell the tokens that it read and wrote."""
    models_path: str = "/models"
    """Lists its models, after the address."""

    def key(self, environment: Mapping[str, str]) -> str:
        """The key; empty: none is there."""
        found = (environment.get(name, "") for name in (self.key_variable, *self.other_key_variables))
        return next(filter(None, found), "")

    def address(self, environment: Mapping[str, str]) -> str:
        """The address, without a slash at its end; empty: nobody says where it is."""
        return self.trimmed(environment.get(self.url_variable, "") or self.url)

    def trimmed(self, url: str) -> str:
        """An address as requests' paths go on from it, however much of it a person wrote."""
        url = url.rstrip("/")
        return url.removesuffix("/v1").removesuffix("/openai") if self.api == "azure" else url

    def make_api(self, environment: Mapping[str, str]) -> ProviderApi:
        """How it is spoken to."""
        match self.api:
            case "anthropic":
                return AnthropicApi()
            case "azure":
                return AzureApi(environment.get("AZURE_OPENAI_API_VERSION", ""))
            case "gemini":
                return GeminiApi()
            case "ollama":
                return OllamaApi()
            case _:
                return OpenAiApi(self.max_tokens_field)


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(
        url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        max_tokens_field="max_completion_tokens",
    ),
    "anthropic": Provider(
        url="https://api.anthropic.com/v1", key_variable="ANTHROPIC_API_KEY", api="anthropic"
    ),
    "azure": Provider(
        url="",
        key_variable="AZURE_OPENAI_API_KEY",
        url_variable="AZURE_OPENAI_ENDPOINT",
        api="azure",
        models_path="/openai/v1/models",
    ),
    "dashscope": Provider(
        url="https://dashscope.aliyuncs.com/compatible-mode/v1",
        key_variable="DASHSCOPE_API_KEY",
        url_variable="DASHSCOPE_BASE_URL",
    ),
    # It knows that an answer is JSON, not which.
    "deepseek": Provider(
        url="https://api.deepseek.com/v1", key_variable="DEEPSEEK_API_KEY", answer_format="json_object"
    ),
    "gemini": Provider(
        url="https://generativelanguage.googleapis.com/v1beta",
        key_variable="GEMINI_API_KEY",
        other_key_variables=("GOOGLE_API_KEY",),
        api="gemini",
    ),
    "groq": Provider(url="https://api.groq.com/openai/v1", key_variable="GROQ_API_KEY"),
    "mistral": Provider(url="https://api.mistral.ai/v1", key_variable="MISTRAL_API_KEY"),
    "ollama": Provider(
        url="http://127.0.0.1:11434",
        key_variable="OLLAMA_API_KEY",
        url_variable="OLLAMA_BASE_URL",
        api="ollama",
        models_path="/api/tags",
    ),
    "openrouter": Provider(url="https://openrouter.ai/api/v1", key_variable="OPENROUTER_API_KEY"),
    "together": Provider(url="https://api.together.xyz/v1", key_variable="TOGETHER_API_KEY"),
    "vllm": Provider(
        url="http://127.0.0.1:8000/v1", key_variable="VLLM_API_KEY", url_variable="VLLM_BASE_URL", tokens=True
    ),
    "xai": Provider(
        url="https://api.x.ai/v1", key_variable="XAI_API_KEY", other_key_variables=("GROK_API_KEY",)
    ),
}
"""Providers, by the first part of `provider/model`."""

LITELLM = "litellm"
"""The first part of a name whose rest LiteLLM's library understands."""

_DEPLOYMENT = "AZURE_OPENAI_DEPLOYMENT"


class ModelAddress(Struct, frozen=True, kw_only=True):
    """How to reach a model."""

    url: str
    """The endpoint, without a slash at its end."""
    key: str
    """Its key; empty: none is needed."""
    model: str
    """The model's name there."""
    api: ProviderApi
    """How it is spoken to."""
    answer_format: AnswerFormat = "json_schema"
    """How an answer is held to its schema there."""
    tokens: bool = False
    """It may be able to tell the tokens that it read and wrote."""
    source: str
    """Where a person looks for the key."""


def find_address(settings: ModelSettings, environment: Mapping[str, str]) -> ModelAddress:
    """Where that model is.

    :raises ConfigurationError: if its key, its address or its name is missing.
    """
    if settings.name.startswith(f"{LITELLM}/") and not settings.base_url:
        return _in_this_process(settings)
    named, model = _split(settings, environment)
    provider = PROVIDERS[named or ("openai" if settings.api == "auto" else settings.api)]
    own = bool(settings.base_url)
    url = _address(settings, provider, environment)
    key = settings.api_key.get_secret_value() or provider.key(environment)
    if not key and not is_loopback(url):
        raise ConfigurationError(
            f"model {settings.name}: no key for {url}; set {provider.key_variable} or the setting api_key"
        )
    if settings.tokens and not (provider.tokens or (own and provider.api == "openai")):
        raise _no_tokens(settings.name, url)
    plain = own and provider.api == "openai" and url != provider.url
    return ModelAddress(
        url=url,
        key=key,
        model=model,
        api=OpenAiApi() if plain else provider.make_api(environment),
        answer_format="json_schema" if own else provider.answer_format,
        tokens=bool(settings.tokens),
        source="api_key" if settings.api_key.get_secret_value() else provider.key_variable,
    )


def _in_this_process(settings: ModelSettings) -> ModelAddress:
    if settings.tokens:
        raise _no_tokens(settings.name, "LiteLLM")
    return ModelAddress(
        url=LITELLM,
        key=settings.api_key.get_secret_value(),
        model=settings.name.removeprefix(f"{LITELLM}/"),
        api=LiteLlmApi(),
        source="its provider's key",
    )


def _no_tokens(name: str, who: str) -> ConfigurationError:
    return ConfigurationError(
        f"model {name}: {who} returns no tokens; use vLLM (vllm/…, or its base_url) or tokens=false"
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
    if settings.api not in ("auto", PROVIDERS[prefix].api):
        raise ConfigurationError(
            f"model {settings.name}: {prefix} does not speak {settings.api}; set base_url or take api away"
        )
    return prefix, rest


def _address(settings: ModelSettings, provider: Provider, environment: Mapping[str, str]) -> str:
    url = provider.trimmed(settings.base_url) or provider.address(environment)
    if not url:
        raise ConfigurationError(
            f"model {settings.name}: no address; set {provider.url_variable} or base_url"
        )
    return url


def is_loopback(url: str) -> bool:
    """Whether that address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
