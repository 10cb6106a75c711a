"""From what a caller asked for to the door that leads there."""

from collections.abc import Sequence
from os import PathLike
from typing import TypeAlias
from urllib.parse import urlsplit

from pydantic import SecretStr

from agentflow.errors import ConfigurationError
from agentflow.sandbox._aliases import canonical_backend
from agentflow.sandbox._api_tools import api_backends
from agentflow.sandbox._local import LocalDoor
from agentflow.sandbox._settings import SandboxSettings
from agentflow.sandbox._tool_host import Door
from agentflow.settings import load_settings
from mcp_servers import BACKENDS, Backend, load_backend
from mcp_servers.core import check_runtime
from runtimes import Runtime

__all__ = ["Target", "door_to", "settings_for"]

Target: TypeAlias = str | PathLike[str] | SandboxSettings | None
"""A server's address, a settings file, settings, or nothing for the defaults."""


def settings_for(target: Target, *, token: str | None, auto_start: bool | None) -> SandboxSettings:
    """The settings that a target stands for.

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


def door_to(
    settings: SandboxSettings, backends: Sequence[str | Backend] | None, runtime: Runtime | None
) -> Door:
    """The door, not yet open.

    :raises ConfigurationError: for an unknown backend, or things that do not go together.
    """
    if settings.server_url is None:
        check_runtime(settings.runtime)
        chosen = _backends(settings, backends)
        loaded = [(name, one) for name, one in chosen if one is not None]
        return LocalDoor(
            _by_own_names(settings, loaded),
            [*(backend for _, backend in loaded), *api_backends(settings.apis)],
            runtime,
            unloaded=[name for name, one in chosen if one is None],
        )
    if runtime is not None or any(isinstance(backend, Backend) for backend in backends or ()):
        raise ConfigurationError(
            "a remote sandbox takes no backend or runtime objects: give them to the server, or leave out the address"
        )
    from agentflow.sandbox._launch import Launcher
    from agentflow.sandbox._remote import RemoteDoor  # the protocol's client is heavy

    url = _endpoint(settings.server_url)
    token = None if settings.token is None else settings.token.get_secret_value()
    return RemoteDoor(url, token, Launcher(url, settings) if settings.auto_start else None)


def _endpoint(url: str) -> str:
    """The address of all backends together, where the address is only the server's."""
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/mcp"


def _backends(
    settings: SandboxSettings, wanted: Sequence[str | Backend] | None
) -> list[tuple[str, Backend | None]]:
    """Each with the name by which settings know it; of those that are known by name the name alone, until it is needed."""
    asked = (settings.backend_names or BACKENDS) if wanted is None else wanted
    found: list[tuple[str, Backend | None]] = []
    for one in asked:
        if isinstance(one, Backend):
            found.append((one.name, one))
        else:
            name = canonical_backend(one)
            found.append((name, None if name in BACKENDS else load_backend(name)))
    names = [name for name, _ in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigurationError(f"backend {twice!r} is there already: name each one once")
    return found


def _by_own_names(settings: SandboxSettings, chosen: Sequence[tuple[str, Backend]]) -> SandboxSettings:
    """The settings, with a backend's own name where they name it by the place where it is made."""
    own = {name: backend.name for name, backend in chosen}
    return settings.model_copy(
        update={
            "backends": {own.get(name, name): said for name, said in settings.backend_settings.items()},
            "warmup": [own.get(name, name) for name in settings.warmup_names],
        }
    )
