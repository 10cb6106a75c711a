"""Settings of a reader of tasks, and the form of its source as text."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl

from pydantic import Field, model_validator

from agentflow._decoding import JsonError, decode_json
from agentflow.errors import ConfigurationError
from agentflow.runs import RoleModel
from agentflow.settings import Section

READERS: Final = (
    "datasets", "documents", "environment", "openenv", "reasoning_gym", "textarena", "traces", "verifiers",
)  # fmt: skip
"""Readers with a name; a source without one is a file, a benchmark, `hub:OWNER/NAME` or `module:function`."""
REASONING_GYM: Final = "reasoning_gym"
"""Source of tasks with scorers of their own."""
REASONING_GYM_METRIC: Final = "agentflow.readers:ascore_reasoning_gym"
"""Metric of these tasks: their own scorers."""
_FUNCTION: Final = re.compile(r"[\w./-]+:[A-Za-z_][\w.]*")

Columns = dict[str, Annotated[str, Field(min_length=1)]]
"""Columns by the field of the task."""
IdSource = Literal["column", "row", "content"]
"""Origin of the ids of tasks."""


class AugmentSettings(Section):
    """Variants of tasks, written by a model and checked. See docs/readers.md."""

    variants: int = Field(default=1, ge=1, le=16)
    """Number of variants to ask for, for each task."""
    kind: Literal["paraphrase", "variant"] = "paraphrase"
    """`paraphrase`: the same question in other words, with the same answer; `variant`: another question like it."""
    solvers: int = Field(default=2, ge=1, le=16)
    """Number of independent solutions, all of which must give the answer."""
    similarity: float = Field(default=0.9, gt=0, le=1)
    """Similarity from which a variant is a near-duplicate of a task or of another variant."""
    metric: str = "exact_match"
    """Metric that compares a solution with the answer."""
    writer: RoleModel = RoleModel()
    """Model that writes variants."""
    solver: RoleModel = RoleModel()
    """Model that solves them; it sees the question alone."""


class ReaderSettings(Section):
    """Reader of tasks: a source, its columns, and filters. A text is a source alone. See docs/readers.md.

    Example::

        ReaderSettings(source="train.jsonl", columns={"question": "problem"}, filters=["near_duplicates"])
    """

    source: Annotated[str, Field(min_length=1)]
    """File, benchmark, `hub:OWNER/NAME`, `NAME:TARGET?option=value` of a named reader, or `module:function`."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the reader, in addition to those in the source."""
    columns: Columns = Field(default_factory=dict[str, str])
    """Column of each field: `id`, `question`, `answer`, `source`, …; dots lead into objects."""
    ids: IdSource = "column"
    """`column`: every task has an id; `row`: its number; `content`: a digest of its question and answers."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of tasks, after filters."""
    filters: list[str | dict[str, Any]] = Field(default_factory=list[str | dict[str, Any]])
    """Filters in their order: a name, a name with options, or `module:function`."""
    augment: AugmentSettings | None = None
    """Checked variants of the tasks."""
    model: RoleModel = RoleModel()
    """Model of readers and filters that need one."""
    cache: str | None = None
    """Folder in which paid results are kept; `None`: the user's cache."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"source": value} if isinstance(value, str) else value


class ParsedSource(NamedTuple):
    """Source of tasks in its parts."""

    reader: str
    """Name of the reader; empty: a file or a benchmark."""
    target: str
    """Name or path that the reader reads."""
    options: dict[str, Any]
    """Options."""


def names_reader(source: str) -> bool:
    """Return whether a text names a reader of tasks and not a file.

    >>> names_reader("reasoning_gym:countdown?size=10"), names_reader("train.jsonl")
    (True, False)
    """
    return parse_source(source).reader != ""


def parse_source(source: str, options: Mapping[str, Any] | None = None) -> ParsedSource:
    """Split a source into reader, target and options; `options` are added to those of the text.

    Values are JSON where they can be read as JSON, and texts otherwise.

    >>> parse_source("reasoning_gym:countdown?size=10").options
    {'size': 10}

    :raises ConfigurationError: one line, if an option is given twice.
    """
    name, _, rest = source.partition(":")
    target, _, query = rest.partition("?")
    if name not in READERS:
        function = f"{name}:{target}"
        if Path(source).exists() or name == "hub" or not _FUNCTION.fullmatch(function):
            return ParsedSource("", source, dict(options or {}))
        name, target = "function", function
    all_options: dict[str, Any] = {}
    written = [(key, _value(text)) for key, text in parse_qsl(query, keep_blank_values=True)]
    for key, value in [*written, *(options or {}).items()]:
        if key in all_options:
            raise ConfigurationError(f"{source}: {key} is given twice; leave out one of them")
        all_options[key] = value
    return ParsedSource(name, target, all_options)


def _value(text: str) -> object:
    try:
        return decode_json(text)
    except JsonError:
        return text
