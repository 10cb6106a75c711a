"""Base class of backends, and their registry; each backend is imported when it is first used."""

import importlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from agentflow.errors import ConfigurationError
from agentflow.settings import import_object, nearest, unknown_key
from mcp_servers.core._failures import did_you_mean
from mcp_servers.core._running import check_settings
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import Tool, tools_of
from runtimes import Instance


class Backend:
    """A group of tools with a shared lifecycle. Subclass it, set `name`, decorate async methods with `@tool`.

    The lifecycle: `configure` and `warmup` once when the server (or sandbox) starts; for each session `initialize` before
    the first call and `cleanup` at the end, and `fork` when the session is copied; `shutdown` once at the end. Keep the state
    of a session with `session.put(state)` and read it with `session.get(StateType)`.

    Example::

        class Clock(Backend):
            name = "clock"

            @tool(read_only=True)
            async def now(self) -> str: ...
    """

    name: str = ""
    """Name of the backend: lower-case letters, digits and '_'."""
    description: str = ""
    """One sentence for people and models."""
    settings_model: type[BaseModel] | None = None
    """Model of its settings, by which `check` validates them."""
    reserved: frozenset[str] = frozenset()
    """Settings that only the server's configuration may set; clients cannot set them for their session."""
    cards: Path | None = None
    """TOML file with a table for each tool, by its verb: `limits` and `practices`, as in `@tool`, for those without."""
    discovers: bool = False
    """The tools are known only after `warmup` and may change later; each change makes `tools` a new tuple. Such a backend
    is warmed up before any client lists tools.
    """
    start_instance: Callable[[], Awaitable[Instance]] | None = None
    """Starts an instance that belongs to no session; available from `configure` on. The caller must stop the instance."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools; by default the decorated methods."""
        return self._methods

    @cached_property
    def _methods(self) -> tuple[Tool, ...]:
        return tools_of(self, self.name, self.cards)

    def check(self, settings: Mapping[str, object]) -> None:
        """Validate the server's settings for this backend before the server starts.

        :raises ConfigurationError: with one line that describes the problem.
        """
        if self.settings_model is not None:
            check_settings(self.settings_model, self.name, settings)

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        """Return the tools (by verb) that cannot work with the server's settings, such as one without its API key.

        :return: for each tool one line with the reason and the fix. The tool is listed, and its calls fail with that line.
            Settings that are invalid altogether are rejected by `check`.
        """
        return {}

    def hidden(self, settings: Mapping[str, object]) -> Collection[str]:
        """Return the tools (by verb) that the server's settings disable; they are not listed."""
        return ()

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the server's settings: called once, before `warmup`, for state that belongs to no session.

        :raises ConfigurationError: if they are invalid.
        """

    def mounts(
        self, settings: Mapping[str, object], session_settings: Mapping[str, object]
    ) -> Mapping[str, str]:
        """Return the folders of this machine to mount read-only in a session's instance: path inside -> path here.

        Called when the instance starts, even if the backend is not yet live in the session.

        :param settings: the server's settings.
        :param session_settings: the session's settings. They may come from a client, so paths in them must be checked.
        :raises ToolFailure: for a folder that the session may not mount.
        """
        return {}

    async def warmup(self) -> None:
        """Prepare for the first session: load, connect, check. Raise to refuse to start."""

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Make this backend live in a session: called once, before its first tool runs there.

        :param settings: the backend's settings; those from `session_start` override the server's.
        """

    async def fork(self, session: Session, forked: Session) -> tuple[str, ...] | None:
        """Copy per-session state to `forked`, whose instance (if any) has already been forked.

        Called only if this backend is live in `session`; `initialize` is not called for the copy. No call runs in `session`
        meanwhile.

        :return: one line for each thing that could not be copied, or `None`.
        """

    async def cleanup(self, session: Session) -> None:
        """Release what the session holds outside its instance. Called once per live session; must not hang."""

    async def shutdown(self) -> None:
        """Release everything, after the last session has ended."""


BACKENDS: Final[dict[str, str]] = {
    "bash": "mcp_servers.bash:BashBackend",
    "browser": "mcp_servers.browser:BrowserBackend",
    "code": "mcp_servers.code:CodeBackend",
    "data": "mcp_servers.data:DataBackend",
    "document": "mcp_servers.document:DocumentBackend",
    "files": "mcp_servers.files:FilesBackend",
    "mcp": "mcp_servers.external:ExternalBackend",
    "rag": "mcp_servers.rag:RagBackend",
    "sql": "mcp_servers.sql:SqlBackend",
    "vm": "mcp_servers.vm:VmBackend",
    "web": "mcp_servers.web:WebBackend",
    "world": "mcp_servers.world:WorldBackend",
}
"""Backend name -> module and factory."""


def load_backend(name: str) -> Backend:
    """Create the backend of that name, or from `package.module:Class`.

    :raises ConfigurationError: if there is none; the message suggests the closest name.

    Example::

        ToolTable([load_backend("bash"), load_backend("files")])
    """
    path = BACKENDS.get(name, name)
    module, colon, factory = path.partition(":")
    if not colon:
        raise ConfigurationError(f"no backend {name!r}.{did_you_mean(name, BACKENDS)}")
    try:
        make = getattr(importlib.import_module(module), factory) if name in BACKENDS else import_object(name)
    except (ImportError, ConfigurationError) as error:
        raise ConfigurationError(f"backend {name!r} can't be loaded: {error}") from None
    backend = make() if callable(make) else make
    if not isinstance(backend, Backend):
        raise ConfigurationError(f"backend {name!r}: {path} does not create an mcp_servers.Backend")
    return backend


def check_known(backends: Mapping[str, Mapping[str, object]]) -> None:
    """Refuse unknown backends, and unknown names among their settings; values are checked when a backend starts.

    Example::

        check_known({"rag": {"index_path": "papers"}})

    :param backends: settings by backend.
    :raises ConfigurationError: with the nearest name.
    """
    for name, settings in backends.items():
        if name not in BACKENDS and ":" not in name:
            raise ConfigurationError(f"{name} is unknown{nearest(name, BACKENDS)}")
        model = load_backend(name).settings_model if settings else None
        if model is not None and (problem := unknown_key(model, settings)):
            raise ConfigurationError(f"{name}.{problem}")
