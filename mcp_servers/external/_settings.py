"""Settings of the mcp backend: the servers to mount, and how."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from agentflow.settings import Section

Changes = Literal["refuse", "accept"]
"""Policy for a tool that its server changes while it is mounted."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")


class MountSettings(Section):
    """One external server: a `command` that speaks MCP on its standard streams, or a `url`."""

    command: list[str] = Field(default_factory=list[str])
    """The program and its arguments; `{workspace}` is replaced by the server's folder."""
    args: list[str] = Field(default_factory=list[str])
    """Further arguments, as in other programs' settings."""
    env: dict[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    """Environment variables of the command. Besides these it gets only `PATH` and `LANG`."""
    cwd: Path | None = None
    """Working directory of the command."""
    workspace: Path | None = None
    """Folder of files for the command. With `per_session` each session's server gets a copy."""
    url: str | None = None
    """URL of a server that speaks streamable HTTP."""
    headers: dict[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    """HTTP headers of each request, such as `Authorization`."""
    runtime: Literal["process"] | None = None
    """`process`: run the command in a sandbox without a network; with `per_session` in the session's own."""
    per_session: bool = False
    """Start a server for each session; otherwise all sessions share one."""
    stateful: bool | None = None
    """The server keeps state that a fork cannot copy, so that a session that has used it cannot be forked. Defaults to
    `per_session`.
    """
    required: bool = True
    """If the server cannot be started, refuse to start; otherwise only its tools are missing."""
    tools: list[str] | None = None
    """Tools to mount; `*` and `?` are wildcards. By default all."""
    changes: Changes = "refuse"
    """Policy for tools that the server changes, adds or removes while it is mounted: with `refuse`, a changed tool cannot
    be called until the backend restarts, and a new tool is ignored.
    """
    timeout: float = Field(default=120.0, gt=0)
    """Maximum seconds per call; a shorter limit of the call itself takes precedence."""
    start_seconds: float = Field(default=30.0, gt=0)
    """Maximum seconds for the start."""
    output_characters: int = Field(default=100_000, ge=100)
    """Maximum characters of each text in a result; longer text is truncated in the middle."""

    @field_validator("command", mode="before")
    @classmethod
    def _one_word_is_a_command(cls, command: object) -> object:
        return [command] if isinstance(command, str) else command

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command or a url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError("the url must start with http:// or https://")
        for name in ("args", "env", "cwd", "workspace", "runtime"):
            if self.url is not None and getattr(self, name):
                raise ValueError(f"{name} is for a command, not for a url")
        if self.headers and self.url is None:
            raise ValueError("headers are for a url, not for a command")
        return self

    @property
    def keeps_state(self) -> bool:
        """True if the server keeps state that a fork cannot copy."""
        return self.per_session if self.stateful is None else self.stateful


class ExternalSettings(Section):
    """Settings of the mcp backend. Only the server can set them, so that no client can make it run a command."""

    servers: dict[str, MountSettings] = Field(default_factory=dict[str, MountSettings])
    """The servers to mount, by the names that their tools get."""
    mcp_servers_path: Path | None = None
    """A file with more servers, in the common `mcpServers` form (JSON or YAML)."""
    enabled_mcp_servers: list[str] | None = None
    """Names of the servers to use; by default all."""
    env_overrides: dict[str, SecretStr | dict[str, SecretStr]] = Field(
        default_factory=dict[str, "SecretStr | dict[str, SecretStr]"]
    )
    """Environment variables that override the servers' own: for every command, or by server."""
    workspace_root: Path | None = None
    """Folder of each command without a `workspace`."""

    @field_validator("servers")
    @classmethod
    def _can_be_named(cls, servers: dict[str, MountSettings]) -> dict[str, MountSettings]:
        for name in servers:
            if not NAME.match(name):
                raise ValueError(
                    f"{name!r} is not a valid server name: use up to 32 letters, digits, '_' and '-'"
                )
        return servers
