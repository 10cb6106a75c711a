"""`agentflow data prepare`: search and math questions become files to train, to validate and to test with."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentflow.errors import ConfigurationError
from agentflow.learner.data._files import write_items
from agentflow.learner.data._mix import mix
from agentflow.learner.data._sources import AIME, Item, read_math, read_search, read_source

__all__ = ["Prepared", "prepare"]

TRAIN = Path("train", "combined_train.parquet")
VALIDATION = Path("val", "held_out.parquet")
TEST = Path("val", "aime24.parquet")


class Prepared(Struct, frozen=True, kw_only=True):
    """What was written."""

    files: dict[str, int]
    """The rows of each file, by its path."""
    sources: dict[str, int]
    """How many questions to learn from each source gave."""
    duplicates: int
    """Questions left out because they were there already."""
    tested: int
    """Questions left out because they stand in the test set, too."""


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
    """Mix search and math questions to `train/combined_train.parquet`, with others held out in `val/`.

    The same arguments and files give the same bytes. Every question stands in one file only, and has a number of its own over
    all of them.

    :param output: the folder.
    :param search: files or data sets of questions with short answers.
    :param math: files or data sets of problems with results.
    :param aime24: the problems of AIME 2024, for `val/aime24.parquet`: a test set, by which nothing is ever chosen.
    :param validation: questions that are held out, to choose by; `None`: a tenth, 200 at most.
    :param limit: questions of each source at most; `None`: all.
    :param seed: decides order, choice and what is held out.
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
