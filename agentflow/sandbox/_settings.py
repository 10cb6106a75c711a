"""What a sandbox is to be: settings from code or from a file."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from agentflow.sandbox._aliases import canonical_backend
from agentflow.settings import Settings
from mcp_servers.core import RuntimeChoice
from runtimes import InstanceSpec, Limits

__all__ = ["SandboxSettings"]


class SandboxSettings(Settings):
    """Settings of a sandbox, in-process or remote."""

    model_config = SettingsConfigDict(env_prefix="AGENTFLOW_SANDBOX_")

    server_url: str | None = None
    """A running server's address, such as `http://127.0.0.1:18890`; `None`: the tools run in this process."""
    token: SecretStr | None = None
    """The bearer token for that server."""
    auto_start: bool = False
    """Start a server on this machine when nothing answers at `server_url`; it stops with the sandbox."""
    server_config: Path | None = None
    """The configuration file for a server that is started."""
    start_seconds: float = 30.0
    """Time for a server to start to answer."""
    backends: list[str] | dict[str, dict[str, object]] | None = None
    """Backends to have, by name, or by name with their settings; `None`: all there are."""
    apis: dict[str, dict[str, object]] = Field(default_factory=dict[str, dict[str, object]])
    """Settings of functions made tools by `register_api_tool`, by their `config_key`."""
    warmup: list[str] = Field(default_factory=list[str])
    """Backends to start at once; the others start at first use."""
    runtime: RuntimeChoice = "process"
    """What isolates the sessions: `process`, `docker`, `runc` or `gvisor`, or a mapping with that `name` and options."""
    limits: Limits = Limits()
    """Limits of each session."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables of each session."""
    mounts: dict[str, str] = Field(default_factory=dict[str, str])
    """Read-only folders of each session: path inside -> path on this machine."""
    timeout: float | None = None
    """Seconds for a call that names no timeout of its own; `None`: the session's limits alone."""

    @property
    def spec(self) -> InstanceSpec:
        """What every session's instance is to be."""
        return InstanceSpec(limits=self.limits, env=self.env, mounts=self.mounts)

    @property
    def backend_names(self) -> list[str] | None:
        """The backends to have, by their proper names; `None`: all there are."""
        return None if self.backends is None else [canonical_backend(name) for name in self.backends]

    @property
    def warmup_names(self) -> list[str]:
        """The backends to start at once, by their proper names."""
        return [canonical_backend(name) for name in self.warmup]

    @property
    def backend_settings(self) -> dict[str, dict[str, object]]:
        """Settings by backend."""
        if not isinstance(self.backends, dict):
            return {}
        return {canonical_backend(name): own for name, own in self.backends.items()}
