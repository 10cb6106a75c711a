"""Training data as parquet, in the documented columns."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyarrow is partially typed.

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentflow.errors import ConfigurationError
from agentflow.learner.data._sources import AIME, Item


def write_items(path: Path, items: Sequence[Item], first: int) -> None:
    """Write a file atomically.

    :param first: number of the first item; numbers are unique over all files of one preparation.
    :raises ConfigurationError: if pyarrow is missing, or the file can't be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigurationError(f"{path}: pyarrow is missing; pip install 'agentflow[train]'") from None
    text, number = pyarrow.string(), pyarrow.int64()
    extra = [("ground_truth", text), ("idx", number), ("golden_answers", pyarrow.list_(text))]
    if any(item.source == AIME for item in items):
        extra.append(("original_problem", text))
    schema = pyarrow.schema(
        [
            ("id", number),
            ("question", text),
            ("chain", text),
            ("result", text),
            ("source", text),
            ("extra_info", pyarrow.struct(extra)),
        ]
    )
    rows = [_row(item, place) for place, item in enumerate(items, first)]
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), part)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigurationError(f"{path}: can't be written: {error.strerror or error}") from None


def _row(item: Item, number: int) -> dict[str, Any]:
    result = "; ".join(item.answers)
    extra = {
        "ground_truth": result,
        "idx": number,
        "golden_answers": list(item.answers),
        "original_problem": item.question,
    }
    return {
        "id": number,
        "question": item.question,
        "chain": "",
        "result": result,
        "source": item.source,
        "extra_info": extra,
    }
