"""What is said about a model."""

from typing import Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, SecretStr

from agentflow.models._protocol import Sampling
from agentflow.settings import Section
from agentflow.trajectory import Usage

__all__ = ["RENAMED_MODEL_KEYS", "ApiName", "ModelSettings", "Prices", "StructuredOutput", "TokenMode"]

StructuredOutput = Literal["auto", "json_schema", "json_object", "text", "known"]
"""How an answer is held to its schema: by the endpoint, half by it, by the prompt alone; `auto`: the best that works;
`known`: nobody tells it, for a model that was trained to the format."""


ApiName = Literal["auto", "openai", "azure", "anthropic", "gemini", "ollama"]
"""How an endpoint is spoken to; `auto`: as the provider that the name begins with, else as OpenAI."""


TokenMode: TypeAlias = Literal["exact"] | bool
"""Whether answers bring their tokens along, and whether what was said before is sent as tokens."""


RENAMED_MODEL_KEYS: Final[dict[str, str]] = {
    "attempts": "max_attempts",
    "longest_text": "max_text_chars",
    "max_in_flight": "max_concurrency",
    "sees": "vision",
    "speaks": "api",
}
"""New names of the renamed keys of model settings, by their old names."""


class Prices(Section):
    """What a model's tokens cost, in any one currency."""

    input: float = Field(ge=0)
    """A million tokens read."""
    output: float = Field(ge=0)
    """A million tokens written."""

    def cost(self, usage: Usage) -> float:
        """What that much costs."""
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1_000_000


class ModelSettings(Section):
    """One model at one endpoint."""

    renamed: ClassVar[dict[str, str]] = RENAMED_MODEL_KEYS

    name: str = Field(min_length=1)
    """As the endpoint calls it, `provider/model` of a known provider, or `offline`."""
    base_url: str = Field(default="", pattern=r"^$|^https?://\S+$")
    """The endpoint's address, up to `/v1`; empty: the provider's."""
    api: ApiName = "auto"
    """How the endpoint at `base_url` is spoken to."""
    api_key: SecretStr = SecretStr("")
    """The endpoint's key; empty: that of the provider's variable."""
    temperature: float | None = Field(default=None, ge=0)
    """Higher is more varied; none: the endpoint's own."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling; none: the endpoint's own."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The longest answer; none: the endpoint's own."""
    seed: int | None = None
    """For endpoints that can repeat themselves."""
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further fields of each request, sent as they are."""
    max_concurrency: int = Field(default=256, ge=1)
    """The most requests at a time; fewer where the endpoint asks for less."""
    call_seconds: float = Field(default=120.0, gt=0)
    """How long one call may take, all attempts together, from its first request on."""
    max_attempts: int = Field(default=4, ge=1, le=10)
    """HTTP requests for one call at most, whatever goes wrong."""
    structured: StructuredOutput = "auto"
    """How answers are held to their schema."""
    tokens: TokenMode = False
    """Answers bring the tokens that were read and written along, only from vLLM; `exact`: what was said before is sent as
    the tokens that it was, too, so that each prompt goes on from the one before to the token."""
    max_text_chars: int | None = Field(default=None, ge=1)
    """Characters of each text in an answer with a schema, in plain letters, held by the endpoint; none: not bounded."""
    vision: bool = True
    """It takes pictures."""
    prices: Prices | None = None
    """What tokens cost; needed for a budget of money."""

    @property
    def sampling(self) -> Sampling:
        """How it samples when a call says nothing."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            seed=self.seed,
            extra=self.extra_body,
        )
