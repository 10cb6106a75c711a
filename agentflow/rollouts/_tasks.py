"""Assignment of a rollout: its tasks and their metric."""

import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct, field, structs

from agentflow._typeguards import is_list
from agentflow.errors import ConfigurationError
from agentflow.rollouts._config import RolloutConfig
from agentflow.rollouts.benchmarks import (
    HUB,
    Benchmark,
    find_benchmark,
    find_data,
    load_tasks,
    reorder_options,
)
from agentflow.runs import explores_bundled_corpus
from agentflow.scoring import BY_SOURCE, VERIFIER, metric_of_source
from agentflow.tasks import verifiable_task
from agentflow.trace import Blob, Task

Pictures = dict[Blob, bytes]
"""Bytes of pictures."""
_FIELDS = ("image", "images")


def read_pictures(files: Iterable[str | PathLike[str]]) -> Pictures:
    """Read the pictures of these files, in order.

    :raises ConfigurationError: one line, if one can't be read or is not a picture.
    """
    found: Pictures = {}
    for file in map(Path, files):
        mime, _ = mimetypes.guess_type(file.name)
        if mime is None or not mime.startswith("image/"):
            raise ConfigurationError(f"{file}: not a picture by its name; name a .png, .jpg, .gif or .webp")
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{file}: can't be read: {error.strerror}") from None
        found[Blob.of(data, mime)] = data
    return found


def with_pictures(tasks: Sequence[Task], folder: Path) -> tuple[list[Task], Pictures]:
    """Return the tasks with the pictures named by their `image` or `images`, relative to the tasks' file.

    :raises ConfigurationError: one line, if one can't be read.
    """
    pictures: Pictures = {}
    shown: list[Task] = []
    for task in tasks:
        own = read_pictures(folder / name for name in _named(task))
        pictures |= own
        shown.append(structs.replace(task, images=(*task.images, *own)) if own else task)
    return shown, pictures


def _named(task: Task) -> list[str]:
    value: object = next((task.metadata[field] for field in _FIELDS if task.metadata.get(field)), None)
    return [name for name in (value if is_list(value) else [value]) if isinstance(name, str)]


METRIC: Final = "exact_match"
"""Default metric of tasks without a known `source`."""
JUDGEMENT: Final = "llm_judgement"
"""Metric of a benchmark whose published figures come from a judge, if a judge model is set."""
BUNDLED: Final = "bamboogle"
"""Benchmark used without any settings."""

Tasks: TypeAlias = str | PathLike[str] | Sequence[Task]
"""File of tasks, or tasks."""


class Assignment(Struct, frozen=True, kw_only=True):
    """Tasks of a run."""

    tasks: list[Task]
    """The tasks, in order."""
    name: str
    """Name of the benchmark or of the file."""
    metric: str
    """Name of the metric."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of the metric."""
    pictures: Pictures = field(default_factory=dict[Blob, bytes])
    """Pictures of the tasks."""
    samples: int = 1
    """Number of episodes per task."""
    shuffle: bool = False
    """Each sample of a task after the first has its options in another order."""

    verified: frozenset[str] = frozenset()
    """Kinds of tasks with verifiers of their own, which score them instead of the metric."""

    abstain: bool = True
    """Answers may be left empty instead of a blind guess."""

    def sample(self, task: Task, number: int) -> Task:
        """Return a task as its sample of that number is asked."""
        return reorder_options(task, number) if self.shuffle else task


def assign(
    config: RolloutConfig, tasks: Sequence[Task] | None = None, pictures: Pictures | None = None
) -> Assignment:
    """Return the tasks and the metric that the settings select.

    :param tasks: tasks to use instead of those of `data_path` or the benchmark.
    :param pictures: bytes of their `images`.
    :raises ConfigurationError: one line, if there are none, or they can't be read.

    Example::

        assignment = assign(RolloutConfig(benchmark_name="gameof24", number_of_tasks=2))
    """
    benchmark = _benchmark(config, tasks)
    data = None if config.data_path is None or tasks is not None else _data(config.data_path, benchmark)
    found = _tasks(config, benchmark, data) if tasks is None else _chosen(config, tasks)
    if not found:
        raise ConfigurationError("data_path: there are no tasks; name a file with tasks")
    if data is not None:
        found, pictures = with_pictures(found, data.parent)
    verified = _verified(config, found)
    metric, options = _metric(config, benchmark, found)
    if len(verified) == len(found):
        metric, options = VERIFIER, {}
    return Assignment(
        tasks=found,
        name=_name(config, benchmark),
        metric=metric,
        options={**options, **config.metric_options},
        pictures=pictures or {},
        samples=config.samples,
        shuffle=benchmark is not None and benchmark.shuffle,
        verified=frozenset(verified.values()),
        abstain=_may_abstain(config, benchmark),
    )


def _benchmark(config: RolloutConfig, tasks: Sequence[Task] | None) -> Benchmark | None:
    if config.benchmark_name is not None:
        return find_benchmark(config.benchmark_name)
    if tasks is not None or config.data_path is not None:
        return None
    if config.offline and explores_bundled_corpus(config):
        return find_benchmark(BUNDLED)
    raise ConfigurationError("data_path: there are no tasks; name a file of tasks, or a benchmark_name")


def _data(source: str, benchmark: Benchmark | None) -> Path:
    """Return the file of tasks: that of the benchmark, if the source is a folder or a data set."""
    name = "" if benchmark is None else benchmark.name
    # Without a benchmark, a folder is refused by the reader.
    file = find_data(source, name) if name or source.startswith(HUB) else Path(source)
    if file is None:
        raise ConfigurationError(
            f"data_path: {source} has no file of {name}; name its file, or call it {name}.jsonl"
        )
    return file


def _tasks(config: RolloutConfig, benchmark: Benchmark | None, data: Path | None) -> list[Task]:
    limit, ids = config.number_of_tasks, config.task_ids
    if benchmark is not None:
        return benchmark.load(data, limit=limit, ids=ids)
    assert data is not None, "there is a benchmark or a file"
    return load_tasks(data, limit=limit, ids=ids)


def _chosen(config: RolloutConfig, tasks: Sequence[Task]) -> list[Task]:
    ids = config.task_ids
    if ids is not None and (missing := sorted(set(ids) - {task.id for task in tasks})):
        raise ConfigurationError(f"task_ids: there is no task {missing[0]}; name an existing one")
    return [task for task in tasks if ids is None or task.id in ids][: config.number_of_tasks]


def _verified(config: RolloutConfig, tasks: Sequence[Task]) -> dict[str, str]:
    """Return the kinds of tasks with verifiers by id, unless the settings name another metric."""
    if config.evaluation_metric not in (None, VERIFIER):
        return {}
    found = {task.id: verifiable_task(task) for task in tasks}
    return {id: own.kind for id, own in found.items() if own is not None}


def _metric(
    config: RolloutConfig, benchmark: Benchmark | None, tasks: Sequence[Task]
) -> tuple[str, Mapping[str, Any]]:
    if config.evaluation_metric is not None:
        return config.evaluation_metric, {}
    if benchmark is None:
        mixed = any(metric_of_source(task.metadata.get("source")) for task in tasks)
        return BY_SOURCE if mixed else METRIC, {}
    if benchmark.judged and config.evaluator_model_name is not None:
        return JUDGEMENT, {}
    return benchmark.metric, benchmark.options


def _may_abstain(config: RolloutConfig, benchmark: Benchmark | None) -> bool:
    usual, chosen = benchmark is None or benchmark.abstain, config.abstain
    if not isinstance(chosen, dict):
        return usual if chosen is None else chosen
    name = "" if benchmark is None else benchmark.name
    # The names may be spelt in any way; one that is misspelt is refused.
    return {(each if each == name else find_benchmark(each).name): may for each, may in chosen.items()}.get(
        name, usual
    )


def _name(config: RolloutConfig, benchmark: Benchmark | None) -> str:
    if benchmark is not None:
        return benchmark.name
    return Path(config.data_path).stem if config.data_path is not None else "tasks"
