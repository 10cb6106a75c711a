"""Interoperability: tasks with their sandboxes for other frameworks, and environments of other frameworks as tasks.

See docs/interop.md.
"""

from typing import TYPE_CHECKING

from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.interop._environment_agents import (
        ActionFailure,
        PolicyAddress,
        action_of,
        solve_openenv,
        solve_verifiers,
    )
    from agentflow.interop._environment_server import (
        EnvironmentLimits,
        EnvironmentServer,
        serve_tasks,
        verifiers_package,
    )
    from agentflow.interop._task_host import (
        HostBusy,
        HostFailure,
        TaskHost,
        TaskScore,
        TaskSession,
        ToolOutcome,
        open_task_host,
    )

__all__ = [
    "ActionFailure",
    "EnvironmentLimits",
    "EnvironmentServer",
    "HostBusy",
    "HostFailure",
    "PolicyAddress",
    "TaskHost",
    "TaskScore",
    "TaskSession",
    "ToolOutcome",
    "action_of",
    "open_task_host",
    "serve_tasks",
    "solve_openenv",
    "solve_verifiers",
    "verifiers_package",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "._environment_agents": [
            "ActionFailure",
            "PolicyAddress",
            "action_of",
            "solve_openenv",
            "solve_verifiers",
        ],
        "._environment_server": [
            "EnvironmentLimits",
            "EnvironmentServer",
            "serve_tasks",
            "verifiers_package",
        ],
        "._task_host": [
            "HostBusy",
            "HostFailure",
            "TaskHost",
            "TaskScore",
            "TaskSession",
            "ToolOutcome",
            "open_task_host",
        ],
    },
)
