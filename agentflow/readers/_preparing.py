"""Tasks of a source after its filters and its augmentation, with counts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from anyio import to_thread
from msgspec import Struct, field, structs

from agentflow.errors import ConfigurationError
from agentflow.readers._augmentation import Augmenter
from agentflow.readers._filters import FilterSpec, TaskFilter, make_filter
from agentflow.readers._reading import TaskSource, read_tasks, reader_settings
from agentflow.readers._replies import KeptReplies, OpenModels
from agentflow.readers._settings import REASONING_GYM, REASONING_GYM_METRIC, ReaderSettings
from agentflow.rollouts import RolloutConfig
from agentflow.runs import RoleModel, run_sync
from agentflow.scoring import BY_SOURCE
from agentflow.trace import Task

_BATCH: Final = 64
"""Number of tasks that are filtered at once."""


class PreparedTasks(Struct, frozen=True, kw_only=True):
    """Tasks of a source, and what happened to the others."""

    tasks: list[Task]
    """The tasks, in order."""
    read: int
    """Number of tasks that were read."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Number of tasks that filters left out, by reason."""
    variants: int = 0
    """Number of accepted variants among the tasks."""
    rejected: dict[str, int] = field(default_factory=dict[str, int])
    """Number of rejected variants by reason."""
    calls: int = 0
    """Number of model calls that were made; kept answers do not count."""


def prepare_tasks(
    source: TaskSource,
    *,
    filters: Sequence[FilterSpec] = (),
    **settings: Any,  # noqa: ANN401 - any setting, by its name
) -> PreparedTasks:
    """Read tasks, filter them, and add checked variants. It also works inside a running event loop.

    See docs/readers.md for examples.

    :param source: file, benchmark, reader by name, settings of a reader, or tasks.
    :param filters: filters after those of the settings; also functions and objects.
    :param settings: any setting of `ReaderSettings` by name, overriding that of the source.
    :raises ConfigurationError: one line with the place, if something can't be read, or a filter fails.
    :raises RunStopped: if a model can't be used; the same call continues.
    """
    return run_sync(partial(aprepare_tasks, source, filters=filters, **settings))


async def aprepare_tasks(
    source: TaskSource,
    *,
    filters: Sequence[FilterSpec] = (),
    **settings: Any,  # noqa: ANN401 - any setting, by its name
) -> PreparedTasks:
    """Read tasks, filter them, and add checked variants; the asynchronous form of `prepare_tasks`. See docs/readers.md."""
    chosen, tasks = _opened(source, settings)
    async with OpenModels(chosen.cache) as models:

        async def open_model(setting: str) -> KeptReplies:
            return await models.opened(chosen.model, setting)

        made = [await make_filter(spec, open_model) for spec in (*chosen.filters, *filters)]
        augmenter: Augmenter | None = None
        if chosen.augment is not None:
            writer = await models.opened(_or(chosen.augment.writer, chosen.model), "augment.writer")
            solver = await models.opened(_or(chosen.augment.solver, chosen.model), "augment.solver")
            augmenter = Augmenter(chosen.augment, writer, solver)
        prepared = await _prepare(tasks, made, augmenter, chosen.limit)
        return structs.replace(prepared, calls=models.made)


def with_own_scorers(rules: RolloutConfig, tasks: Sequence[Task]) -> RolloutConfig:
    """Return the settings of a rollout, without a metric of their own with the scorers that tasks bring along.

    See docs/readers.md.
    """
    has_own_scorer = any(task.metadata.get("source") == REASONING_GYM for task in tasks)
    if rules.evaluation_metric or not has_own_scorer:
        return rules
    chosen = {"evaluation_metric": BY_SOURCE, "metric_options": {REASONING_GYM: REASONING_GYM_METRIC}}
    return rules.model_copy(update=chosen)


def _opened(source: TaskSource, settings: dict[str, Any]) -> tuple[ReaderSettings, Iterator[Task]]:
    """Return the settings and the unfiltered tasks."""
    if isinstance(source, Sequence | Iterator) and not isinstance(source, str):
        chosen = ReaderSettings(source="tasks", **settings)
        return chosen, read_tasks(source)
    chosen = reader_settings(source)
    if settings:
        chosen = ReaderSettings(**{**chosen.model_dump(exclude_unset=True), **settings})
    return chosen, read_tasks(chosen.model_copy(update={"limit": None}))


def _or(role: RoleModel, other: RoleModel) -> RoleModel:
    return role if role.model_name is not None else other


async def _prepare(
    tasks: Iterator[Task], filters: Sequence[TaskFilter], augmenter: Augmenter | None, limit: int | None
) -> PreparedTasks:
    kept: list[Task] = []
    left_out: Counter[str] = Counter()
    read = variants = 0
    while limit is None or len(kept) < limit:
        size = _BATCH if filters or limit is None else min(_BATCH, limit - len(kept))
        batch = await to_thread.run_sync(_take, tasks, size)
        if not batch:
            break
        read += len(batch)
        for filter_ in filters:
            batch = await _filtered(filter_, batch, left_out)
        batch = batch if limit is None else batch[: limit - len(kept)]
        if augmenter is None:
            kept += batch
            continue
        for task, written in zip(batch, await augmenter.variants(batch), strict=True):
            kept += [task, *written]
            variants += len(written)
    ids: set[str] = set()
    for task in kept:
        if task.id in ids:
            raise ConfigurationError(
                f"augment: {task.id} is the id of a task and of a variant; rename the task"
            )
        ids.add(task.id)
    return PreparedTasks(
        tasks=[structs.replace(task, index=index) for index, task in enumerate(kept)],
        read=read,
        left_out=dict(sorted(left_out.items())),
        variants=variants,
        rejected={} if augmenter is None else dict(sorted(augmenter.rejected.items())),
    )


async def _filtered(task_filter: TaskFilter, batch: list[Task], left_out: Counter[str]) -> list[Task]:
    results = await task_filter.check(batch)
    if len(results) != len(batch):
        raise ConfigurationError(
            f"filters: {task_filter.name}: gave {len(results)} results for {len(batch)} tasks"
        )
    kept: list[Task] = []
    for result in results:
        if isinstance(result, Task):
            kept.append(result)
        else:
            left_out[f"{task_filter.name}: {result}" if result != task_filter.name else result] += 1
    return kept


def _take(tasks: Iterator[Task], count: int) -> list[Task]:
    return list(islice(tasks, count))
