"""Choice of the tool host for a sandbox's target."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TypeAlias
from urllib.parse import urlsplit

from pydantic import SecretStr

from agentflow.errors import ConfigurationError
from agentflow.sandbox._api_tools import api_backends
from agentflow.sandbox._settings import SandboxSettings
from agentflow.sandbox._tool_host import LocalToolHost, ToolHost, canonical_backend
from agentflow.settings import load_settings
from mcp_servers import BACKENDS, Backend, load_backend
from mcp_servers.core import check_runtime
from runtimes import Runtime

Target: TypeAlias = str | PathLike[str] | SandboxSettings | None
"""A server's URL, a settings file, settings, or `None` for the defaults."""


def settings_for(target: Target, *, token: str | None, auto_start: bool | None) -> SandboxSettings:
    """Return the settings of a target.

    :raises ConfigurationError: if a settings file can't be used.
    """
    if isinstance(target, SandboxSettings):
        settings = target
    elif isinstance(target, str) and target.startswith(("http://", "https://")):
        settings = SandboxSettings(server_url=target)
    elif target is not None:
        settings = load_settings(SandboxSettings, str(target))
    else:
        settings = SandboxSettings()
    changes: dict[str, object] = {}
    if token is not None:
        changes["token"] = SecretStr(token)
    if auto_start is not None:
        changes["auto_start"] = auto_start
    return settings.model_copy(update=changes)


def tool_host_for(
    settings: SandboxSettings, backends: Sequence[str | Backend] | None, runtime: Runtime | None
) -> ToolHost:
    """Return the tool host, not open yet.

    :raises ConfigurationError: for an unknown backend, or a contradictory combination.
    """
    if settings.server_url is None:
        check_runtime(settings.runtime)
        chosen = _backends(settings, backends)
        loaded = {name: backend for name, backend in chosen.items() if backend is not None}
        return LocalToolHost(
            _by_own_names(settings, loaded),
            [*loaded.values(), *api_backends(settings.apis)],
            runtime,
            unloaded=[name for name in chosen if name not in loaded],
        )
    if runtime is not None or any(isinstance(backend, Backend) for backend in backends or ()):
        raise ConfigurationError(
            "a remote sandbox takes no backend or runtime objects: give them to the server, or leave out the address"
        )
    from agentflow.sandbox._launch import ServerLauncher
    from agentflow.sandbox._remote import RemoteToolHost  # the protocol's client is heavy

    url = _endpoint(settings.server_url)
    token = None if settings.token is None else settings.token.get_secret_value()
    launcher = ServerLauncher(url, settings) if settings.auto_start else None
    return RemoteToolHost(
        url, token, launcher, spare=settings.hang_seconds, wall=settings.limits.wall_seconds
    )


def _endpoint(url: str) -> str:
    """Return the endpoint of all backends together, if the URL is only the server's."""
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/mcp"


def _backends(settings: SandboxSettings, wanted: Sequence[str | Backend] | None) -> dict[str, Backend | None]:
    """Return backends by the name used in settings; those known by name are loaded at first use."""
    backends: dict[str, Backend | None] = {}
    for backend in (settings.backend_names or BACKENDS) if wanted is None else wanted:
        name = backend.name if isinstance(backend, Backend) else canonical_backend(backend)
        if name in backends:
            raise ConfigurationError(f"backend {name!r} is there already: name each one once")
        if isinstance(backend, Backend):
            backends[name] = backend
        else:
            backends[name] = None if name in BACKENDS else load_backend(name)
    return backends


def _by_own_names(settings: SandboxSettings, loaded: Mapping[str, Backend]) -> SandboxSettings:
    """Return the settings with a backend's own name in place of its import path."""
    own_names = {name: backend.name for name, backend in loaded.items()}
    return settings.model_copy(
        update={
            "backends": {
                own_names.get(name, name): values for name, values in settings.backend_settings.items()
            },
            "warmup": [own_names.get(name, name) for name in settings.warmup_names],
        }
    )
