"""Rows of JSONL, JSON, CSV and parquet files, with file and line for error messages."""

import csv
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from agentflow._decoding import JsonError, decode_json, decode_part, decode_reason, decode_text
from agentflow._typeguards import is_list, is_object
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.settings import report_read_errors

_ARRAYS: Final = ("data", "examples", "questions", "rows", "tasks")
"""Keys under which a JSON object has its rows."""
_LONGEST_LINE: Final = 64 << 20
"""Maximum length of a line of JSONL, in bytes."""


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """Row of a file."""

    place: str
    """File and line, for error messages."""
    fields: Mapping[str, Any]
    """Values by field."""

    def refuse(self, field: str, why: str) -> NoReturn:
        """Report a problem with a field.

        :raises ConfigurationError: always.
        """
        raise ConfigurationError(f"{self.place}: {field}: {why}")

    def find(self, *names: str) -> tuple[str, Any]:
        """Return the name and value of the first of these fields that is not empty, or the first name and `None`."""
        for name in names:
            value = self.fields.get(name)
            if value is not None and value != "":
                return name, value
        return names[0], None

    def text(self, *names: str) -> str:
        """Return the first of these fields, which must be a text or a number.

        :raises ConfigurationError: with line and field, if it is missing or something else.
        """
        name, value = self.find(*names)
        if value is None:
            self.refuse(name, f"is missing; add it{f', or {names[-1]}' if len(names) > 1 else ''}")
        return self.plain(name, value)

    def perhaps(self, *names: str) -> str:
        """Return the first of these fields as text, or an empty text if it is missing."""
        name, value = self.find(*names)
        return "" if value is None else self.plain(name, value)

    def texts(self, *names: str) -> tuple[str, ...]:
        """Return the first of these fields as a list of texts, empty if it is missing."""
        name, value = self.find(*names)
        if value is None:
            return ()
        if is_list(value):
            return tuple(self.plain(name, element) for element in value)
        return (self.plain(name, value),)

    def plain(self, name: str, value: object) -> str:
        """Return the value of a field as a text.

        :raises ConfigurationError: with line and field, if it is neither text nor number, or empty.
        """
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self.refuse(name, f"is {_kind(value)}, not a text")
        if not str(value).strip():
            self.refuse(name, "is empty; write something there")
        return str(value).strip()


def read_rows(path: Path, form: str = "", fields: Collection[str] = ()) -> Iterator[BenchmarkRow]:
    """Yield the rows of a file, in order. See docs/benchmarks.md.

    :param form: `jsonl`, `json`, `csv`, `tsv` or `parquet`; empty: by the extension.
    :param fields: the fields to read from a parquet file; empty: all.
    :raises ConfigurationError: one line with file and line, if it can't be read.
    """
    named = form or path.suffix.lower().removeprefix(".")
    if named not in _READERS:
        raise ConfigurationError(
            f"{path}: the name ends in none of {', '.join(f'.{extension}' for extension in _READERS)}"
        )
    with report_read_errors(path):
        yield from _parquet(path, fields) if named == "parquet" else _READERS[named](path)


def _lines(path: Path) -> Iterator[BenchmarkRow]:
    with path.open("rb") as file:
        number = 0
        # One line at a time: a file may be larger than the memory.
        while line := file.readline(_LONGEST_LINE + 1):
            number += 1
            place = f"{path}:{number}"
            if len(line) > _LONGEST_LINE:
                raise ConfigurationError(f"{place}: is longer than {_LONGEST_LINE >> 20} MiB; split it")
            try:
                text = decode_text(line)
                if not text.strip():
                    continue
                read = decode_json(text, unique_keys=True)
            except JsonError as error:
                raise ConfigurationError(f"{place}: {error}") from None
            yield _row(place, read)


def _json(path: Path) -> Iterator[BenchmarkRow]:
    text = path.read_text(encoding="utf-8-sig")
    start = _array(text)
    if start is None:
        yield from _lines(path)
        return
    position, line = _skip(text, start + 1), 1 + text.count("\n", 0, start)
    counted = start
    while position < len(text) and text[position] != "]":
        line += text.count("\n", counted, position)
        counted = position
        where = f"{path}:{line}"
        try:
            read, position = decode_part(text, position, unique_keys=True)
        except JsonError as error:
            raise ConfigurationError(f"{path}:{error.line or line}: {error}") from None
        yield _row(where, read)
        position = _skip(text, position)
        if text[position : position + 1] not in {",", "]"}:
            lost = 1 + text.count("\n", 0, position)
            raise ConfigurationError(
                f"{path}:{lost}: not JSON: the list ends here without ]; is the file truncated?"
            )
        position = _skip(text, position + 1) if text[position] == "," else position


def _array(text: str) -> int | None:
    """Return the start of the list of rows; `None`: there is no list, each line is a row."""
    stripped = text.lstrip()
    if stripped.startswith("["):
        return len(text) - len(stripped)
    for name in _ARRAYS:
        position = text.find(f'"{name}"')
        after = _skip(text, position + len(name) + 2) if position >= 0 else len(text)
        after = _skip(text, after + 1) if text[after : after + 1] == ":" else len(text)
        if (
            text[after : after + 1] == "["
            and stripped.startswith("{")
            and not text[:position].strip(" \t\r\n{")
        ):
            return after
    return None


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _table(path: Path, delimiter: str = ",") -> Iterator[BenchmarkRow]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from _cells(path, csv.DictReader(lines, restkey="", delimiter=delimiter))


def _cells(path: Path, reader: "csv.DictReader[str]") -> Iterator[BenchmarkRow]:
    while True:
        begin = 1
        try:
            # Read the header first, so that rows have their line numbers.
            begin = reader.line_num + 1 if reader.fieldnames else 1
            row = next(reader, None)
        except csv.Error as error:
            raise ConfigurationError(f"{path}:{begin}: not CSV: {error}") from None
        if row is None:
            return
        place = f"{path}:{begin}"
        if "" in row:
            raise ConfigurationError(
                f"{place}: has more fields than the first line names; quote those with commas"
            )
        yield BenchmarkRow(place, row)


def _parquet(path: Path, fields: Collection[str] = ()) -> Iterator[BenchmarkRow]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigurationError(missing_extra(f"{path}: Parquet", "data")) from None
    number = 0
    try:
        with path.open("rb") as file:
            table = parquet.ParquetFile(file)
            columns: list[str] = table.schema_arrow.names
            needed = [name for name in columns if name in fields] if fields else None
            # In batches: a file may be larger than the memory.
            for batch in table.iter_batches(columns=needed):
                for row in batch.to_pylist():
                    number += 1
                    yield BenchmarkRow(f"{path}: row {number}", row)
    except ValueError as error:
        raise ConfigurationError(f"{path}: not parquet: {decode_reason(error)}") from None


def _row(place: str, read: object) -> BenchmarkRow:
    if not is_object(read):
        raise ConfigurationError(f"{place}: is {_kind(read)}, not an object with fields")
    # The wrapper of a data set viewer.
    inner: object = read.get("row")
    return BenchmarkRow(place, inner if is_object(inner) and "row_idx" in read else read)


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth value"
        case dict():
            return "an object"
        case list():
            return "a list"
        case int() | float():
            return "a number"
        case _:
            return "a text"


_READERS: Final[Mapping[str, Callable[[Path], Iterator[BenchmarkRow]]]] = {
    "jsonl": _lines,
    "ndjson": _lines,
    "json": _json,
    "csv": _table,
    "tsv": lambda path: _table(path, "\t"),
    "parquet": _parquet,
}
