"""Benchmarks described by a file, and tasks of any file."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import Field, ValidationError

from agentflow.errors import ConfigurationError
from agentflow.rollout.benchmarks._benchmark import Benchmark, Category, Reader, choose, described
from agentflow.rollout.benchmarks._readers import references
from agentflow.rollout.benchmarks._rows import BenchmarkRow, is_list, is_object
from agentflow.settings import Section
from agentflow.trajectory import Task

_ID: Final = ("id", "task_id")
_QUESTION: Final = ("question", "query", "input")
_ANSWER: Final = ("answer", "ground_truth", "expected", "references", "answers")

Name = Annotated[str, Field(min_length=1)]


class Fields(Section):
    """Field names of a task in a file; a name that is not set has its usual aliases."""

    id: Name | None = None
    """`id`, `task_id`."""
    question: Name | None = None
    """`question`, `query`, `input`."""
    answer: Name | None = None
    """`answer`, `ground_truth`, `expected`, `references`, `answers`."""
    options: Name | None = None
    """`options` of a multiple-choice question, by letter or as a list."""
    kwargs: Name | None = None
    """`kwargs`: tool arguments that the task fixes."""


class BenchmarkDescription(Section):
    """Description of a benchmark in its file."""

    name: Name
    """Name."""
    path: Name
    """File of its tasks, relative to the description."""
    format: Annotated[str, Field(pattern="^(jsonl|json|csv|tsv|parquet)$")] | None = None
    """Format; `None`: by the extension."""
    fields: Fields = Fields()
    """Names of its fields."""
    prompt: Annotated[str, Field(pattern=r"\$\{?(question|choices|numbers)\b")] = "$question"
    """Prompt template with `$question`, `$choices` and `$numbers`."""
    metric: Name = "exact_match"
    """Name of the metric."""
    metric_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the metric."""
    judged: bool = False
    """If a judge model is set, it decides about answers that the metric rejects."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Default number of tasks."""
    category: Category = "own"
    """Kind of task."""


def read_description(path: Path) -> Benchmark:
    """Load a benchmark from a YAML or JSON description.

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
    """Convert a row of a file of tasks; fields that are not known become metadata."""
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
        **(own if is_object(own) else {}),
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
    """Return a row of prepared training data with its answers under the usual name, and any other row unchanged.

    Such rows have `id, question, chain, result, source, extra_info`; without a list, several answers of a search
    question are one text separated by semicolons.
    """
    extra: object = row.fields.get("extra_info")
    if not is_object(extra) or "ground_truth" not in extra or row.find(*_ANSWER)[1] is not None:
        return row
    answers: object = extra.get("golden_answers") or extra["ground_truth"]
    if isinstance(answers, str) and row.fields.get("source") == "nq":
        answers = answers.split("; ")
    kept = {name: row.fields[name] for name in row.fields if name not in {"chain", "result", "extra_info"}}
    return BenchmarkRow(row.place, {**kept, "answer": answers})


def plain_tasks(path: Path, limit: int | None, ids: list[str] | None) -> list[Task]:
    """Load the tasks of a file."""
    tasks = Benchmark(name="task", category="own", read=read_plain, metric="exact_match").load(path)
    return choose(tasks, limit, ids, str(path))


def _reader(fields: Fields) -> Reader:
    def read(row: BenchmarkRow) -> Task:
        return read_plain(row, fields)

    return read


def _kwargs(row: BenchmarkRow, name: str) -> dict[str, Any]:
    given: object = row.fields.get(name)
    # Cells of tables contain only text.
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)
        except ValueError:
            row.refuse(name, "is not JSON; write an object of names with values")
    if given in (None, ""):
        return {}
    if not is_object(given):
        row.refuse(name, "is not an object; write names with values, or remove it")
    return given


def _options(row: BenchmarkRow, name: str) -> dict[str, str]:
    given: object = row.fields.get(name)
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            row.refuse(name, "is not JSON; write an object of letters with texts, or a list")
    if is_list(given):
        given = {chr(ord("A") + place): text for place, text in enumerate(given[:26])}
    if not is_object(given):
        row.refuse(name, "is neither an object of letters with texts nor a list")
    return {str(letter): row.plain(name, text) for letter, text in given.items()}
