"""Tasks of AgentJet's readers, and the task and outcome of a workflow, with AgentJet's fields.

Any row is a task, and all of its fields are metadata.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import BaseModel, Field

from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.rollouts.benchmarks import read_rows
from agentflow.trace import Task

_DUMMIES: Final = 1000


class AgentJetTask(BaseModel):
    """A task as AgentJet's workflows see it."""

    main_query: str = ""
    """Question."""
    init_messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Conversation to start with: of the task or its environment, else the question."""
    task_id: str = ""
    """Id."""
    env_type: str = ""
    """Type of its environment."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Other fields of its file, and `answer`: its first reference."""


class WorkflowTask(BaseModel):
    """An episode as AgentJet's workflows see it."""

    env_type: str = ""
    """Type of the environment."""
    task_id: str = ""
    """Id of the task."""
    episode_uuid: str = ""
    """Id of the episode."""
    task: AgentJetTask = AgentJetTask()
    """Task."""
    gym_env: Any = None
    """Environment with `step`, `evaluate` and `service_url`; `None`: the task has none."""


class WorkflowOutput(BaseModel):
    """Outcome of a workflow, as AgentJet's workflows return it."""

    reward: float | list[float] | None = None
    """Reward; `None`: the judge gives it. A list is refused."""
    is_success: bool | None = None
    """The task was solved; `None`: unknown."""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Values for the judge; `final_answer` is the answer of the episode."""
    log_metrics: dict[str, float | list[float] | dict[str, Any]] = Field(
        default_factory=dict[str, float | list[float] | dict[str, Any]]
    )
    """Figures: a list counts with its mean, a mapping with `/` between names."""


def jsonl_tasks(path: str) -> Iterator[Task]:
    """Iterate over the tasks of AgentJet's JSONL: `main_query`, `init_messages`, `task_id`, `env_type`, `metadata`.

    See docs/migrating-tuner.md.

    :raises ConfigurationError: one line with the place, if a line is no task.
    """
    for number, row in enumerate(read_rows(Path(path)), 1):
        fields = row.fields
        question = fields.get("main_query")
        if not isinstance(question, str) or not question:
            raise ConfigurationError(f"{row.place}: main_query: is missing; write the question")
        own: object = fields.get("metadata")
        metadata = dict(own) if is_object(own) else dict(fields)
        for name in ("init_messages", "env_type"):
            if name in fields:
                metadata[name] = fields[name]
        yield _task(str(fields.get("task_id") or f"{Path(path).stem}/{number}"), question, metadata)


def dataset_tasks(path: str, split: str) -> Iterator[Task]:
    """Iterate over the rows of a data set in the format of Hugging Face; `question` is the question.

    See docs/migrating-tuner.md.

    :raises ConfigurationError: if the package is missing.
    """
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise ConfigurationError(missing_extra(f"datasets:{path}", "datasets")) from None
    datasets.disable_progress_bars()
    for number, row in enumerate(datasets.load_dataset(path, split=split)):
        fields = msgspec.to_builtins(row)
        yield _task(str(number), str(fields.get("question", "Empty")), fields)


def dummy_tasks() -> Iterator[Task]:
    """Iterate over 1,000 tasks with a `random_number` each. See docs/migrating-tuner.md."""
    for number in range(_DUMMIES):
        yield _task(str(number), f"[dummy task @ {number}]", {"random_number": number})


def _task(id: str, question: str, metadata: Mapping[str, Any]) -> Task:
    answer = metadata.get("answer")
    references = () if answer in (None, "") else (str(answer),)
    return Task(index=0, id=id, question=question, references=references, metadata=dict(metadata))
