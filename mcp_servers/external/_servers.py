"""Collection of the mounted servers from the settings and from shared files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import SecretStr

from agentflow.errors import ConfigurationError
from agentflow.settings import read_file
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._running import check_settings
from mcp_servers.external._settings import ExternalSettings, MountSettings

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
    if not isinstance(entries, Mapping):
        raise ConfigurationError(f"{path}: holds no mapping 'mcpServers' from names to servers")
    found: dict[str, MountSettings] = {}
    for name, entry in cast("Mapping[str, object]", entries).items():
        if not isinstance(entry, Mapping):
            raise ConfigurationError(f"{path}: mcpServers.{name} is no mapping")
        own = cast("Mapping[str, object]", entry)
        if own.get("disabled"):
            continue
        if "sse" in (own.get("type"), own.get("transport")):
            raise ConfigurationError(
                f"{path}: mcpServers.{name}: the old SSE transport isn't spoken here; use its streamable HTTP address"
            )
        server = {key: own[key] for key in TAKEN if key in own}
        check_settings(ExternalSettings, "mcp", {"servers": {name: server}})
        found[name] = MountSettings.model_validate(server)
    return found
