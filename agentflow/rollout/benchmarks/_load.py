"""Loading tasks from a file or a benchmark."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from agentflow.errors import ConfigurationError
from agentflow.rollout.benchmarks._described import plain_tasks
from agentflow.rollout.benchmarks._registry import find_benchmark
from agentflow.trajectory import Task


def load_tasks(
    source: str | PathLike[str],
    *,
    benchmark: str | None = None,
    limit: int | None = None,
    ids: Sequence[str] | None = None,
) -> list[Task]:
    """Load the tasks of a file or of a benchmark. See docs/benchmarks.md.

    A file (JSONL, JSON, CSV, TSV, parquet) has one task per row: `id` or `task_id`; `question`, `query` or `input`;
    `answer`, `ground_truth` or `expected`, one or a list; `kwargs`. Other fields become metadata.

    :param source: a file of tasks, a benchmark's name (its bundled samples), or a YAML file that describes a benchmark.
    :param benchmark: read the file in the formats of this benchmark, and use its prompt.
    :param limit: maximum number of tasks, from the first; `None`: the benchmark's default, or all.
    :param ids: load only these tasks.
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
        raise ConfigurationError(f"{path}: is a directory; name a file of tasks in it")
    return plain_tasks(path, limit, None if ids is None else list(ids))
