"""Settings of a model."""

from datetime import date
from typing import Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, SecretStr

from agentflow.models._names import list_price, price_date
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
        return None if self.prices or self._list_prices is None else price_date()

    @property
    def _list_prices(self) -> Prices | None:
        if self.base_url or self.api != "auto":
            return None
        prices = list_price(self.name)
        return None if prices is None else Prices(input=prices[0], output=prices[1])

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
