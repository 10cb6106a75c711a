"""Kinds of tasks with a query or a program as their solution, each with sandboxes that no agent sees."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.growth import BranchSandboxes
from agentflow.runs import sandbox_settings
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.synthesis._config import SynthesisConfig, TaskName
from agentflow.synthesis._tasks import derivation_settings
from agentflow.tasks import (
    DerivationSettings,
    TaskGenerator,
    TaskKind,
    open_data_analysis,
    open_text2sql,
)
from mcp_servers import load_backend

_WORKERS: Final = 16
"""Databases and copies that are open at once."""
_Opens: TypeAlias = Callable[
    [Sandbox, TaskGenerator, DerivationSettings], AbstractAsyncContextManager[TaskKind]
]
"""Opens a kind over its sandbox."""
_NEEDS: Final[Mapping[TaskName, tuple[frozenset[str], str]]] = {
    "text2sql": (frozenset({"sql"}), "a database; set resource_init_configs.sql.databases"),
    "data_analysis": (
        frozenset({"data", "files", "code", "bash"}),
        "a data directory; set resource_init_configs.data.folder",
    ),
}
"""Backends of which an agent needs a tool, and the advice if there is nothing to work on."""


def solution_kind(
    config: SynthesisConfig, sandboxes: BranchSandboxes, generator: TaskGenerator
) -> Callable[[], AbstractAsyncContextManager[TaskKind]] | None:
    """Return what opens the kind of tasks that the settings name; `None` if they name none with solutions.

    :raises ConfigurationError: one line, if it can't work with these settings.
    """
    if config.tasks is None or config.tasks not in _NEEDS:
        return None
    backends, advice = _NEEDS[config.tasks]
    if backends.isdisjoint(tool.backend for tool in sandboxes.tools.values()):
        raise ConfigurationError(
            f"tasks: {config.tasks} needs a tool of the backend {min(backends & {'sql', 'data'})}; add it to available_tools"
        )
    settings, _ = sandbox_settings(config)
    if settings.server_url is not None:
        raise ConfigurationError(
            f"tasks: {config.tasks} verifies in sandboxes of its own, without a server; remove sandbox_server_url"
        )
    derivation = derivation_settings(config)
    given = settings.backend_settings
    if config.tasks == "text2sql" and given.get("sql"):
        copies = {"sql": {**given["sql"], "writable": True, "workers": _WORKERS}}
        return partial(_opened, open_text2sql, _with(settings, copies), generator, derivation)
    if config.tasks == "data_analysis" and (folder := _data_folder(given)):
        data, path = folder
        opens = partial(open_data_analysis, folder=path)
        return partial(_opened, opens, _with(settings, data), generator, derivation)
    raise ConfigurationError(f"tasks: {config.tasks} needs {advice}")


def _with(settings: SandboxSettings, backends: Mapping[str, Mapping[str, object]]) -> SandboxSettings:
    return settings.model_copy(update={"backends": dict(backends)})


def _data_folder(
    given: Mapping[str, dict[str, object]],
) -> tuple[dict[str, dict[str, object]], str] | None:
    """Return the settings of a sandbox with the data directory, and its path in a session; `None` without one."""
    for name in ("data", "files"):
        # A backend whose settings can't be used was reported when tools were chosen.
        with suppress(ConfigurationError, ToolFailure):
            own = given.get(name, {})
            for path in load_backend(name).mounts(own, {}) if own else ():
                return {"data": {}, name: own}, path
    return None


@asynccontextmanager
async def _opened(
    opens: _Opens, settings: SandboxSettings, generator: TaskGenerator, derivation: DerivationSettings
) -> AsyncGenerator[TaskKind]:
    async with Sandbox(settings) as sandbox, opens(sandbox, generator, derivation) as kind:
        yield kind
