"""Seeds of a synthesis: from files, strings, dicts, or the settings."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from agentflow._decoding import DECODE_ERRORS, JsonError, decode_json, decode_reason
from agentflow._typeguards import is_mapping
from agentflow.errors import ConfigurationError
from agentflow.settings import report_read_errors

if TYPE_CHECKING:
    from agentflow.journal import NewSeed
    from agentflow.synthesis._config import SynthesisConfig


Seeds: TypeAlias = str | PathLike[str] | Sequence[str] | Sequence[Mapping[str, Any]]
"""A file of seeds, one seed, or a list of seeds as texts or dicts."""
BUNDLED = Path(__file__).parent / "_bundled" / "seeds.jsonl"
"""Seeds of the bundled corpus."""


def new_seeds(seeds: object) -> "list[NewSeed]":
    """Load seeds in any form that `load_seeds` takes, for the journal. See docs/synthesis.md.

    :raises ConfigurationError: one line, if one can't be used.
    """
    from agentflow.journal import NewSeed  # loads a database

    loaded = load_seeds(seeds)  # pyright: ignore[reportArgumentType] - it reports anything that is no seed
    return [NewSeed(seed["content"], seed["kwargs"], seed.get("id")) for seed in loaded]


def seeds_for(config: "SynthesisConfig") -> "list[NewSeed]":
    """Return the seeds that the settings name, up to `number_of_seed`.

    See docs/synthesis.md.

    :raises ConfigurationError: if they name none, or one can't be used.
    """
    from agentflow.runs import explores_bundled_corpus  # loads the sandbox

    file = Path(config.seeds_file) if config.seeds_file else BUNDLED
    if not config.seeds_file and not explores_bundled_corpus(config):
        raise ConfigurationError("seeds_file: there are no seeds; name a JSONL file, or pass seeds")
    seeds = new_seeds(file)[: config.number_of_seed]
    if not seeds:
        raise ConfigurationError(f"seeds_file: {file} has no seed; add a line, or raise number_of_seed")
    return seeds


def load_seeds(
    seeds_or_path: str | Path | Sequence[str] | Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return seeds as dicts with `content`, `kwargs` and, if given, `id`.

    A string is the path of a file if that exists or ends in `.jsonl` or `.csv`, otherwise it is a seed. In a list, each
    string or dict is a seed. A CSV file has a column `content` and may have one `id`; the other columns are `kwargs`.

    Example::

        load_seeds(["Explore the harbour", {"content": "Explore the light", "id": "light"}])

    :raises ConfigurationError: one line with file and line, if a seed can't be used.
    """
    if isinstance(seeds_or_path, Path) or (isinstance(seeds_or_path, str) and _names_file(seeds_or_path)):
        seeds = list(_from_file(Path(seeds_or_path)))
    elif isinstance(seeds_or_path, str):
        seeds = [_seed(seeds_or_path, "seeds")]
    else:
        seeds = [_seed(seed, f"seeds[{index}]") for index, seed in enumerate(seeds_or_path)]
    _refuse_twins(seeds)
    return seeds


def _names_file(text: str) -> bool:
    one_line = text.strip()
    if "\n" in one_line or len(one_line) > 1000:
        return False
    # Some systems can't stat a long sentence; a directory is no list of seeds.
    try:
        return one_line.lower().endswith((".jsonl", ".ndjson", ".csv")) or Path(one_line).is_file()
    except (OSError, ValueError):
        return False


def _from_file(path: Path) -> Iterator[dict[str, Any]]:
    with report_read_errors(path, missing="no such file; name a JSONL file of seeds"):
        text = path.read_text(encoding="utf-8-sig")
    rows = _table(path, text) if path.suffix.lower() == ".csv" else _lines(path, text)
    return (_seed(seed, origin) for origin, seed in rows)


def _lines(path: Path, text: str) -> Iterator[tuple[str, object]]:
    # Only line feeds end lines: JSON strings may contain other separators.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"{path}:{number}", decode_json(line, unique_keys=True)
        except JsonError as error:
            hint = '; write {"content": "…"} on one line' if error.line else ""
            raise ConfigurationError(f"{path}:{number}: {error}{hint}") from None


def _table(path: Path, text: str) -> Iterator[tuple[str, object]]:
    reader = csv.DictReader(text.splitlines(keepends=True), restkey="")
    if "content" not in (reader.fieldnames or ()):
        raise ConfigurationError(f"{path}:1: has no column content; name the columns in the first line")
    for row in _rows(path, reader):
        origin = f"{path}:{reader.line_num}"
        if "" in row:
            raise ConfigurationError(
                f"{origin}: has more fields than the first line names; quote those with commas"
            )
        kwargs = {name: value for name, value in row.items() if name not in {"content", "id"} and value}
        named = {"id": row["id"]} if row.get("id") else {}
        yield origin, {"content": row["content"], "kwargs": kwargs, **named}


def _rows(path: Path, reader: "csv.DictReader[str]") -> Iterator[dict[str | Any, str | Any]]:
    try:
        yield from reader
    except csv.Error as error:
        raise ConfigurationError(f"{path}:{reader.line_num + 1}: not CSV: {error}") from None


def _seed(seed: object, origin: str) -> dict[str, Any]:
    if isinstance(seed, str):
        seed = {"content": seed}
    if not is_mapping(seed):
        raise ConfigurationError(f'{origin}: not a seed; write {{"content": "…", "kwargs": {{}}}}')
    content = seed.get("content")
    if not isinstance(content, str) or not content.strip():
        raise ConfigurationError(f"{origin}: has no content; add a text under content")
    kwargs = seed.get("kwargs")
    if kwargs is not None and not is_mapping(kwargs):
        raise ConfigurationError(f"{origin}: kwargs is not a mapping; write names with values, or remove it")
    try:
        decode_json(json.dumps({**(kwargs or {})}, default=str))
    except (TypeError, *DECODE_ERRORS) as error:
        raise ConfigurationError(
            f"{origin}: kwargs can't be written as JSON: {decode_reason(error)}"
        ) from None
    id = seed.get("id")
    if id is not None and (not isinstance(id, str | int) or isinstance(id, bool) or not str(id).strip()):
        raise ConfigurationError(f"{origin}: id is neither a text nor a number")
    named = {} if id is None else {"id": str(id)}
    return {**seed, "content": content, "kwargs": dict(kwargs or {}), **named}


def _refuse_twins(seeds: Sequence[Mapping[str, Any]]) -> None:
    seen: dict[str, int] = {}
    for number, seed in enumerate(seeds, 1):
        id = seed.get("id")
        if id is not None and seen.setdefault(id, number) != number:
            raise ConfigurationError(
                f"seeds {seen[id]} and {number} both have the id {id}; give each its own"
            )
