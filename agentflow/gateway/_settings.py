"""Settings of the gateway."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator

from agentflow.errors import ConfigurationError
from agentflow.models import ModelSettings, is_loopback
from agentflow.settings import EndpointUrl, Section

ONLY_AGENT = ""
"""Name of the agent of episodes with only one."""


def url_host(host: str) -> str:
    """Return a host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def own_host(host: str) -> str:
    """Return the host under which this machine reaches a server that listens on a host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


class UpstreamSettings(Section):
    """The engine that serves the trained model. See docs/gateway.md."""

    base_url: EndpointUrl = ""
    """Address of the engine, up to `/v1`."""
    api_key: SecretStr = SecretStr("")
    """Key for the engine."""
    model: str = ""
    """Name of the model."""
    tokens: Literal["exact", "recorded"] = "exact"
    """`exact` sends conversations as tokens (vLLM's render and generate endpoints); `recorded` sends messages and stores the
    tokens that the engine reports."""
    max_concurrency: int = Field(default=256, ge=1)
    """Maximum number of concurrent requests."""
    call_seconds: float = Field(default=600.0, gt=0)
    """Time for one call in seconds, over all attempts."""
    response_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Maximum size of an answer; a larger one fails the call."""


class AgentSettings(Section):
    """One agent of an episode. See docs/gateway.md."""

    trained: bool = False
    """Its calls go to the trained model."""
    model: ModelSettings | None = None
    """The model of an agent that is not trained."""

    @model_validator(mode="after")
    def _one_model(self) -> "AgentSettings":
        if self.trained is (self.model is not None):
            raise ValueError("write trained: true, or the model of an agent that is not trained")
        return self


class EpisodeLimits(Section):
    """Limits of one episode. See docs/gateway.md."""

    in_flight: int = Field(default=16, ge=1)
    """Maximum number of concurrent calls."""
    calls: int = Field(default=500, ge=1)
    """Maximum number of calls."""
    tokens: int = Field(default=1_000_000, ge=1)
    """Maximum number of recorded tokens; those that a prompt shares with an earlier call count once."""
    recorded_bytes: int = Field(default=256 * 2**20, ge=1)
    """Maximum size of the record."""
    idle_seconds: float = Field(default=600.0, gt=0)
    """Seconds without a call after which it expires."""
    total_seconds: float = Field(default=3600.0, gt=0)
    """Seconds after which it expires."""
    attempts: int = Field(default=3, ge=1)
    """Number of attempts that may be aborted or expire before the trainer is told that the episode failed."""


class GatewaySettings(Section):
    """Address, agents, limits and tokens of a gateway. See docs/gateway.md."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0: any free port."""
    hosts: tuple[str, ...] = ()
    """Further names under which clients reach it, with or without a port; requests for another host are refused."""
    public_url: EndpointUrl = ""
    """Address that episodes are told; empty: host and port, or those of the client's request if it listens on all addresses."""
    folder: Path | None = None
    """Folder of the journal; `None`: a temporary one."""
    upstream: UpstreamSettings = UpstreamSettings()
    """The trained model."""
    agents: dict[str, AgentSettings] = Field(default_factory=dict[str, AgentSettings])
    """Agents by name; empty: one agent, which is trained."""
    any_model: bool = False
    """Answer whatever model a request names, with that of its key; otherwise another name is not found."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of trained agents, unless the offer of an episode has its own."""
    group_size: int = Field(default=8, ge=1)
    """Number of episodes of each task that clients bring."""
    limits: EpisodeLimits = EpisodeLimits()
    """Limits of one episode."""
    body_bytes: int = Field(default=8 * 2**20, ge=1024)
    """Maximum size of a request."""
    token: SecretStr = SecretStr("")
    """Token of the owner, the trainer; empty: a random one."""
    worker_token: SecretStr = SecretStr("")
    """Token of clients that play episodes; empty: only the owner plays."""
    viewer_token: SecretStr = SecretStr("")
    """Token of clients that only read the status and tokens; empty: none."""

    def check(self) -> None:
        """Refuse settings that can't be used together.

        :raises ConfigurationError: one line.
        """
        tokens = [token for token in self.tokens().values() if token]
        if len(tokens) > len(set(tokens)):
            raise ConfigurationError("token: two roles have the same token; give each its own")
        if short := [name for name, token in self.tokens().items() if token and len(token) < 16]:
            raise ConfigurationError(
                f"{short[0]}: shorter than 16 characters; write a random one, such as from `openssl rand -hex 32`"
            )
        if not is_loopback(f"http://{url_host(self.host)}") and not self.token.get_secret_value():
            raise ConfigurationError(
                f"host: {self.host!r} is reachable from other machines; set token, or host=127.0.0.1"
            )
        trained = any(agent.trained for agent in self.agents_or_one().values())
        if trained and not (self.upstream.base_url and self.upstream.model):
            raise ConfigurationError(
                "upstream: a trained agent needs a model; set upstream.base_url and upstream.model"
            )

    def tokens(self) -> dict[str, str]:
        """Return the tokens by the names of their settings; empty ones are not set."""
        return {
            name: token.get_secret_value()
            for name, token in (
                ("token", self.token),
                ("worker_token", self.worker_token),
                ("viewer_token", self.viewer_token),
            )
        }

    def agents_or_one(self) -> dict[str, AgentSettings]:
        """Return the agents by name; if none is set, the only one, which is trained."""
        return dict(self.agents) or {ONLY_AGENT: AgentSettings(trained=True)}
