"""Settings of the mcp backend: the servers to mount, and how, also from files shared with other programs."""

import os
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from agentflow._typeguards import is_mapping
from agentflow.errors import ConfigurationError
from agentflow.settings import Section, read_file
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._running import check_settings
from runtimes import MIB

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
    """`process`: run the command in a sandbox, with the sessions' network, if any; with `per_session` in the session's own."""
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
    message_bytes: int = Field(default=16 * MIB, ge=MIB // 16)
    """Maximum size of one message of the server, which may have one JSON value per 160 bytes of this limit. A larger message
    fails the call or ends the connection.
    """
    max_tools: int = Field(default=2_000, ge=1)
    """Maximum number of tools that the server may list; a server that lists more cannot be mounted."""
    tools_bytes: int = Field(default=4 * MIB, ge=1_000)
    """Maximum size of the whole list of tools."""
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


TAKEN = ("command", "args", "env", "cwd", "url", "headers")
"""Keys taken from an entry of a shared file. The others are meant for other programs."""


def servers_of(settings: ExternalSettings) -> dict[str, MountSettings]:
    """Return the servers to mount, by name.

    :raises ConfigurationError: if a file is invalid, or a named server does not exist.
    """
    servers = dict(settings.servers)
    if settings.mcp_servers_path is not None:
        servers = {**_from_file(settings.mcp_servers_path), **servers}
    wanted = settings.enabled_mcp_servers
    for name in wanted or ():
        if name not in servers:
            raise ConfigurationError(f"enabled_mcp_servers: no server {name!r}.{did_you_mean(name, servers)}")
    chosen = servers if wanted is None else {name: servers[name] for name in wanted}
    return {name: _completed(name, server, settings) for name, server in chosen.items()}


def _completed(name: str, server: MountSettings, settings: ExternalSettings) -> MountSettings:
    """Apply the settings for several servers to one."""
    if server.url is not None:
        return server
    over: dict[str, SecretStr] = {}
    for key, value in settings.env_overrides.items():
        if isinstance(value, SecretStr):
            over[key] = value
        elif key == name:
            over.update(value)
    changes: dict[str, object] = {"env": {**server.env, **over}}
    if server.workspace is None and settings.workspace_root is not None:
        changes["workspace"] = settings.workspace_root
    completed = server.model_copy(update=changes)
    for folder in (completed.workspace, completed.cwd):
        if folder is not None and completed.runtime is None and not folder.is_dir():
            raise ConfigurationError(f"mcp server {name!r}: no folder {str(folder)!r}")
    return completed


def _from_file(path: Path) -> dict[str, MountSettings]:
    content = read_file(path, os.environ)
    entries = content.get("mcpServers", content.get("servers"))
    if not is_mapping(entries):
        raise ConfigurationError(f"{path}: holds no mapping 'mcpServers' from names to servers")
    servers: dict[str, MountSettings] = {}
    for name, entry in entries.items():
        if not is_mapping(entry):
            raise ConfigurationError(f"{path}: mcpServers.{name} is no mapping")
        if entry.get("disabled"):
            continue
        if "sse" in (entry.get("type"), entry.get("transport")):
            raise ConfigurationError(
                f"{path}: mcpServers.{name}: the old SSE transport isn't spoken here; use its streamable HTTP address"
            )
        server = {key: entry[key] for key in TAKEN if key in entry}
        check_settings(ExternalSettings, "mcp", {"servers": {name: server}})
        servers[name] = MountSettings.model_validate(server)
    return servers
