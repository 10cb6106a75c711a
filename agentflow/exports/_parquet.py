"""Parquet files of an export. pyarrow has no types, so nothing else imports it."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.exports._rows import COLUMNS
from agentflow.extras import missing_extra

_BATCH: Final = 1_000
"""Rows that are written at once."""


class ParquetTable:
    """Parquet file. Columns of JSON are strings; the metadata for `datasets` names their type."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        """Begin a file.

        :param columns: types of columns by name.
        """
        import pyarrow
        from pyarrow import parquet

        path.touch(mode=0o600)
        self._columns = columns
        kinds: dict[str, Any] = {
            "bool": pyarrow.bool_(),
            "float": pyarrow.float64(),
            "int": pyarrow.int64(),
            "json": pyarrow.string(),
            "string": pyarrow.string(),
            "message": pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())]),
        }
        fields = [
            (name, pyarrow.list_(kinds[kind.strip("[]")]) if kind.startswith("[") else kinds[kind])
            for name, kind in columns.items()
        ]
        info = {"info": {"features": {name: feature_of(kind) for name, kind in columns.items()}}}
        self._schema = pyarrow.schema(fields, metadata={"huggingface": json.dumps(info)})
        self._table = pyarrow.Table
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[dict[str, Any]] = []

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a row."""
        self._rows.append(
            {name: self._stored(kind, values.get(name)) for name, kind in self._columns.items()}
        )
        if len(self._rows) >= _BATCH:
            self._flush()

    def close(self) -> None:
        """Write the rows that are left."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._table.from_pylist(self._rows, schema=self._schema))
            self._rows = []

    @staticmethod
    def _stored(kind: str, value: object) -> object:
        if value is None or not kind.endswith(("json", "json]")):
            return value
        return _text(value) if kind == "json" else [_text(one) for one in msgspec.convert(value, list[Any])]


def feature_of(kind: str) -> dict[str, Any]:
    """Return a column type as a feature of `datasets`.

    >>> feature_of("[json]")
    {'feature': {'_type': 'Json'}, '_type': 'List'}
    """
    if kind.startswith("["):
        return {"feature": feature_of(kind.strip("[]")), "_type": "List"}
    if kind == "message":
        return {name: feature_of("string") for name in ("role", "content")}
    return {"_type": "Json"} if kind == "json" else {"dtype": COLUMNS[kind], "_type": "Value"}


def check_parquet(what: str) -> None:
    """Check that Parquet files can be written.

    :raises ConfigurationError: one line that names the extra.
    """
    try:
        import pyarrow  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise ConfigurationError(missing_extra(f"--format {what}: Parquet", "data")) from None


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
