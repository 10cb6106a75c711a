"""Implementation of `agentflow data prepare`: make training, validation and test files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.learner.data._files import write_items
from agentflow.learner.data._mix import mix
from agentflow.learner.data._sources import AIME, Item, read_math, read_search, read_source

TRAIN = Path("train", "combined_train.parquet")
VALIDATION = Path("val", "held_out.parquet")
TEST = Path("val", "aime24.parquet")


class Prepared(Struct, frozen=True, kw_only=True):
    """Result of a preparation."""

    files: dict[str, int]
    """Number of rows by file."""
    sources: dict[str, int]
    """Number of training questions by source."""
    duplicates: int
    """Number of questions left out as duplicates."""
    tested: int
    """Number of questions left out because they are in the test set."""


def prepare(
    output: Path | str,
    *,
    search: Sequence[str | Path] = (),
    math: Sequence[str | Path] = (),
    aime24: str | Path | None = None,
    validation: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Prepared:
    """Mix search and math questions into `train/combined_train.parquet`, with held-out ones in `val/`.

    The same arguments and files give the same bytes. Every question is in exactly one file and has a unique number.
    See docs/train-data.md.

    :param output: output folder.
    :param search: files or data sets of questions with short answers.
    :param math: files or data sets of problems with results.
    :param aime24: problems of AIME 2024 for `val/aime24.parquet`, a test set; never choose a checkpoint by it.
    :param validation: number of held-out questions; `None`: a tenth, at most 200.
    :param limit: maximum number of questions of each source; `None`: all.
    :param seed: determines order, selection and what is held out.
    :raises ConfigurationError: one line with file, line and field, if something can't be read.
    """
    if not search and not math:
        raise ConfigurationError("search, math: there is nothing to prepare; name files of either")
    test = [] if aime24 is None else [_tested(item) for item in read_source(aime24, read_math)]
    sources = [read_source(source, read_search) for source in search]
    sources += [read_source(source, read_math) for source in math]
    mixed = mix(sources, test, seed=seed, validation=validation, limit=limit)
    if not mixed.train:
        raise ConfigurationError(
            f"validation: all {len(mixed.validation)} questions would be held out; hold out fewer, or name more files"
        )
    files: dict[str, int] = {}
    first = 0
    for path, items in ((TRAIN, mixed.train), (VALIDATION, mixed.validation), (TEST, test)):
        if items:
            write_items(Path(output, path), items, first)
            files[str(path)] = len(items)
            first += len(items)
    return Prepared(
        files=files,
        sources=dict(sorted(Counter(item.source for item in mixed.train).items())),
        duplicates=mixed.duplicates,
        tested=mixed.tested,
    )


def _tested(item: Item) -> Item:
    return Item(question=item.question, answers=item.answers, source=AIME)
