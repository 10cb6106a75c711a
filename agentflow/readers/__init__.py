"""Readers of tasks: any source as a lazy iterator of tasks with unique ids. See docs/readers.md."""

from typing import TYPE_CHECKING

from agentflow.readers._settings import (
    REASONING_GYM,
    REASONING_GYM_METRIC,
    AugmentSettings,
    ReaderSettings,
    names_reader,
)
from runtimes._lazy import lazy_exports

if TYPE_CHECKING:
    from agentflow.readers._environment_server import EnvironmentType, HostedEnvironment, serve_environments
    from agentflow.readers._environments import (
        EnvironmentFailure,
        EnvironmentInstance,
        EnvironmentService,
        EnvironmentState,
    )
    from agentflow.readers._filters import (
        FilterSpec,
        NearDuplicateSettings,
        PassRateSettings,
        TaskFilter,
    )
    from agentflow.readers._openenv import OpenEnvClient, OpenEnvFailure, OpenEnvStep, open_openenv
    from agentflow.readers._preparing import (
        PreparedTasks,
        aprepare_tasks,
        prepare_tasks,
        with_own_scorers,
    )
    from agentflow.readers._reading import TaskRecord, TaskSource, read_tasks, reader_settings, task_record
    from agentflow.readers._reasoning_gym import ascore_reasoning_gym, score_reasoning_gym
    from agentflow.readers._replies import KeptReplies, cache_folder
    from agentflow.readers._textarena import GameFailure, TextGame, open_text_game
    from agentflow.readers._verifiers import VerifiersFailure, play_verifiers

__all__ = [
    "REASONING_GYM",
    "REASONING_GYM_METRIC",
    "AugmentSettings",
    "EnvironmentFailure",
    "EnvironmentInstance",
    "EnvironmentService",
    "EnvironmentState",
    "EnvironmentType",
    "FilterSpec",
    "GameFailure",
    "HostedEnvironment",
    "KeptReplies",
    "NearDuplicateSettings",
    "OpenEnvClient",
    "OpenEnvFailure",
    "OpenEnvStep",
    "PassRateSettings",
    "PreparedTasks",
    "ReaderSettings",
    "TaskFilter",
    "TaskRecord",
    "TaskSource",
    "TextGame",
    "VerifiersFailure",
    "aprepare_tasks",
    "ascore_reasoning_gym",
    "cache_folder",
    "names_reader",
    "open_openenv",
    "open_text_game",
    "play_verifiers",
    "prepare_tasks",
    "read_tasks",
    "reader_settings",
    "score_reasoning_gym",
    "serve_environments",
    "task_record",
    "with_own_scorers",
]

# Settings name readers without loading them.
__getattr__ = lazy_exports(
    __name__,
    {
        "._environment_server": ["EnvironmentType", "HostedEnvironment", "serve_environments"],
        "._environments": [
            "EnvironmentFailure",
            "EnvironmentInstance",
            "EnvironmentService",
            "EnvironmentState",
        ],
        "._filters": ["FilterSpec", "NearDuplicateSettings", "PassRateSettings", "TaskFilter"],
        "._preparing": [
            "PreparedTasks",
            "aprepare_tasks",
            "prepare_tasks",
            "with_own_scorers",
        ],
        "._openenv": ["OpenEnvClient", "OpenEnvFailure", "OpenEnvStep", "open_openenv"],
        "._reading": ["TaskRecord", "TaskSource", "read_tasks", "reader_settings", "task_record"],
        "._reasoning_gym": ["ascore_reasoning_gym", "score_reasoning_gym"],
        "._replies": ["KeptReplies", "cache_folder"],
        "._textarena": ["GameFailure", "TextGame", "open_text_game"],
        "._verifiers": ["VerifiersFailure", "play_verifiers"],
    },
)
