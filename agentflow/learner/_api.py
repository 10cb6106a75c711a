"""Whole training runs with one call."""

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

__all__ = ["Reward", "atrain", "train"]

Tasks: TypeAlias = str | PathLike[str] | Sequence[Task] | Mapping[str, Any]
"""A file of tasks, or tasks, or a section of the settings."""
Reward: TypeAlias = Callable[[str, Task], object]
"""What an answer to a task is worth: a number from 0 to 1 or a `Scored`, at once or awaited."""


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
    """Train a policy, as the settings say. The same again goes on where it stopped, or finds nothing to do.

    It also works where a loop runs already, as in a notebook.

    :param config_path: a file of settings, JSON or YAML.
    :param tasks: a file of tasks, or tasks, or that section of the settings; `None`: as the file says.
    :param validation: the same, of held-out tasks.
    :param reward: what an answer is worth, instead of a metric by its name.
    :param resume: whether a run that exists is gone on with.
    :param overrides: `key=value` words over the file.
    :param settings: sections or single settings by name, over all others: `policy={"model": "…"}`, `seed=1`.
    :return: `steps`, `version`, `figures` of the last step, `output_dir`, and `policy`, the folder of the trained model.
    :raises ConfigurationError: if something can't be used, in one line; nothing was begun.
    :raises RunStopped: if it ended early; the same again goes on.
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
    """`train` for code that awaits."""
    said = {**settings, **_section("tasks", tasks), **_section("validation", validation)}
    config = load_train_config(None if config_path is None else fspath(config_path), overrides, said)
    run = TrainRun(
        config,
        tasks=_given(tasks),
        validation=_given(validation),
        metric=None if reward is None else OwnMetric(_name_of(reward), reward),
        resume=resume,
    )
    return structs.asdict(await run.run())


def _section(name: str, tasks: Tasks | None) -> dict[str, object]:
    if isinstance(tasks, Mapping):
        return {name: tasks}
    return {name: {"data_path": fspath(tasks)}} if isinstance(tasks, str | PathLike) else {}


def _given(tasks: Tasks | None) -> Sequence[Task] | None:
    return None if isinstance(tasks, str | PathLike | Mapping) else tasks


def _name_of(reward: Reward) -> str:
    return str(getattr(reward, "__name__", "reward"))
