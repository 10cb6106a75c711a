"""Parquet files of an export. pyarrow has no types, so nothing else imports it."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.exports._rows import COLUMNS, STRUCTS
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
        fields = [(name, _arrow_type(kind)) for name, kind in columns.items()]
        info = {"info": {"features": {name: feature_of(kind) for name, kind in columns.items()}}}
        self._schema = pyarrow.schema(fields, metadata={"huggingface": json.dumps(info)})
        self._table = pyarrow.Table
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[Mapping[str, Any]] = []

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a row."""
        self._rows.append(values)
        if len(self._rows) >= _BATCH:
            self._flush()

    def close(self) -> None:
        """Write the rows that are left."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            columns = [
                _arrow_array(kind, [row.get(name) for row in self._rows])
                for name, kind in self._columns.items()
            ]
            self._writer.write_table(self._table.from_arrays(columns, schema=self._schema))
            self._rows = []


def feature_of(kind: str) -> dict[str, Any]:
    """Return a column type as a feature of `datasets`.

    >>> feature_of("[json]")
    {'feature': {'_type': 'Json'}, '_type': 'List'}
    """
    if kind.startswith("["):
        return {"feature": feature_of(kind.strip("[]")), "_type": "List"}
    if fields := STRUCTS.get(kind):
        return {name: feature_of(inner_kind) for name, inner_kind in fields.items()}
    return {"_type": "Json"} if kind == "json" else {"dtype": COLUMNS[kind], "_type": "Value"}


def _arrow_type(kind: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    import pyarrow

    if kind.startswith("["):
        return pyarrow.list_(_arrow_type(kind.strip("[]")))
    if fields := STRUCTS.get(kind):
        return pyarrow.struct([(name, _arrow_type(inner_kind)) for name, inner_kind in fields.items()])
    if kind == "json":
        return pyarrow.json_()
    plain = {"bool": pyarrow.bool_(), "float": pyarrow.float64(), "int": pyarrow.int64()}
    return plain.get(kind, pyarrow.string())


def _arrow_array(kind: str, values: Sequence[Any]) -> Any:  # noqa: ANN401
    """Return values as an array: pyarrow can't make nested arrays of JSON by itself."""
    import pyarrow

    if kind.startswith("["):
        ends = accumulate((len(value or ()) for value in values), initial=0)
        inner = _arrow_array(kind.strip("[]"), [item for value in values for item in value or ()])
        missing = pyarrow.array([value is None for value in values], pyarrow.bool_())
        offsets = pyarrow.array(ends, pyarrow.int32())
        return pyarrow.ListArray.from_arrays(offsets, inner, type=_arrow_type(kind), mask=missing)
    if fields := STRUCTS.get(kind):
        parts = [
            _arrow_array(inner_kind, [(value or {}).get(name) for value in values])
            for name, inner_kind in fields.items()
        ]
        return pyarrow.StructArray.from_arrays(parts, fields=list(_arrow_type(kind)))
    if kind != "json":
        return pyarrow.array(values, _arrow_type(kind))
    texts = [None if value is None else msgspec.json.encode(value).decode() for value in values]
    return pyarrow.ExtensionArray.from_storage(pyarrow.json_(), pyarrow.array(texts, pyarrow.string()))


def check_parquet(what: str) -> None:
    """Check that Parquet files can be written.

    :raises ConfigurationError: one line that names the extra.
    """
    try:
        import pyarrow  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise ConfigurationError(missing_extra(f"--format {what}: Parquet", "data")) from None
