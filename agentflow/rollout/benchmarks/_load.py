"""Tasks from wherever they are."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from agentflow.errors import ConfigurationError
from agentflow.rollout.benchmarks._described import plain_tasks
from agentflow.rollout.benchmarks._registry import find_benchmark
from agentflow.trajectory import Task

__all__ = ["load_tasks"]


def load_tasks(
    source: str | PathLike[str],
    *,
    benchmark: str | None = None,
    limit: int | None = None,
    ids: Sequence[str] | None = None,
) -> list[Task]:
    """Tasks of a file or of a benchmark.

    A file (JSONL, JSON, CSV, TSV, parquet) has a task in each row: `id` or `task_id`; `question`, `query` or `input`;
    `answer`, `ground_truth` or `expected`, one or a list; `kwargs`. All else is its metadata.

    :param source: a file of tasks, a benchmark's name (the samples that come with the package), or a YAML file that
        describes a benchmark.
    :param benchmark: read the file in this benchmark's formats, and ask as it asks.
    :param limit: how many at most, from the first; `None`: as many as the benchmark takes, or all.
    :param ids: only these.
    :raises ConfigurationError: one line with line and field, if they can't be read.
    """
    path = Path(source)
    if benchmark is not None:
        return find_benchmark(benchmark).load(path, limit=limit, ids=ids)
    if path.suffix.lower() in {".yaml", ".yml"} or (
        isinstance(source, str) and not path.suffix and not path.exists()
    ):
        return find_benchmark(str(source)).load(limit=limit, ids=ids)
    if path.is_dir():
        raise ConfigurationError(f"{path}: is a folder; name a file of tasks in it")
    return plain_tasks(path, limit, None if ids is None else list(ids))
