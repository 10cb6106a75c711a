"""Kinds of tasks with a query or a program as their solution, each with sandboxes that no agent sees."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

from agentflow.errors import ConfigurationError
from agentflow.growth import BranchSandboxes
from agentflow.runs import sandbox_settings
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.synthesis._config import SynthesisConfig, TaskName
from agentflow.synthesis._tasks import derivation_settings
from agentflow.tasks import (
    DerivationSettings,
    TaskGenerator,
    TaskKind,
    hidden_settings,
    open_data_analysis,
    open_text2sql,
)

_Opens: TypeAlias = Callable[
    [Sandbox, TaskGenerator, DerivationSettings], AbstractAsyncContextManager[TaskKind]
]
"""Opens a kind over its sandbox."""
_NEEDS: Final[Mapping[TaskName, frozenset[str]]] = {
    "text2sql": frozenset({"sql"}),
    "data_analysis": frozenset({"data", "files", "code", "bash"}),
}
"""Backends of which an agent needs a tool."""


def solution_kind(
    config: SynthesisConfig, sandboxes: BranchSandboxes, generator: TaskGenerator
) -> Callable[[], AbstractAsyncContextManager[TaskKind]] | None:
    """Return what opens the kind of tasks that the settings name; `None` if they name none with solutions.

    :raises ConfigurationError: one line, if it can't work with these settings.
    """
    named = config.task_kind
    if named is None or named not in _NEEDS:
        return None
    backends = _NEEDS[named]
    if backends.isdisjoint(tool.backend for tool in sandboxes.tools.values()):
        raise ConfigurationError(
            f"tasks: {named} needs a tool of the backend {min(backends & {'sql', 'data'})}; add it to available_tools"
        )
    hidden, folder = hidden_settings(named, sandbox_settings(config)[0])
    opens: _Opens = open_text2sql
    if named == "data_analysis":
        opens = partial(open_data_analysis, folder=folder)
    return partial(_opened, opens, hidden, generator, derivation_settings(config))


@asynccontextmanager
async def _opened(
    opens: _Opens, settings: SandboxSettings, generator: TaskGenerator, derivation: DerivationSettings
) -> AsyncGenerator[TaskKind]:
    async with Sandbox(settings) as sandbox, opens(sandbox, generator, derivation) as kind:
        yield kind
