"""Settings of a sandbox, from code or a file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from agentflow.errors import ConfigurationError
from agentflow.sandbox._api_tools import registered_tools
from agentflow.sandbox._tool_host import BACKEND_ALIASES, canonical_backend
from agentflow.settings import Settings, SettingsByName, import_named, nearest
from mcp_servers.core import BACKENDS, HANG_SECONDS, RuntimeChoice, check_known
from runtimes import InstanceSpec, Limits, NetworkAccess


def import_tools(modules: Iterable[str]) -> None:
    """Import modules or files that register tools. See docs/sandbox.md.

    :raises ConfigurationError: if one can't be imported; one line.
    """
    for name in modules:
        try:
            import_named(name)
        except ConfigurationError as error:
            raise ConfigurationError(f"imports: {error}") from None


def check_backends(
    setting: str, backends: Mapping[str, Mapping[str, object]], *, remote: bool = False
) -> None:
    """Refuse unknown backends, and unknown names among their settings.

    Example::

        check_backends("resource_types", {"knowledge_base": {}})

    :param setting: key of the settings, for the message.
    :param remote: a server has the backends, which may be others.
    :raises ConfigurationError: one line, with the nearest name.
    """
    registered = {tool.tool.backend for tool in registered_tools.values()}
    registered |= {tool.config_key for tool in registered_tools.values()}
    for name, settings in backends.items():
        canonical = canonical_backend(name)
        if canonical in BACKENDS or (":" in name and not remote):
            try:
                check_known({canonical: settings})
            except ConfigurationError as error:
                reason = str(error)
                where = f"{setting}.{name}" if reason.startswith(canonical) else f"{setting}: "
                raise ConfigurationError(where + reason.removeprefix(canonical)) from None
        elif not remote and name not in registered:
            known_names = [*BACKENDS, *BACKEND_ALIASES, *registered]
            raise ConfigurationError(f"{setting}: {name} is unknown{nearest(name, known_names)}")


def split_settings(
    named: Mapping[str, dict[str, object]],
) -> tuple[dict[str, dict[str, object]], dict[str, dict[str, object]]]:
    """Split settings by backend into those of registered functions, by `config_key`, and those of other backends.

    Example::

        apis, backends = split_settings({"weather": {"unit": "C"}, "rag": {"top_k": 3}})
    """
    keys = {tool.config_key for tool in registered_tools.values()}
    registered = keys | {tool.tool.backend for tool in registered_tools.values()}
    apis = {name: settings for name, settings in named.items() if name in keys}
    others = {canonical_backend(name): settings for name, settings in named.items() if name not in registered}
    return apis, others


class SandboxSettings(Settings):
    """Settings of a sandbox, in-process or remote."""

    model_config = SettingsConfigDict(env_prefix="AGENTFLOW_SANDBOX_")

    server_url: str | None = None
    """URL of a running server, such as `http://127.0.0.1:18890`; `None` hosts the tools in this process."""
    token: SecretStr | None = None
    """Bearer token of that server."""
    auto_start: bool = False
    """Start a server on this machine if none answers at `server_url`; it stops with the sandbox."""
    server_config: Path | None = None
    """Configuration file of a server that is started."""
    start_seconds: float = 30.0
    """Seconds for a server to answer after its start."""
    backends: list[str] | SettingsByName | None = None
    """Backends by name, or names with their settings; `None` means all built-in ones."""
    apis: dict[str, dict[str, object]] = Field(default_factory=dict[str, dict[str, object]])
    """Settings of functions registered by `register_api_tool`, by `config_key`."""
    imports: list[str] = Field(default_factory=list[str])
    """Modules or files, such as `tools.py`, that register tools; they are imported first."""
    warmup: list[str] = Field(default_factory=list[str])
    """Backends to start immediately; the others start at first use."""
    runtime: RuntimeChoice = "process"
    """Runtime of the sessions: `process`, `docker`, `runc` or `gvisor`, or a mapping with that `name` and options."""
    limits: Limits = Limits()
    """Limits of each session."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables of each session."""
    mounts: dict[str, str] = Field(default_factory=dict[str, str])
    """Read-only folders of each session: path inside -> path on this machine."""
    network: NetworkAccess | None = None
    """Hosts that the programs in a session may reach, as `{allow: [example.org, "*.example.com"]}`; by default none."""
    timeout: float | None = None
    """Seconds for a call without its own timeout; `None` leaves the session's limits, and `hang_seconds`."""
    hang_seconds: float | None = Field(default=HANG_SECONDS, gt=0)
    """Seconds that a tool or server has for a call without a timeout, beyond `limits.wall_seconds`; `None`: no limit."""

    @model_validator(mode="after")
    def _known_backends(self) -> Self:
        import_tools(self.imports)
        named: dict[str, dict[str, object]] = {name: {} for name in self.backends or ()}
        check_backends(
            "backends",
            named | dict(self.backends if isinstance(self.backends, dict) else {}),
            remote=self.server_url is not None,
        )
        return self

    @property
    def spec(self) -> InstanceSpec:
        """Return the spec of every session's instance."""
        return InstanceSpec(limits=self.limits, env=self.env, mounts=self.mounts, network=self.network)

    @property
    def backend_names(self) -> list[str] | None:
        """Return the backends by canonical name; `None` means all."""
        return None if self.backends is None else [canonical_backend(name) for name in self.backends]

    @property
    def warmup_names(self) -> list[str]:
        """Return the backends to start immediately, by canonical name."""
        return [canonical_backend(name) for name in self.warmup]

    @property
    def backend_settings(self) -> dict[str, dict[str, object]]:
        """Return the settings by backend."""
        if not isinstance(self.backends, dict):
            return {}
        return {canonical_backend(name): settings for name, settings in self.backends.items()}
