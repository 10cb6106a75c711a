"""Settings of the mcp backend: which servers to mount, and how."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from agentflow.settings import Section

__all__ = ["Changes", "ExternalSettings", "MountSettings"]

Changes = Literal["refuse", "accept"]
"""What becomes of a tool that its server changes while it is mounted."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")


class MountSettings(Section):
    """One external server: a `command` that speaks MCP on its standard streams, or a `url`."""

    command: list[str] = Field(default_factory=list[str])
    """The program and its arguments; `{workspace}` in them is the server's folder."""
    args: list[str] = Field(default_factory=list[str])
    """More arguments, as other programs' settings have them."""
    env: dict[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    """Its environment variables. Beside these it has only `PATH` and `LANG`; nothing else of ours is passed on."""
    cwd: Path | None = None
    """The folder that it runs in."""
    workspace: Path | None = None
    """A folder of files for it. With `per_session` each session's server has a copy of its own."""
    url: str | None = None
    """The address of a server that speaks streamable HTTP."""
    headers: dict[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    """HTTP headers for each request, such as `Authorization`."""
    runtime: Literal["process"] | None = None
    """`process`: the command runs in a sandbox, without a network; with `per_session` in the session's own."""
    per_session: bool = False
    """Each session has a server of its own; otherwise all share one."""
    stateful: bool | None = None
    """It keeps state that a fork can't copy, so that a session which has used it can't be forked. By default what
    `per_session` says."""
    required: bool = True
    """If it can't be started, nothing starts; otherwise only its tools are missing."""
    tools: list[str] | None = None
    """Only these of its tools; `*` and `?` stand for any text."""
    changes: Changes = "refuse"
    """What becomes of tools that it changes, adds or takes away while it is mounted: with `refuse` a changed tool can't
    be called until the backend starts anew, and a new one isn't there."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds that a call may take; a shorter limit of the call itself counts."""
    start_seconds: float = Field(default=30.0, gt=0)
    """Seconds that it has to start."""
    output_characters: int = Field(default=100_000, ge=100)
    """How much of each text a result shows; what is longer is cut in the middle."""

    @field_validator("command", mode="before")
    @classmethod
    def _one_word_is_a_command(cls, command: object) -> object:
        return [command] if isinstance(command, str) else command

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command or a url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError("the url must begin with http:// or https://")
        for name in ("args", "env", "cwd", "workspace", "runtime"):
            if self.url is not None and getattr(self, name):
                raise ValueError(f"{name} is for a command, not for a url")
        if self.headers and self.url is None:
            raise ValueError("headers are for a url, not for a command")
        return self

    @property
    def keeps_state(self) -> bool:
        """It keeps state that a fork can't copy."""
        return self.per_session if self.stateful is None else self.stateful


class ExternalSettings(Section):
    """Settings of the mcp backend. They are the server's own: no client can make it run a command."""

    servers: dict[str, MountSettings] = Field(default_factory=dict[str, MountSettings])
    """The servers to mount, by the names that their tools get."""
    mcp_servers_path: Path | None = None
    """A file in the form that other programs share (`mcpServers`, JSON or YAML), with more servers."""
    enabled_mcp_servers: list[str] | None = None
    """Only these of all servers."""
    env_overrides: dict[str, SecretStr | dict[str, SecretStr]] = Field(
        default_factory=dict[str, "SecretStr | dict[str, SecretStr]"]
    )
    """Environment variables over those that the servers' own settings give: for every command, or by server."""
    workspace_root: Path | None = None
    """The folder of each command that names no `workspace` of its own."""

    @field_validator("servers")
    @classmethod
    def _can_be_named(cls, servers: dict[str, MountSettings]) -> dict[str, MountSettings]:
        for name in servers:
            if not NAME.match(name):
                raise ValueError(f"{name!r} can't name a server: use up to 32 letters, digits, '_' and '-'")
        return servers
