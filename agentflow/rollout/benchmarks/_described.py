"""A benchmark in a file, and tasks of any file."""

import json
from pathlib import Path
from typing import Annotated, Any, Final, cast

import yaml
from pydantic import Field, ValidationError

from agentflow.errors import ConfigurationError
from agentflow.rollout.benchmarks._benchmark import Benchmark, Category, Reader, choose, described
from agentflow.rollout.benchmarks._readers import references
from agentflow.rollout.benchmarks._rows import BenchmarkRow
from agentflow.settings import Section
from agentflow.trajectory import Task

__all__ = ["BenchmarkDescription", "Fields", "plain_tasks", "read_description", "read_plain"]

_ID: Final = ("id", "task_id")
_QUESTION: Final = ("question", "query", "input")
_ANSWER: Final = ("answer", "ground_truth", "expected", "references", "answers")

Name = Annotated[str, Field(min_length=1)]


class Fields(Section):
    """Under which names a file keeps what belongs to a task; a name that is not set has its usual aliases."""

    id: Name | None = None
    """`id`, `task_id`."""
    question: Name | None = None
    """`question`, `query`, `input`."""
    answer: Name | None = None
    """`answer`, `ground_truth`, `expected`, `references`, `answers`."""
    options: Name | None = None
    """`options`: of a multiple choice, by their letters or in a list."""
    kwargs: Name | None = None
    """`kwargs`: arguments of tools that the task fixes."""


class BenchmarkDescription(Section):
    """A benchmark as its file describes it."""

    name: Name
    """What it is called."""
    path: Name
    """The file of its tasks, from the description's folder."""
    format: Annotated[str, Field(pattern="^(jsonl|json|csv|tsv|parquet)$")] | None = None
    """Its format; `None`: as its name ends."""
    fields: Fields = Fields()
    """How its fields are called."""
    prompt: Annotated[str, Field(pattern=r"\$\{?(question|choices|numbers)\b")] = "$question"
    """What is asked, with `$question`, `$choices` and `$numbers`."""
    metric: Name = "exact_match"
    """By which metric answers are scored."""
    metric_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the metric."""
    judged: bool = False
    """Where a judge is to be had, it decides on what the metric does not find right."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """How many tasks are usually taken."""
    category: Category = "own"
    """What kind of work it is."""


def read_description(path: Path) -> Benchmark:
    """The benchmark that a YAML or JSON file describes.

    :raises ConfigurationError: one line with file and key, if it can't be used.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        read: object = json.loads(text) if path.suffix.lower() == ".json" else yaml.safe_load(text)
        said = BenchmarkDescription.model_validate(read)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such file; name a benchmark, or a file that describes one"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "it"
        raise ConfigurationError(f"{path}: {key}: {first['msg']}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"{path}: can't be read: {' '.join(str(error).split())}") from None
    return Benchmark(
        name=said.name,
        category=said.category,
        read=_reader(said.fields),
        prompt=said.prompt,
        metric=said.metric,
        options=said.metric_options,
        judged=said.judged,
        limit=said.limit,
        file=path.parent / said.path,
        form=said.format or "",
    )


def read_plain(row: BenchmarkRow, fields: Fields | None = None) -> Task:
    """A row of a file of tasks: with its aliases, and all else as metadata."""
    fields = fields or Fields()
    row = _prepared(row)
    id = (fields.id,) if fields.id else _ID
    question = (fields.question,) if fields.question else _QUESTION
    answer = (fields.answer,) if fields.answer else _ANSWER
    options, kwargs = fields.options or "options", fields.kwargs or "kwargs"
    taken = {*id, *question, *answer, options, kwargs, "metadata"}
    own = row.fields.get("metadata")
    metadata = {
        **{
            name: value for name, value in row.fields.items() if name not in taken and value not in (None, "")
        },
        **(cast("dict[str, Any]", own) if isinstance(own, dict) else {}),
    }
    if row.fields.get(options) not in (None, "", []):
        metadata["options"] = _options(row, options)
    task = described(row.text(*question), references(row, *answer), id=row.perhaps(*id), **metadata)
    return Task(
        index=0,
        id=task.id,
        question=task.question,
        references=task.references,
        kwargs=_kwargs(row, kwargs),
        metadata=task.metadata,
    )


def _prepared(row: BenchmarkRow) -> BenchmarkRow:
    """A row of prepared training data, with its answers where other rows have theirs; any other row as it is.

    Such rows are `id, question, chain, result, source, extra_info`; several answers of a search question stand in one
    text, with semicolons between, if the list of them is not there.
    """
    extra: object = row.fields.get("extra_info")
    if not isinstance(extra, dict) or "ground_truth" not in extra or row.find(*_ANSWER)[1] is not None:
        return row
    known = cast("dict[str, Any]", extra)
    answers: object = known.get("golden_answers") or known["ground_truth"]
    if isinstance(answers, str) and row.fields.get("source") == "nq":
        answers = answers.split("; ")
    kept = {name: row.fields[name] for name in row.fields if name not in {"chain", "result", "extra_info"}}
    return BenchmarkRow(row.place, {**kept, "answer": answers})


def plain_tasks(path: Path, limit: int | None, ids: list[str] | None) -> list[Task]:
    """The tasks of a file."""
    tasks = Benchmark(name="task", category="own", read=read_plain, metric="exact_match").load(path)
    return choose(tasks, limit, ids, str(path))


def _reader(fields: Fields) -> Reader:
    def read(row: BenchmarkRow) -> Task:
        return read_plain(row, fields)

    return read


def _kwargs(row: BenchmarkRow, name: str) -> dict[str, Any]:
    given: object = row.fields.get(name)
    # A cell of a table can only hold text.
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)
        except ValueError:
            row.refuse(name, "is not JSON; write an object of names with values")
    if given in (None, ""):
        return {}
    if not isinstance(given, dict):
        row.refuse(name, "is no object; write names with values, or leave it out")
    return cast("dict[str, Any]", given)


def _options(row: BenchmarkRow, name: str) -> dict[str, str]:
    given: object = row.fields.get(name)
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            row.refuse(name, "is not JSON; write an object of letters with texts, or a list")
    if isinstance(given, list):
        texts = cast("list[Any]", given)
        given = {chr(ord("A") + place): text for place, text in enumerate(texts[:26])}
    if not isinstance(given, dict):
        row.refuse(name, "is neither an object of letters with texts nor a list")
    return {str(letter): row.plain(name, text) for letter, text in cast("dict[Any, Any]", given).items()}
