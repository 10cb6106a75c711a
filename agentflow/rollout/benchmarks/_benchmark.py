"""A benchmark: how its tasks are read, asked and scored."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field, structs

from agentflow.errors import ConfigurationError
from agentflow.rollout.benchmarks._rows import BenchmarkRow, read_rows
from agentflow.trajectory import Task

__all__ = ["Benchmark", "Category", "Reader", "choose", "described"]

Category: TypeAlias = Literal["search", "agentic", "math", "science", "own"]
"""What kind of work it is."""

Reader: TypeAlias = Callable[[BenchmarkRow], Task | None]
"""Makes a row a task, without index and prompt; `None`: it does not belong to the benchmark."""


class Benchmark(Struct, frozen=True, kw_only=True):
    """A set of tasks with the way to work on it."""

    name: str
    """What it is called."""
    title: str = ""
    """What it is called in prose; empty: the name."""
    category: Category
    """What kind of work it is."""
    read: Reader
    """Makes a row of its file a task."""
    prompt: str = "$question"
    """What is asked: `$question`, `$choices` and `$numbers` are filled in from the task."""
    metric: str
    """By which rule answers are scored."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of that rule."""
    judged: bool = False
    """Where a judge is to be had, it decides on what the rule does not find right; published figures are a judge's."""
    limit: int | None = None
    """How many tasks are usually taken; `None`: all."""
    skip: int = 0
    """How many are left out before them, where the file has more than that."""
    file: Path | None = None
    """Where its tasks are, if nothing else is said: those that come with the package, or what its description names."""
    form: str = ""
    """In which format; empty: as the file's name ends."""

    def load(
        self, path: Path | None = None, *, limit: int | None = None, ids: Sequence[str] | None = None
    ) -> list[Task]:
        """Its tasks, from a file in one of its published formats.

        :param path: the file; `None`: the benchmark's own.
        :param limit: how many at most, from the first; `None`: as many as are usually taken.
        :param ids: only these; then all of them are looked for.
        :raises ConfigurationError: one line with line and field, if the file is broken.
        """
        chosen = path or self.file
        if chosen is None:
            raise ConfigurationError(f"benchmark {self.name}: it comes without tasks; name a file of them")
        form = self.form if chosen == self.file else ""
        tasks: list[Task] = []
        places: dict[str, str] = {}
        for row in read_rows(chosen, form):
            task = self.read(row)
            if task is None:
                continue
            id = task.id or f"{self.name}_{len(tasks) + 1:03d}"
            if first := places.get(id):
                raise ConfigurationError(f"{row.place}: id: {id} stands at {first} too; give each its own")
            places[id] = row.place
            asked = self._asked(task)
            tasks.append(structs.replace(task, index=len(tasks), id=id, question=asked))
        if not tasks:
            raise ConfigurationError(f"{chosen}: has no tasks")
        if ids is not None:
            return choose(tasks, limit, ids, str(chosen))
        begin = self.skip if len(tasks) > self.skip else 0
        return tasks[begin:][: limit or self.limit]

    def _asked(self, task: Task) -> str:
        options: Mapping[str, str] = task.metadata.get("options") or {}
        choices = "\n".join(f"{letter}. {text}" for letter, text in options.items())
        numbers = ", ".join(map(str, task.metadata.get("numbers") or ()))
        return (
            Template(self.prompt)
            .safe_substitute(question=task.question, choices=choices, numbers=numbers)
            .strip()
        )


def choose(tasks: list[Task], limit: int | None, ids: Sequence[str] | None, where: str) -> list[Task]:
    """Those with these ids, or the first ones.

    :raises ConfigurationError: one line, if there is none of an id.
    """
    if ids is None:
        return tasks[:limit]
    known = {task.id for task in tasks}
    if missing := [id for id in ids if id not in known]:
        raise ConfigurationError(f"{where}: there is no task {missing[0]}; its first is {tasks[0].id}")
    wanted = set(ids)
    return [task for task in tasks if task.id in wanted][:limit]


def described(question: str, references: Sequence[str], *, id: str = "", **metadata: object) -> Task:
    """A task as a reader makes it. What is empty is no metadata."""
    return Task(
        index=0,
        id=id,
        question=question,
        references=tuple(dict.fromkeys(references)),
        metadata={name: value for name, value in metadata.items() if value not in (None, "", ())},
    )
