"""Conversion of synthesis settings with `learner:` to those of a training run whose groups are trees."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from agentflow.errors import ConfigurationError
from agentflow.learner import TrainConfig, load_train_config
from agentflow.runs import RunConfig
from agentflow.synthesis import load_seeds
from agentflow.trajectory import Task

if TYPE_CHECKING:
    from agentflow.synthesis import SynthesisConfig


_NOT_OF_EPISODES = frozenset({"output_dir", "journal", "run_name", "max_seconds", "tokens"})


def training_of(config: "SynthesisConfig") -> TrainConfig:
    """Return the settings of training the planner on the trees; `learner` overrides those of the synthesis.

    :raises ConfigurationError: one line, if a setting can't be used.
    """
    learner = config.learner or {}
    shared = config.model_dump(
        exclude_unset=True, include={*RunConfig.model_fields, "generator_model"} - _NOT_OF_EPISODES
    )
    growth = {
        "max_depth": config.max_depth,
        "branching_factor": config.branching_factor,
        "depth_threshold": config.depth_threshold,
        "tips": config.sampling_tips,
        "task_description": config.seed_description,
    }
    said = {
        "output_dir": str(config.output),
        **learner,
        "growth": growth | _section(learner, "growth"),
        "episodes": shared | _section(learner, "episodes"),
    }
    return load_train_config(None, (), said)


def tasks_of(config: "SynthesisConfig") -> list[Task]:
    """Return the seeds as tasks.

    :raises ConfigurationError: if there are none, or one has no answer.
    """
    if config.seeds_file is None:
        raise ConfigurationError("learner: seeds_file is missing; name a file whose seeds have answers")
    tasks: list[Task] = []
    for index, seed in enumerate(load_seeds(config.seeds_file)[: config.number_of_seed]):
        id = str(seed.get("id", f"seed_{index + 1:03d}"))
        answer: object = seed.get("answer")
        answers = cast("list[object]", answer) if isinstance(answer, list) else [answer]
        references = tuple(str(one) for one in answers if one is not None and str(one).strip())
        if not references:
            raise ConfigurationError(
                f"{config.seeds_file}: {id} has no answer; with learner every seed is a task: add answer to each"
            )
        task = Task(
            index=index, id=id, question=seed["content"], references=references, kwargs=seed["kwargs"]
        )
        tasks.append(task)
    if not tasks:
        raise ConfigurationError(f"{config.seeds_file}: has no seeds; add some")
    return tasks


def _section(learner: Mapping[str, Any], name: str) -> dict[str, Any]:
    said: object = learner.get(name) or {}
    if not isinstance(said, Mapping):
        raise ConfigurationError(f"learner.{name}: not a mapping; write names with values")
    return dict(cast("Mapping[str, Any]", said))
