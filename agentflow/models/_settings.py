"""Settings of a model, and the providers and built-in prices of well-known names."""

import re
import tomllib
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, SecretStr

from agentflow.models._protocol import Sampling
from agentflow.settings import EndpointUrl, Section
from agentflow.trace import Usage

StructuredOutput = Literal["auto", "json_schema", "json_object", "text", "known"]
"""Way to enforce the schema of answers: by the endpoint, as JSON only, or by the prompt; `auto` picks the strictest that
works; `known` does nothing, for a model that was trained on the format."""


ApiName = Literal["auto", "openai", "azure", "anthropic", "gemini", "ollama"]
"""API of an endpoint; `auto` takes that of the provider in the model's name, else OpenAI's."""


TokenMode: TypeAlias = Literal["exact"] | bool
"""Return the tokens of answers; `exact` also sends earlier messages as tokens."""


RENAMED_MODEL_KEYS: Final[dict[str, str]] = {
    "attempts": "max_attempts",
    "longest_text": "max_text_chars",
    "max_in_flight": "max_concurrency",
    "sees": "vision",
    "speaks": "api",
}
"""New names of renamed keys, by their old names."""


SERVER_PREFIXES: Final = ("azure-", "dashscope-", "litellm-", "ollama-", "together-", "vllm-")
"""Documented prefixes that name a server and are not part of the model's own name."""
_FAMILIES: Final = {"claude-": "anthropic", "deepseek-": "deepseek", "gemini-": "gemini", "grok-": "xai"}
"""Providers of models that only they have, by the beginning of their names."""
_DEFAULT_MODELS: Final = {
    "dashscope": "dashscope/qwen2.5-7b-instruct",
    "deepseek": "deepseek/deepseek-chat",
    "gemini": "gemini/gemini-2.5-flash",
    "together": "together/Qwen/Qwen2.5-7B-Instruct-Turbo",
}
"""Models of documented names that are a provider alone."""
_PRICES: Final = Path(__file__).parent / "prices.toml"
_DATE: Final = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8})$")


class Prices(Section):
    """Prices of a model's tokens, in any one currency."""

    input: float = Field(ge=0)
    """Price of a million prompt tokens."""
    output: float = Field(ge=0)
    """Price of a million completion tokens."""

    def cost(self, usage: Usage) -> float:
        """Return the cost of some usage."""
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1_000_000


class ModelSettings(Section):
    """One model at one endpoint. See docs/models.md."""

    renamed: ClassVar[dict[str, str]] = RENAMED_MODEL_KEYS

    name: str = Field(min_length=1)
    """Name of the model at the endpoint, `provider/model` for a known provider, or `offline`."""
    base_url: EndpointUrl = ""
    """Address of the endpoint, up to `/v1`, or `postgresql://…`, the database with its replicas; if empty, that of the provider."""
    api: ApiName = "auto"
    """API of the endpoint at `base_url`."""
    api_key: SecretStr = SecretStr("")
    """Key for the endpoint; if empty, that of the provider's environment variable."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; `None` leaves it to the endpoint."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling; `None` leaves it to the endpoint."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens in an answer; `None` leaves it to the endpoint."""
    seed: int | None = None
    """Sampling seed, for endpoints that support one."""
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further fields of each request body."""
    max_concurrency: int = Field(default=256, ge=1)
    """Maximum number of concurrent requests; the limiter goes lower when the endpoint reports overload."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Rate limit of the key for this model, kept by all who share it; `None`: no limit is known."""
    call_seconds: float = Field(default=120.0, gt=0)
    """Time for one call in seconds, over all attempts, from its first request on."""
    response_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Maximum size of an answer; a larger one fails the call. Answers are neither requested nor accepted compressed."""
    max_attempts: int = Field(default=4, ge=1, le=10)
    """Maximum number of HTTP requests for one call."""
    structured: StructuredOutput = "auto"
    """Way to enforce the schema of answers."""
    tokens: TokenMode = False
    """Return the prompt and completion tokens of answers (vLLM only); `exact` also sends earlier messages as their tokens, so
    that each prompt extends the one before it exactly."""
    max_text_chars: int | None = Field(default=None, ge=1)
    """Maximum number of characters in each text of a structured answer, enforced by the endpoint; `None` is no limit."""
    vision: bool = True
    """The model accepts images."""
    prices: Prices | None = None
    """Prices of tokens; `None`: the built-in ones of its provider, if known. `max_cost` needs prices."""

    @property
    def known_prices(self) -> Prices | None:
        """Prices of tokens: those of the settings, else built-in ones; `None` if unknown, as at any `base_url`."""
        return self.prices or self._list_prices

    @property
    def prices_as_of(self) -> date | None:
        """Date of the built-in prices, if they are used."""
        return None if self.prices or self._list_prices is None else _price_list()[0]

    @property
    def _list_prices(self) -> Prices | None:
        return None if self.base_url or self.api != "auto" else _list_price(self.name)

    def cost(self, usage: Usage) -> float:
        """Return the cost of some usage; 0 without prices."""
        return 0.0 if (prices := self.known_prices) is None else prices.cost(usage)

    @property
    def sampling(self) -> Sampling:
        """Sampling of calls that set none of their own."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            seed=self.seed,
            extra=self.extra_body,
        )


def provider_name(name: str) -> str:
    """Return a name as `provider/model` if its documented beginning names a provider, else unchanged."""
    if name in _DEFAULT_MODELS:
        return _DEFAULT_MODELS[name]
    for prefix in SERVER_PREFIXES:
        if name.startswith(prefix) and name != prefix:
            return f"{prefix[:-1]}/{name.removeprefix(prefix)}"
    family = next((owner for prefix, owner in _FAMILIES.items() if name.startswith(prefix)), None)
    return name if family is None or "/" in name else f"{family}/{name}"


def cheapest_model(provider: str) -> str:
    """Return the model of a provider with the lowest built-in prices; empty if none is known. See docs/models.md."""
    prices = _price_list()[1].get(provider, {})
    return min(prices, key=lambda model: prices[model].input + prices[model].output, default="")


def _list_price(name: str) -> Prices | None:
    """Return the built-in prices of a model; `None` if they are unknown."""
    name = provider_name(name)
    provider, model = name.split("/", 1) if "/" in name else ("openai", name)
    prices = _price_list()[1].get(provider, {})
    return prices.get(model) or prices.get(_DATE.sub("", model))


@cache
def _price_list() -> tuple[date, dict[str, dict[str, Prices]]]:
    """Return the date of the built-in prices, and the prices by provider and model."""
    content = tomllib.loads(_PRICES.read_text(encoding="utf-8"))
    return content["date"], {
        provider: {
            model: Prices(input=prompt, output=completion) for model, (prompt, completion) in table.items()
        }
        for provider, table in content["models"].items()
    }
