"""Entry points that run a whole training."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from typing import Any, TypeAlias

import anyio
from msgspec import structs

from agentflow.learner._config import load_train_config
from agentflow.learner._run import TrainRun
from agentflow.runs import Resume, run_sync
from agentflow.scoring import OwnMetric
from agentflow.trajectory import Task

Tasks: TypeAlias = str | PathLike[str] | Sequence[Task] | Mapping[str, Any]
"""A file of tasks, tasks, or that section of the settings."""
Reward: TypeAlias = Callable[[str, Task], object]
"""Reward of an answer to a task: a number from 0 to 1 or a `Scored`, or an awaitable of one."""


def train(
    config_path: str | PathLike[str] | None = None,
    tasks: Tasks | None = None,
    *,
    validation: Tasks | None = None,
    reward: Reward | None = None,
    resume: Resume = "auto",
    overrides: Iterable[str] = (),
    **settings: Any,  # noqa: ANN401 - any section of the settings, by its name
) -> dict[str, Any]:
    """Train a policy. Run the same command to resume; a finished run does nothing.

    It also works inside a running event loop, as in a notebook. See docs/training.md.

    :param config_path: settings file, JSON or YAML.
    :param tasks: file of tasks, tasks, or that section of the settings; `None`: as in the file.
    :param validation: held-out tasks, likewise.
    :param reward: reward function, instead of a named metric.
    :param resume: continue an existing run: `auto`, `always` or `never`.
    :param overrides: `key=value` settings that override the file.
    :param settings: sections or single settings that override all others: `policy={"model": "…"}`, `seed=1`.
    :return: `steps`, `version`, `figures` of the last step, `output_dir`, and `policy`, the folder of the trained model.
    :raises ConfigurationError: if a setting can't be used; nothing was started.
    :raises RunStopped: if it ended early; the same command resumes.
    """
    work = partial(
        atrain,
        config_path,
        tasks,
        validation=validation,
        reward=reward,
        resume=resume,
        overrides=overrides,
        **settings,
    )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # In this thread, so that breakpoints work.
        return anyio.run(work)
    return run_sync(work)


async def atrain(
    config_path: str | PathLike[str] | None = None,
    tasks: Tasks | None = None,
    *,
    validation: Tasks | None = None,
    reward: Reward | None = None,
    resume: Resume = "auto",
    overrides: Iterable[str] = (),
    **settings: Any,  # noqa: ANN401 - any section of the settings, by its name
) -> dict[str, Any]:
    """Train a policy; the asynchronous form of `train`. See docs/training.md."""
    given = {**settings, **_section("tasks", tasks), **_section("validation", validation)}
    config = load_train_config(None if config_path is None else fspath(config_path), overrides, given)
    run = TrainRun(
        config,
        tasks=_task_list(tasks),
        validation=_task_list(validation),
        metric=None if reward is None else OwnMetric(_name_of(reward), reward),
        resume=resume,
    )
    return structs.asdict(await run.run())


def _section(name: str, tasks: Tasks | None) -> dict[str, object]:
    if isinstance(tasks, Mapping):
        return {name: tasks}
    return {name: {"data_path": fspath(tasks)}} if isinstance(tasks, str | PathLike) else {}


def _task_list(tasks: Tasks | None) -> Sequence[Task] | None:
    return None if isinstance(tasks, str | PathLike | Mapping) else tasks


def _name_of(reward: Reward) -> str:
    return str(getattr(reward, "__name__", "reward"))
