"""Sources of training data: files in published formats, and data sets of the hub."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.rollout.benchmarks import BenchmarkRow, read_rows, references
from agentflow.scoring import extract_answer

SEARCH: Final = "nq"
"""`source` of search questions."""
MATH: Final = "mathhard"
"""`source` of math problems."""
AIME: Final = "aime2024"
"""`source` of the test set."""

_QUESTION: Final = ("question", "Question", "problem", "Problem", "prompt")
_ANSWERS: Final = ("golden_answers", "answer", "answers", "Answer")
_RESULT: Final = ("final_answer", "answer", "Answer")
_SOLUTION: Final = ("solution", "Solution")
_HUB: Final = "hub:"


class Item(Struct, frozen=True, kw_only=True):
    """A question with its answers."""

    question: str
    """The question."""
    answers: tuple[str, ...]
    """Accepted answers; any one is sufficient."""
    source: str
    """Name of the source."""


Reader = Callable[[BenchmarkRow], Item]
"""Reads a row of a source."""


def read_search(row: BenchmarkRow) -> Item:
    """Read a question with short answers in the search format of Natural Questions: `question, golden_answers`.

    :raises ConfigurationError: with line and field, if something is missing or has the wrong type.
    """
    answers = references(row, *_ANSWERS)
    if not answers:
        row.refuse(_ANSWERS[0], "is missing; add it, or answer")
    return Item(question=row.text(*_QUESTION), answers=answers, source=SEARCH)


def read_math(row: BenchmarkRow) -> Item:
    """Read a problem with its result in the format of DeepMath: `question, final_answer`; or with a boxed solution.

    :raises ConfigurationError: with line and field, if something is missing or has the wrong type.
    """
    answers = references(row, *_RESULT)[:1]
    if not answers:
        _, solution = row.find(*_SOLUTION)
        if isinstance(solution, str) and "\\boxed" in solution:
            answers = (extract_answer(solution),)
    if not answers:
        row.refuse(_RESULT[0], "is missing; add it, or a solution with a box")
    return Item(question=row.text(*_QUESTION), answers=answers, source=MATH)


def read_source(source: str | Path, reader: Reader) -> Iterator[Item]:
    """Yield the questions of a source, in order.

    :param source: a file, or a data set of the hub: `hub:OWNER/NAME`, optionally with `:CONFIGURATION` and `:SPLIT`.
    :raises ConfigurationError: one line with file, line and field, if it can't be read.
    """
    fields = (*_QUESTION, *_ANSWERS, *_RESULT, *_SOLUTION, "row", "row_idx")
    named = str(source)
    rows = _hub(named) if named.startswith(_HUB) else read_rows(Path(source), fields=fields)
    for row in rows:
        yield reader(row)


def _hub(named: str) -> Iterator[BenchmarkRow]:
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise ConfigurationError(
            f"{named}: datasets is missing; pip install datasets, or name a file"
        ) from None
    name, configuration, split = (*named.removeprefix(_HUB).split(":"), "", "")[:3]
    try:
        rows = datasets.load_dataset(name, configuration or None, split=split or "train")
    except Exception as error:  # the library raises many types: network, names, formats
        raise ConfigurationError(f"{named}: can't be loaded: {str(error).splitlines()[0]}") from None
    for number, fields in enumerate(rows, 1):
        yield BenchmarkRow(f"{named}: row {number}", fields)
