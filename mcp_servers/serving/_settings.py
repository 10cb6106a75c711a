"""The settings of a server: from a file, the environment and the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from agentflow.settings import Section, Settings
from agentflow.telemetry import Level
from mcp_servers.core._archive import Archive
from mcp_servers.core._runtimes import RuntimeChoice
from mcp_servers.core._sessions import TableLimits
from mcp_servers.serving._access import HttpOptions
from runtimes import MIB, InstanceSpec, Limits

__all__ = ["NO_TOKEN", "CallSettings", "ClientSettings", "ServerSettings", "SessionSettings"]

NO_TOKEN = "none"
"""The token that says that none is needed."""


class ArchiveSettings(Section):
    """Where the files of sessions that have ended are kept."""

    folder: Path
    """The folder."""
    most_bytes: PositiveInt = 4096 * MIB
    """All files together; the oldest make room."""


class SessionSettings(Section):
    """What sessions may be."""

    most: PositiveInt = 1024
    """Sessions alive at once; one more is refused as `busy`."""
    idle_seconds: PositiveFloat | None = 1800.0
    """A session that nobody uses ends after this long; `null`: never."""
    kept_bytes: PositiveInt = 32 * MIB
    """Whole outputs and pictures kept per session."""
    limits: Limits = Limits()
    """Limits of what runs in a session."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables of every session."""
    mounts: dict[str, str] = Field(default_factory=dict[str, str])
    """Read-only folders of every session: path inside -> path on this machine."""
    archive: ArchiveSettings | None = None
    """Where the files of sessions that have ended are kept; by default they are gone."""

    def files_kept(self) -> Archive | None:
        """Where the files of sessions that have ended are kept."""
        return None if self.archive is None else Archive(self.archive.folder, self.archive.most_bytes)

    def spec(self) -> InstanceSpec:
        """What every session's instance is to be."""
        return InstanceSpec(limits=self.limits, env=self.env, mounts=self.mounts)


class CallSettings(Section):
    """What calls may be."""

    most_seconds: PositiveFloat | None = None
    """The longest that any call may take, whatever it asks for."""
    at_once: PositiveInt = 256
    """Calls of one backend that run at once; others wait, in fair turns of the clients."""
    waiting: PositiveInt = 4096
    """Calls of one backend that wait; one more is refused as `busy`."""
    body_bytes: PositiveInt = 16 * MIB
    """The largest request."""


class ClientSettings(Section):
    """One client of a server."""

    token: Annotated[SecretStr, Field(min_length=1)]
    """Its bearer token."""
    backends: list[str] | None = None
    """The backends that it may use; by default all."""


class ServerSettings(Settings):
    """Settings of a server. `AGENTFLOW_SERVER_<NAME>` sets one in the environment."""

    model_config = SettingsConfigDict(env_prefix="AGENTFLOW_SERVER_")

    backends: dict[str, dict[str, object] | None] = Field(
        default_factory=dict[str, "dict[str, object] | None"]
    )
    """The backends to serve, each with its settings, if it has any."""
    warmup: list[str] | None = None
    """Backends to get ready before the first request is answered; by default all; the others at first use."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=18890, ge=0, le=65535)
    """The port to listen on; 0: any free one."""
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that share the port; each session lives in one of them."""
    token: SecretStr | None = None
    """The bearer token; `none`: no token is needed, on a loopback address only; by default one is made."""
    tokens: dict[str, Annotated[SecretStr, Field(min_length=1)] | ClientSettings] = Field(
        default_factory=dict[str, "SecretStr | ClientSettings"]
    )
    """Several clients by their names, each by its token or as `{token, backends}`: each sees only its own sessions."""
    allowed_origins: list[str] = Field(default_factory=list[str])
    """Origins of web pages that may use the server, beside its own."""
    allowed_hosts: list[str] = Field(default_factory=list[str])
    """Further names that the server answers to (`host:port`)."""
    rate_limit: PositiveFloat | None = None
    """Requests a minute of one client."""
    grace_seconds: float = Field(default=10.0, ge=0)
    """Time for calls in progress to end when the server stops."""
    log_level: Level = Level.INFO
    """From which importance on something is logged."""
    runtime: RuntimeChoice = "process"
    """What isolates the sessions: `process`, `docker`, `runc` or `gvisor`, or a mapping with that `name` and options."""
    sessions: SessionSettings = SessionSettings()
    """What sessions may be."""
    calls: CallSettings = CallSettings()
    """What calls may be."""

    @model_validator(mode="after")
    def _tell_clients_apart(self) -> Self:
        own = [] if self.token is None else [self.token.get_secret_value()]
        tokens = [*self.client_tokens().values(), *own]
        if len(set(tokens)) < len(tokens):
            raise ValueError("two clients have the same token: give each one of its own")
        if NO_TOKEN in tokens and self.tokens:
            raise ValueError(f"token: {NO_TOKEN} lets everybody in, so tokens has no use: remove one of them")
        return self

    @model_validator(mode="after")
    def _scopes_are_served(self) -> Self:
        for name, client in self.tokens.items():
            for backend in (client.backends or ()) if isinstance(client, ClientSettings) else ():
                if self.backends and backend not in self.backends:
                    raise ValueError(f"tokens: {name}: backend {backend!r} is not served: add it to backends")
        return self

    def client_tokens(self) -> dict[str, str]:
        """The token of each client."""
        return {
            name: (one.token if isinstance(one, ClientSettings) else one).get_secret_value()
            for name, one in self.tokens.items()
        }

    def backend_names(self) -> list[str]:
        """The backends to serve."""
        return list(self.backends)

    def backend_settings(self) -> dict[str, dict[str, object]]:
        """The settings of each backend that has some."""
        return {name: own for name, own in self.backends.items() if own}

    def http_options(self, tokens: Mapping[str, str] | None) -> HttpOptions:
        """How the server is reached, with these tokens."""
        return HttpOptions(
            host=self.host,
            port=self.port,
            tokens=tokens,
            scopes={
                name: one.backends
                for name, one in self.tokens.items()
                if isinstance(one, ClientSettings) and one.backends is not None
            },
            allowed_origins=tuple(self.allowed_origins),
            allowed_hosts=tuple(self.allowed_hosts),
            requests_per_minute=self.rate_limit,
            body_bytes=self.calls.body_bytes,
            calls_at_once=self.calls.at_once,
            calls_waiting=self.calls.waiting,
            grace_seconds=self.grace_seconds,
        )

    def table_limits(self) -> TableLimits:
        """The limits of the tool table."""
        return TableLimits(
            sessions=self.sessions.most,
            idle_seconds=self.sessions.idle_seconds,
            call_seconds=self.calls.most_seconds,
            kept_bytes=self.sessions.kept_bytes,
        )
