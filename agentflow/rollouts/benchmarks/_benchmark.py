"""Definition of a benchmark: reading, prompting and scoring its tasks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field, structs

from agentflow.errors import ConfigurationError
from agentflow.rollouts.benchmarks._rows import BenchmarkRow, read_rows
from agentflow.trace import Task, digest

Category: TypeAlias = Literal["search", "agentic", "math", "science", "own"]
"""Kind of task."""

Reader: TypeAlias = Callable[[BenchmarkRow], Task | None]
"""Converts a row to a task without index and prompt; `None`: the row does not belong to the benchmark."""


class Benchmark(Struct, frozen=True, kw_only=True):
    """Set of tasks with its prompt and metric."""

    name: str
    """Name."""
    title: str = ""
    """Title; empty: the name."""
    category: Category
    """Kind of task."""
    read: Reader
    """Converts a row of its file to a task."""
    prompt: str = "$question"
    """Prompt template with `$question`, `$choices` and `$numbers`."""
    metric: str
    """Name of the metric."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the metric."""
    judged: bool = False
    """If a judge model is set, it decides about answers that the metric rejects, as in published figures."""
    abstain: bool = True
    """The answer may be left empty instead of a blind guess."""
    shuffle: bool = False
    """Each sample of a task after the first has its options in another order."""
    limit: int | None = None
    """Default number of tasks; `None`: all."""
    skip: int = 0
    """Number of tasks skipped before them, if the file has more than that."""
    file: Path | None = None
    """Default file of tasks: bundled samples, or the file named by its description."""
    form: str = ""
    """Format of the file; empty: by its extension."""

    def load(
        self, path: Path | None = None, *, limit: int | None = None, ids: Sequence[str] | None = None
    ) -> list[Task]:
        """Load its tasks from a file in one of its published formats.

        :param path: the file; `None`: the benchmark's default.
        :param limit: maximum number of tasks, from the first; `None`: the benchmark's default.
        :param ids: load only these tasks, from the whole file.
        :raises ConfigurationError: one line with line and field, if the file is broken.
        """
        chosen = path or self.file
        if chosen is None:
            raise ConfigurationError(f"benchmark {self.name}: it has no bundled tasks; name a file of tasks")
        form = self.form if chosen == self.file else ""
        tasks: list[Task] = []
        places: dict[str, str] = {}
        for row in read_rows(chosen, form):
            task = self.read(row)
            if task is None:
                continue
            id = task.id or f"{self.name}_{len(tasks) + 1:03d}"
            if first := places.get(id):
                raise ConfigurationError(
                    f"{row.place}: id: {id} is used at {first}, too; give each task its own"
                )
            places[id] = row.place
            question = self._asked(task)
            tasks.append(structs.replace(task, index=len(tasks), id=id, question=question))
        if not tasks:
            raise ConfigurationError(f"{chosen}: has no tasks")
        if ids is not None:
            return choose(tasks, limit, ids, str(chosen))
        begin = self.skip if len(tasks) > self.skip else 0
        return tasks[begin:][: limit or self.limit]

    def _asked(self, task: Task) -> str:
        choices = _choices(task.metadata.get("options") or {})
        numbers = ", ".join(map(str, task.metadata.get("numbers") or ()))
        return (
            Template(self.prompt)
            .safe_substitute(question=task.question, choices=choices, numbers=numbers)
            .strip()
        )


def reorder_options(task: Task, sample: int) -> Task:
    """Return a task as its sample of that number is asked: with its options in an order that depends on the number.

    The order of a sample is the same in every run. The first sample is the task, unchanged. See docs/benchmarks.md.
    """
    options: Mapping[str, str] = task.metadata.get("options") or {}
    before = _choices(options)
    right = {options[letter] for letter in task.references if letter in options}
    if not sample or not right or before not in task.question:
        return task
    texts = sorted(options.values(), key=lambda text: digest([task.id, text, sample]))
    offered = dict(zip(options, texts, strict=True))
    letters = [letter for letter, text in offered.items() if text in right]
    return structs.replace(
        task,
        question=task.question.replace(before, _choices(offered)),
        references=tuple(letters),
        metadata={**task.metadata, "options": offered},
    )


def _choices(options: Mapping[str, str]) -> str:
    return "\n".join(f"{letter}. {text}" for letter, text in options.items())


def choose(tasks: list[Task], limit: int | None, ids: Sequence[str] | None, where: str) -> list[Task]:
    """Return the tasks with these ids, or the first ones.

    :raises ConfigurationError: one line, if an id does not exist.
    """
    if ids is None:
        return tasks[:limit]
    task_ids = {task.id for task in tasks}
    if missing := [id for id in ids if id not in task_ids]:
        raise ConfigurationError(f"{where}: there is no task {missing[0]}; its first is {tasks[0].id}")
    wanted = set(ids)
    return [task for task in tasks if task.id in wanted][:limit]


def described(question: str, references: Sequence[str], *, id: str = "", **metadata: object) -> Task:
    """Return a task as a reader makes it, without empty metadata."""
    return Task(
        index=0,
        id=id,
        question=question,
        references=tuple(dict.fromkeys(references)),
        metadata={name: value for name, value in metadata.items() if value not in (None, "", ())},
    )
