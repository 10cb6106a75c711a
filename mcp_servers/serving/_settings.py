"""Server settings from a file, the environment and the command line, and the tool table that they describe."""

import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from agentflow.errors import ConfigurationError
from agentflow.settings import Section, Settings
from agentflow.telemetry import Level, configure_logging
from mcp_servers.core import BucketStorage, split_bucket_url
from mcp_servers.core._archive import Archive, ArchiveStorage, FolderStorage
from mcp_servers.core._backend import BACKENDS, check_known, load_backend
from mcp_servers.core._call import HANG_SECONDS
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._runtimes import RuntimeChoice, RuntimeHost
from mcp_servers.core._sessions import TableLimits, new_handle
from mcp_servers.core._shares import ClientQuota
from mcp_servers.core._table import ToolTable
from mcp_servers.serving._access import HttpOptions
from mcp_servers.serving._client_profiles import ClientProfile
from mcp_servers.serving._server_names import NAME_PATTERN, UNIX, PeerAddress, handles_of
from runtimes import MIB, InstanceSpec, Limits, NetworkAccess

NO_TOKEN = "none"
"""Value of `token` that disables tokens."""

OWNER = "owner"
"""Principal of `token`."""


class ArchiveSettings(Section):
    """Storage of the files of ended sessions."""

    renamed: ClassVar[dict[str, str]] = {"most_bytes": "max_bytes"}

    folder: Path | None = None
    """Folder; several servers may share it."""
    url: str | None = None
    """Instead of a folder, a bucket of an S3-compatible service: `s3://BUCKET/PREFIX` (extra `s3`)."""
    max_bytes: PositiveInt = 4096 * MIB
    """Maximum total size; the oldest archives are deleted first."""

    @model_validator(mode="after")
    def _one_storage(self) -> Self:
        if (self.folder is None) == (self.url is None):
            raise ValueError("set one of folder and url")
        if self.url is not None:
            split_bucket_url(self.url)
        return self

    def storage(self) -> ArchiveStorage:
        """Return the storage.

        :raises ConfigurationError: if the extra of a bucket is missing.
        """
        if self.folder is not None:
            return FolderStorage(self.folder)
        return BucketStorage(*split_bucket_url(self.url or ""))


class SessionSettings(Section):
    """Settings of sessions."""

    renamed: ClassVar[dict[str, str]] = {"most": "max_sessions"}

    max_sessions: PositiveInt = 1024
    """Maximum number of live sessions; one more is refused as `busy`."""
    idle_seconds: PositiveFloat | None = 1800.0
    """Idle time after which a session ends; `null`: never."""
    kept_bytes: PositiveInt = 32 * MIB
    """Maximum bytes of outputs and images kept per session."""
    limits: Limits = Limits()
    """Resource limits of the programs in a session."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables of every session."""
    mounts: dict[str, str] = Field(default_factory=dict[str, str])
    """Read-only folders of every session: path inside -> path on this machine."""
    network: NetworkAccess | None = None
    """Hosts that the programs in a session may reach, as `{allow: [example.org, "*.example.com"]}`; by default none."""
    archive: ArchiveSettings | None = None
    """Keeps the files of ended sessions; by default they are deleted."""

    def files_kept(self) -> Archive | None:
        """Return the archive for the files of ended sessions, if any."""
        return None if self.archive is None else Archive(self.archive.storage(), self.archive.max_bytes)

    def spec(self) -> InstanceSpec:
        """Return the specification of every session's instance."""
        return InstanceSpec(limits=self.limits, env=self.env, mounts=self.mounts, network=self.network)


class CallSettings(Section):
    """Limits of calls."""

    renamed: ClassVar[dict[str, str]] = {
        "most_seconds": "max_seconds",
        "at_once": "max_concurrent",
        "waiting": "max_waiting",
    }

    max_seconds: PositiveFloat | None = None
    """Maximum duration of any call, whatever it asks for."""
    hang_seconds: PositiveFloat | None = HANG_SECONDS
    """Time that a tool has for a call without a time limit, beyond that of its program (its `timeout`, or
    `sessions.limits.wall_seconds`; unlimited programs have none). `null`: no limit."""
    max_concurrent: PositiveInt = 256
    """Maximum concurrent calls per backend; further calls wait, and clients are served in turn."""
    max_waiting: PositiveInt = 4096
    """Maximum waiting calls per backend; one more is refused as `busy`."""
    body_bytes: PositiveInt = 16 * MIB
    """Maximum request size."""


class ClientSettings(Section):
    """One client of a server."""

    token: Annotated[SecretStr, Field(min_length=1)]
    """Its bearer token."""
    backends: list[str] | None = None
    """Backends that it may use; by default all."""
    max_sessions: PositiveInt | None = None
    """Maximum number of its live sessions; by default only the server's limit applies."""
    max_concurrent: PositiveInt | None = None
    """Maximum number of its concurrent calls per backend; by default only the server's limit applies."""


class ServerSettings(Settings):
    """Settings of a server. `AGENTFLOW_SERVER_<NAME>` sets one in the environment."""

    model_config = SettingsConfigDict(env_prefix="AGENTFLOW_SERVER_")

    backends: dict[str, dict[str, object] | None] = Field(
        default_factory=dict[str, "dict[str, object] | None"]
    )
    """Backends to serve, each with its settings, if any."""
    warmup: list[str] | None = None
    """Backends to warm up before the server is ready; by default all. The others are warmed up on first use."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=18890, ge=0, le=65535)
    """Port to listen on; 0: any free port."""
    socket: Path | None = None
    """Unix socket to listen on, instead of host and port."""
    workers: int = Field(default=1, ge=1, le=256)
    """Number of processes that share the port; each session lives in one of them."""
    name: str | None = Field(default=None, pattern=rf"^{NAME_PATTERN}$")
    """Name of this server among several behind a balancer; its session handles end in it."""
    peers: dict[Annotated[str, Field(pattern=rf"^{NAME_PATTERN}$")], str] = Field(
        default_factory=dict[str, str]
    )
    """The other servers behind that balancer: name -> `http://host:port` or `unix:/path`. They have the same tokens."""
    token: SecretStr | None = None
    """Bearer token; `none`: no token, on a loopback address only; by default one is generated."""
    tokens: dict[str, Annotated[SecretStr, Field(min_length=1)] | ClientSettings] = Field(
        default_factory=dict[str, "SecretStr | ClientSettings"]
    )
    """Several clients by name, each with its token or `{token, backends, max_sessions, max_concurrent}`; each sees only its
    own sessions."""
    allowed_origins: list[str] = Field(default_factory=list[str])
    """Further origins of web pages that may use the server."""
    allowed_hosts: list[str] = Field(default_factory=list[str])
    """Further `host:port` names that the server answers to."""
    client_profiles: dict[str, ClientProfile] = Field(default_factory=dict[str, ClientProfile])
    """Forms of results by the name that a client program sends (`my-agent*`, `*`)."""
    rate_limit: PositiveFloat | None = None
    """Maximum requests per minute of one client."""
    rate_file: Path | None = None
    """File in which several servers on this machine share `rate_limit`."""
    grace_seconds: float = Field(default=10.0, ge=0)
    """Time for running calls to finish when the server stops."""
    log_level: Level = Level.INFO
    """Minimum level of log messages."""
    runtime: RuntimeChoice = "process"
    """Runtime that isolates sessions: `process`, `docker`, `runc` or `gvisor`, or a mapping with that `name` and options."""
    sessions: SessionSettings = SessionSettings()
    """Settings of sessions."""
    calls: CallSettings = CallSettings()
    """Limits of calls."""

    @model_validator(mode="after")
    def _known_backends(self) -> Self:
        try:
            check_known({name: options or {} for name, options in self.backends.items()})
        except ConfigurationError as error:
            raise ValueError(f"backends.{error}") from None
        return self

    @model_validator(mode="after")
    def _tell_clients_apart(self) -> Self:
        owner_tokens = [] if self.token is None else [self.token.get_secret_value()]
        tokens = [*self.client_tokens().values(), *owner_tokens]
        if len(set(tokens)) < len(tokens):
            raise ValueError("two clients have the same token: give each client a unique token")
        if NO_TOKEN in tokens and self.tokens:
            raise ValueError(
                f"token: {NO_TOKEN} disables tokens, so `tokens` has no effect: remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _scopes_are_served(self) -> Self:
        for name, backends in self.scopes().items():
            for backend in backends:
                if self.backends and backend not in self.backends:
                    raise ValueError(f"tokens: {name}: backend {backend!r} is not served: add it to backends")
        return self

    @model_validator(mode="after")
    def _peers_are_others(self) -> Self:
        if self.peers and self.name is None:
            raise ValueError("name: peers reach this server by its name: set name")
        if self.workers > 1 and self.name is not None and not re.fullmatch("[a-z][a-z0-9]*", self.name):
            raise ValueError(
                f"name: {self.name!r} is that of a worker: start with a letter, without a hyphen"
            )
        if self.name in self.peers:
            raise ValueError(f"peers: {self.name!r} is this server itself: name only the others")
        for name, address in self.peers.items():
            if not re.fullmatch(r"https?://[^/]+/?|unix:/.+", address):
                raise ValueError(f"peers: {name}: {address!r} is neither http://host:port nor unix:/path")
        return self

    def client_tokens(self) -> dict[str, str]:
        """Return the token of each client."""
        return {
            name: (client.token if isinstance(client, ClientSettings) else client).get_secret_value()
            for name, client in self.tokens.items()
        }

    def principal_tokens(self) -> dict[str, str]:
        """Return the token of each principal, without a generated one."""
        owner_token = None if self.token is None else self.token.get_secret_value()
        return {**self.client_tokens(), **({} if owner_token in (None, NO_TOKEN) else {OWNER: owner_token})}

    def peer_addresses(self) -> dict[str, PeerAddress]:
        """Return the address of each peer."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        own_address = f"http://{host}:{self.port}"
        return {
            name: PeerAddress(own_address, address.removeprefix(UNIX))
            if address.startswith(UNIX)
            else PeerAddress(address.rstrip("/"))
            for name, address in self.peers.items()
        }

    def scopes(self) -> dict[str, list[str]]:
        """Return the backends of each client that may not use all."""
        return {
            name: client.backends
            for name, client in self.tokens.items()
            if isinstance(client, ClientSettings) and client.backends is not None
        }

    def quotas(self) -> dict[str, ClientQuota]:
        """Return the clients among whom the server is divided, each with its quota; none if every token is generated."""
        clients: list[tuple[str, SecretStr | ClientSettings]] = [*self.tokens.items()]
        if self.token is not None and self.token.get_secret_value() != NO_TOKEN:
            clients.append((OWNER, self.token))
        return {
            name: ClientQuota(sessions=client.max_sessions, calls=client.max_concurrent)
            if isinstance(client, ClientSettings)
            else ClientQuota()
            for name, client in clients
        }

    def backend_settings(self) -> dict[str, dict[str, object]]:
        """Return the settings of each backend that has any."""
        return {name: settings for name, settings in self.backends.items() if settings}

    def http_options(self, tokens: Mapping[str, str] | None) -> HttpOptions:
        """Return the HTTP options with these tokens."""
        return HttpOptions(
            host=self.host,
            port=self.port,
            tokens=tokens,
            scopes=self.scopes(),
            quotas=self.quotas(),
            profiles=self.client_profiles,
            allowed_origins=tuple(self.allowed_origins),
            allowed_hosts=tuple(self.allowed_hosts),
            name=self.name,
            requests_per_minute=self.rate_limit,
            rate_file=self.rate_file,
            body_bytes=self.calls.body_bytes,
            max_concurrent_calls=self.calls.max_concurrent,
            max_waiting_calls=self.calls.max_waiting,
            grace_seconds=self.grace_seconds,
        )

    def table_limits(self) -> TableLimits:
        """Return the limits of the tool table."""
        return TableLimits(
            sessions=self.sessions.max_sessions,
            idle_seconds=self.sessions.idle_seconds,
            call_seconds=self.calls.max_seconds,
            hang_seconds=self.calls.hang_seconds,
            kept_bytes=self.sessions.kept_bytes,
            clients=self.quotas(),
        )


def make_table(settings: ServerSettings, runtime: RuntimeHost) -> tuple[ToolTable, list[str]]:
    """Return the tool table that the settings describe, and the names of the backends to warm up before it is ready.

    :raises ConfigurationError: if the settings are invalid.
    """
    names = list(settings.backends)
    if not names:
        raise ConfigurationError(f"name at least one backend to serve.{did_you_mean('', BACKENDS)}")
    for name in settings.warmup or ():
        if name not in names:
            raise ConfigurationError(f"warmup: {name!r} is not served.{did_you_mean(name, names)}")
    backends = {name: load_backend(name) for name in names}
    given_settings = settings.backend_settings()
    for name, backend in backends.items():
        backend.check(given_settings.get(name, {}))
    kind = ToolTable
    if settings.name is not None:
        # Loads the SDK, which a single server need not wait for.
        from mcp_servers.serving._peers import JoinedTable

        kind = partial(JoinedTable, settings.name, settings.peer_addresses(), settings.principal_tokens())
    table = kind(
        backends.values(),
        runtime=runtime.get,
        spec=settings.sessions.spec(),
        settings={
            backend.name: given_settings[name] for name, backend in backends.items() if name in given_settings
        },
        limits=settings.table_limits(),
        handles=new_handle if settings.name is None else handles_of(settings.name),
        archive=settings.sessions.files_kept(),
    )
    # Backends that discover their tools are warmed up before any client lists tools.
    discovering = [name for name in names if backends[name].discovers]
    warm = names if settings.warmup is None else dict.fromkeys([*settings.warmup, *discovering])
    return table, [backends[name].name for name in warm]


def set_up_logging(level: Level) -> None:
    """Log our packages at the given level and libraries from WARNING on.

    Below that, libraries log connection names and whole messages.
    """
    configure_logging(Level.WARNING)
    for package in ("agentflow", "mcp_servers", "runtimes"):
        logging.getLogger(package).setLevel(level.name)
