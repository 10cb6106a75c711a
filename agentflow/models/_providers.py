"""Providers: addresses, APIs, and the environment variables of their keys."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from agentflow._loopback import is_loopback as _is_loopback
from agentflow._secrets import mask_settings, remember_secrets
from agentflow.errors import ConfigurationError
from agentflow.models._answer_format import AnswerFormat
from agentflow.models._apis import (
    AnthropicApi,
    AzureApi,
    GeminiApi,
    OllamaApi,
    OpenAiApi,
    ProviderApi,
)
from agentflow.models._settings import ApiName, ModelSettings, provider_name


class Provider(Struct, frozen=True, kw_only=True):
    """A model provider."""

    url: str
    """Address; empty if each customer has one of their own."""
    key_variable: str
    """Environment variable with the key."""
    other_key_variables: tuple[str, ...] = ()
    """Further environment variables that can hold the key."""
    url_variable: str = ""
    """Environment variable that overrides the address."""
    api: ApiName = "openai"
    max_tokens_field: str = "max_tokens"
    """Name of the `max_tokens` field in this API."""
    answer_format: AnswerFormat = "json_schema"
    """Strictest answer format that the provider enforces."""
    tokens: bool = False
    """The provider can return the tokens that were read and sampled."""
    models_path: str = "/models"
    """Path of the list of models, after the address."""

    def key(self, environment: Mapping[str, str]) -> str:
        """Return the key; empty if no variable is set."""
        keys = (environment.get(name, "") for name in (self.key_variable, *self.other_key_variables))
        return next(filter(None, keys), "")

    def address(self, environment: Mapping[str, str]) -> str:
        """Return the address without a trailing slash; empty if no variable is set."""
        return self.trimmed(environment.get(self.url_variable, "") or self.url)

    def trimmed(self, url: str) -> str:
        """Return an address without the parts that request paths add to it."""
        url = url.rstrip("/")
        return url.removesuffix("/v1").removesuffix("/openai") if self.api == "azure" else url

    def make_api(self, environment: Mapping[str, str]) -> ProviderApi:
        """Create the client of this provider's API."""
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
        url_variable="OPENAI_BASE_URL",
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
    # Enforces JSON, but no schema.
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
"""Providers, by the first part of `provider/model`. See docs/models.md."""

LITELLM = "litellm"
"""First part of names that LiteLLM resolves."""

_DEPLOYMENT = "AZURE_OPENAI_DEPLOYMENT"


class ModelAddress(Struct, frozen=True, kw_only=True):
    """Everything needed to reach a model."""

    url: str
    """Endpoint, without a trailing slash."""
    key: str
    """Key; empty if none is needed."""
    model: str
    """Name of the model at the endpoint."""
    api: ProviderApi
    """Client of the endpoint's API."""
    answer_format: AnswerFormat = "json_schema"
    """Strictest answer format that the endpoint enforces."""
    tokens: bool = False
    """The endpoint may be able to return tokens."""
    source: str
    """Setting or variable that holds the key, for messages."""
    registry: str = ""
    """Database with the replicas of the model; empty: there is one server, at `url`."""
    response_bytes: int
    """Maximum size of an answer."""


def full_name(settings: ModelSettings) -> str:
    """Return the name of a model as `provider/model` if its beginning names a provider, else unchanged.

    At a `base_url`, every name is sent unchanged.
    """
    return settings.name if settings.base_url or settings.api != "auto" else provider_name(settings.name)


def find_address(settings: ModelSettings, environment: Mapping[str, str]) -> ModelAddress:
    """Resolve the address of a model.

    :raises ConfigurationError: if the key, the address or the deployment is missing.
    """
    settings = settings.model_copy(update={"name": full_name(settings)})
    if has_replicas(settings.base_url):
        return _at_replicas(settings)
    if settings.name.startswith(f"{LITELLM}/") and not settings.base_url:
        return _in_this_process(settings)
    named, model = _split(settings, environment)
    provider = PROVIDERS[named or ("openai" if settings.api == "auto" else settings.api)]
    url = _address(settings, provider, environment)
    key = settings.api_key.get_secret_value() or provider.key(environment)
    remember_secrets(key, "key")
    if not key and not is_loopback(url):
        raise ConfigurationError(
            f"model {settings.name}: no key for {url}; set {provider.key_variable} or the setting api_key"
        )
    # Another server with OpenAI's API.
    compatible = provider is PROVIDERS["openai"] and url != provider.url
    if settings.tokens and not (provider.tokens or compatible):
        raise _no_tokens(settings.name, url)
    return ModelAddress(
        url=url,
        key=key,
        model=model,
        api=OpenAiApi() if compatible else provider.make_api(environment),
        answer_format=provider.answer_format,
        tokens=bool(settings.tokens),
        response_bytes=settings.response_bytes,
        source="api_key" if settings.api_key.get_secret_value() else provider.key_variable,
    )


def _at_replicas(settings: ModelSettings) -> ModelAddress:
    return ModelAddress(
        url=str(mask_settings(settings.base_url)),
        key="",
        model=settings.name,
        api=OpenAiApi(),
        tokens=bool(settings.tokens),
        response_bytes=settings.response_bytes,
        source="the keys in its table",
        registry=settings.base_url,
    )


def has_replicas(url: str) -> bool:
    """Return true if an address is that of a database with the replicas of a model. See docs/scaling.md."""
    return url.startswith("postgresql://")


def _in_this_process(settings: ModelSettings) -> ModelAddress:
    if settings.tokens:
        raise _no_tokens(settings.name, "LiteLLM")
    return ModelAddress(
        url=LITELLM,
        key=settings.api_key.get_secret_value(),
        model=settings.name.removeprefix(f"{LITELLM}/"),
        api=OpenAiApi(),
        response_bytes=settings.response_bytes,
        source="its provider's key",
    )


def _no_tokens(name: str, who: str) -> ConfigurationError:
    return ConfigurationError(
        f"model {name}: {who} returns no tokens; use vLLM (vllm/…, or its base_url) or tokens=false"
    )


def _split(settings: ModelSettings, environment: Mapping[str, str]) -> tuple[str, str]:
    """Split a name into its provider, if it starts with one, and the provider's name of the model."""
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
            f"model {settings.name}: {prefix} does not have the API {settings.api}; set base_url or remove api"
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
    """Return true if an address is on this machine. See docs/models.md."""
    return _is_loopback(urlsplit(url).hostname or "")
