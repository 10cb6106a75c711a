"""Settings of a sandbox, from code or a file."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from agentflow.sandbox._names import canonical_backend
from agentflow.settings import Settings
from mcp_servers.core import RuntimeChoice
from runtimes import InstanceSpec, Limits


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
    backends: list[str] | dict[str, dict[str, object]] | None = None
    """Backends by name, or names with their settings; `None` means all built-in ones."""
    apis: dict[str, dict[str, object]] = Field(default_factory=dict[str, dict[str, object]])
    """Settings of functions registered by `register_api_tool`, by `config_key`."""
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
    timeout: float | None = None
    """Seconds for a call without its own timeout; `None` leaves only the session's limits."""

    @property
    def spec(self) -> InstanceSpec:
        """Return the spec of every session's instance."""
        return InstanceSpec(limits=self.limits, env=self.env, mounts=self.mounts)

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
        return {canonical_backend(name): own for name, own in self.backends.items()}
