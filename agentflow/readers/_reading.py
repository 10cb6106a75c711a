"""Reading of tasks: a lazy iterator over any source, with unique ids."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard

import msgspec
from msgspec import Struct, structs

from agentflow._typeguards import is_list, is_list_or_tuple, is_mapping, is_object
from agentflow.errors import ConfigurationError, error_line
from agentflow.extras import missing_extra
from agentflow.readers._settings import ParsedSource, ReaderSettings, parse_source
from agentflow.rollouts.benchmarks import HUB, BenchmarkRow, find_data, load_tasks, read_plain, read_rows
from agentflow.settings import import_object, nearest
from agentflow.trace import Task, digest

Located: TypeAlias = tuple[str, Task]
"""A task after its place, for error messages."""
TaskReader: TypeAlias = Callable[[ParsedSource, ReaderSettings], Iterator[Located]]
"""Reads the tasks of a source, each with its place."""
TaskSource: TypeAlias = (
    "str | PathLike[str] | ReaderSettings | Mapping[str, object] | Sequence[Task] | Iterator[Task]"
)
"""Source of tasks: a text, a file, settings of a reader, or tasks."""
_ROWS: Final = frozenset({".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"})
_USUAL: Final = frozenset({"id", "task_id", "question", "query", "instruction", "input", "answer"})
"""Columns that may be two fields."""
_DATASET_OPTIONS: Final = ("config", "split", "revision", "streaming")
_MAX_DEPTH: Final = 64
"""Maximum nesting of a value."""


def reader_settings(source: str | PathLike[str] | ReaderSettings | Mapping[str, object]) -> ReaderSettings:
    """Return the settings of a source in any of its forms.

    >>> reader_settings("train.jsonl").source
    'train.jsonl'

    :raises ConfigurationError: one line, if a setting is unknown or can't be used.
    """
    if isinstance(source, ReaderSettings):
        return source
    if isinstance(source, str | PathLike):
        return ReaderSettings(source=fspath(source))
    return ReaderSettings(**dict[str, Any](source))


def _is_iterable(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, Iterable)


def read_tasks(source: TaskSource, **settings: Any) -> Iterator[Task]:  # noqa: ANN401 - any setting, by its name
    """Iterate over the tasks of a source, without its filters. See docs/readers.md.

    Tasks are read lazily. Every task has an id of its own; a missing or repeated one is an error that names its line.

    :param source: file, benchmark, reader by name, settings of a reader, or tasks.
    :param settings: any setting of `ReaderSettings` by name, overriding that of the source.
    :raises ConfigurationError: one line with the place, if something can't be read.

    Example::

        for task in read_tasks("train.jsonl", columns={"question": "problem"}):
            print(task.id, task.question)
    """
    if not isinstance(source, str | PathLike | ReaderSettings) and not is_mapping(source):
        return _checked(_located(source), limit=settings.get("limit"))
    chosen = reader_settings(source)
    if settings:
        chosen = ReaderSettings(**{**chosen.model_dump(exclude_unset=True), **settings})
    return _checked(read_located(chosen), limit=None if chosen.filters else chosen.limit)


def _located(tasks: Iterable[object]) -> Iterator[Located]:
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, Task):
            raise ConfigurationError(f"task {number}: is {type(task).__name__}; give tasks, or name a source")
        yield f"task {number}", task


def read_located(settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over the tasks of a source, each with its place.

    :raises ConfigurationError: one line with the place, if something can't be read.
    """
    parsed = parse_source(settings.source, settings.options)
    return _reader(parsed.reader)(parsed, settings)


def _reader(name: str) -> TaskReader:
    """Return the reader of a name. Each is imported when it is used: it may load a large library."""
    match name:
        case "datasets":
            return _read_dataset
        case "documents":
            from agentflow.readers._documents import read_documents as reader
        case "environment":
            from agentflow.readers._environments import read_environment as reader
        case "openenv":
            from agentflow.readers._openenv import read_openenv as reader
        case "reasoning_gym":
            from agentflow.readers._reasoning_gym import read_reasoning_gym as reader
        case "textarena":
            from agentflow.readers._textarena import read_textarena as reader
        case "traces":
            from agentflow.readers._traces import read_traces as reader
        case "verifiers":
            from agentflow.readers._verifiers import read_verifiers as reader
        case "function":
            return _read_function
        case _:
            return _read_file
    return reader


def _checked(located: Iterable[Located], *, limit: int | None) -> Iterator[Task]:
    """Number the tasks.

    :raises ConfigurationError: one line with the place, if an id is missing or repeated, or a value can't be written as JSON.
    """
    location_by_id: dict[str, str] = {}
    for location, task in located:
        if not task.id:
            problem = (
                "id: is missing; add one, name its column with columns.id, or set ids=row or ids=content"
            )
            raise ConfigurationError(f"{location}: {problem}")
        if (first := location_by_id.get(task.id)) is not None:
            raise ConfigurationError(
                f"{location}: id: {_short(task.id)} is used at {first}, too; give each task its own"
            )
        try:
            msgspec.json.encode(task)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else error_line(error)
            raise ConfigurationError(f"{location}: can't be written as JSON: {why}") from None
        yield structs.replace(task, index=len(location_by_id))
        location_by_id[task.id] = location
        if limit is not None and len(location_by_id) >= limit:
            return


def _read_file(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    if source.options:
        raise ConfigurationError(
            f"options: {source.target} is read as a file, which has none; leave them out"
        )
    target = source.target
    path = find_data(target, "") if target.startswith(HUB) else Path(target)
    if path is None or (path.suffix.lower() not in _ROWS and not path.is_dir()):
        # A benchmark by its name, or a file that describes one.
        for task in load_tasks(target):
            yield f"{target}: task {task.index + 1}", task
        return
    if path.is_dir():
        raise ConfigurationError(f"{path}: is a directory; name a file of tasks in it, or datasets:{path}")
    yield from tasks_of_rows(read_rows(path), settings, path.stem)


def tasks_of_rows(rows: Iterable[BenchmarkRow], settings: ReaderSettings, name: str) -> Iterator[Located]:
    """Iterate over the tasks of rows, by the columns of the settings.

    :param name: beginning of ids by row.
    :raises ConfigurationError: with line and field, if something is missing or has the wrong type.
    """
    for number, row in enumerate(rows, 1):
        task = read_plain(_mapped(row, settings.columns))
        match settings.ids:
            case "row":
                task = structs.replace(task, id=f"{name}/{number}")
            case "content":
                task = structs.replace(task, id=digest([task.question, task.references], 12))
            case "column":
                pass
        yield row.place, task


def _mapped(row: BenchmarkRow, columns: Mapping[str, str]) -> BenchmarkRow:
    """Return a row with its fields under the names of a task."""
    if not columns:
        return row
    renamed = set(columns.values()) - _USUAL
    fields = {name: value for name, value in row.fields.items() if name not in renamed}
    for name, column in columns.items():
        value = _column(row, column)
        fields[name] = _last_request(value) if name == "question" else value
    return BenchmarkRow(row.place, fields)


def _column(row: BenchmarkRow, column: str) -> object:
    if column in row.fields:
        return row.fields[column]
    value: object = row.fields
    for part in column.split("."):
        if is_mapping(value) and part in value:
            value = value[part]
        else:
            near = nearest(column, list(row.fields))
            raise ConfigurationError(f"{row.place}: columns: there is no {_short(column)}{near}")
    return value


def _last_request(value: object) -> object:
    """Return the text of the last user message of a conversation, and any other value unchanged."""
    if (
        not is_list(value)
        or not value
        or not all(is_object(message) and "content" in message for message in value)
    ):
        return value
    user_texts = [message["content"] for message in value if message.get("role") == "user"]
    return user_texts[-1] if user_texts else value


def plain_value(location: str, value: object, depth: int = 0) -> object:
    """Return a value of a library as JSON: dates become texts, and what has no text is left out.

    :raises ConfigurationError: one line, if it is nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise ConfigurationError(f"{location}: is nested more than {_MAX_DEPTH} times; write it flatter")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_mapping(value):
        inner = {str(name): plain_value(location, item, depth + 1) for name, item in value.items()}
        return {name: item for name, item in inner.items() if item is not None}
    if is_list_or_tuple(value):
        return [plain_value(location, item, depth + 1) for item in value]
    if hasattr(value, "isoformat"):
        return str(value)
    return None


def _read_function(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over the tasks of the user's function, or the rows that it yields."""
    function = import_object(source.target)
    if not callable(function):
        raise ConfigurationError(
            f"{source.target}: not a function; write module:function or file.py:function"
        )
    try:
        rows: object = function(**source.options)
        if not _is_iterable(rows):
            raise ConfigurationError(
                f"{source.target}: returned {type(rows).__name__}; return tasks, or rows of them"
            )
        for number, item in enumerate(rows, 1):
            location = f"{source.target}: task {number}"
            if isinstance(item, Task):
                yield location, item
            elif is_object(item):
                yield from tasks_of_rows(
                    [BenchmarkRow(location, item)], settings, f"{source.target}/{number}"
                )
            else:
                raise ConfigurationError(
                    f"{location}: is {type(item).__name__}; yield a Task, or an object with its fields"
                )
    except ConfigurationError:
        raise
    except Exception as error:  # boundary: a user's code may raise anything
        raise ConfigurationError(f"{source.target}: raised {error_line(error)}") from error


def _read_dataset(source: ParsedSource, settings: ReaderSettings) -> Iterator[Located]:
    """Iterate over the tasks of a data set in the format of Hugging Face: `datasets:NAME?config=main&split=train`."""
    config = take_option(source, "config", str, None)
    split = take_option(source, "split", str, "train")
    revision = take_option(source, "revision", str, None)
    streaming = take_option(source, "streaming", bool, False)
    refuse_options(source, _DATASET_OPTIONS)
    where = f"datasets:{source.target}"
    rows = _load_dataset(where, source.target, config, split, revision, streaming=streaming)
    name = Path(source.target).name if os.path.isdir(source.target) else source.target
    yield from tasks_of_rows(_rows_of_dataset(where, rows), settings, f"{name}/{split}")


def _rows_of_dataset(where: str, rows: Any) -> Iterator[BenchmarkRow]:  # noqa: ANN401 - a library without types
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            location = f"{where}: row {number}"
            fields = plain_value(location, row)
            assert is_object(fields), "a row is an object"
            yield BenchmarkRow(location, fields)
    except ConfigurationError:
        raise
    except Exception as error:  # boundary: the library raises many types, such as those of broken files
        raise ConfigurationError(f"{where}: row {number + 1}: can't be read: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return the first cause of an error of a library, on one line."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return error_line(cause if isinstance(cause, Exception) else error)[:300]


def _load_dataset(
    where: str, name: str, config: str | None, split: str, revision: str | None, *, streaming: bool
) -> Any:  # noqa: ANN401 - a library without types
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise ConfigurationError(missing_extra(where, "datasets")) from None
    datasets.disable_progress_bars()
    folder = Path(name)
    try:
        if folder.is_dir() and any((folder / mark).exists() for mark in ("state.json", "dataset_dict.json")):
            saved = datasets.load_from_disk(name)
            return saved[split] if (folder / "dataset_dict.json").exists() else saved
        return datasets.load_dataset(name, config, split=split, revision=revision, streaming=streaming)
    except Exception as error:  # boundary: the library raises many types: network, names, formats
        raise ConfigurationError(f"{where}: can't be loaded: {_reason(error)}") from None


def take_option(source: ParsedSource, name: str, kind: type[Any], default: object) -> Any:  # noqa: ANN401 - of that type
    """Remove an option and return it.

    :raises ConfigurationError: one line, if it has another type.
    """
    value = source.options.pop(name, default)
    if value is default:
        return value
    try:
        return msgspec.convert(value, kind, strict=kind is not str)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{source.reader}:{source.target}: {name}: {error}") from None


def refuse_options(source: ParsedSource, known_options: Iterable[str]) -> None:
    """Refuse the options that are left.

    :raises ConfigurationError: one line, if there are any.
    """
    for name in source.options:
        raise ConfigurationError(
            f"{source.reader}:{source.target}: there is no option {name}{nearest(name, known_options)}"
        )


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"


class TaskRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Line of a file of tasks."""

    id: str
    """Identifier."""
    question: str
    """Question."""
    answer: tuple[str, ...] = ()
    """Correct answers."""
    kwargs: dict[str, Any] = {}
    """Tool arguments fixed by the task."""
    metadata: dict[str, Any] = {}
    """Other fields."""


def task_record(task: Task) -> TaskRecord:
    """Return a task as a line that `read_tasks` reads back.

    Example::

        lines = [msgspec.json.encode(task_record(task)) for task in tasks]
    """
    return TaskRecord(
        id=task.id, question=task.question, answer=task.references, kwargs=task.kwargs, metadata=task.metadata
    )
