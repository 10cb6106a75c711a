"""Rows that formats make, the reasons for what is in none, and selections."""

from enum import StrEnum
from typing import Any, Final, NamedTuple


class Take(StrEnum):
    """Selection of answers. The set is closed."""

    ALL = "all"
    """Every question with an answer, right or wrong."""
    CORRECT = "correct"
    """Pairs of `synthesized_qa.jsonl`; episodes whose score is 1."""
    BEST = "best"
    """The correct answer of each seed or task with the highest score, the fewest actions; else the first."""


class PathExtent(StrEnum):
    """Extent of the path of a pair. The set is closed."""

    TRIMMED = "trimmed"
    """The calls that the answer needs, with those that they rest on."""
    FULL = "full"
    """The whole path, wandering included."""


class DropReason(StrEnum):
    """Reason that something of the run is in no row. The set is closed: manifests count by it."""

    NO_QUESTION = "no_question"
    """No question was written on the tree, or it was not accepted; its verified tasks have no path."""
    NO_ANSWER = "no_answer"
    """The episode has no answer."""
    NO_SCORE = "no_score"
    """The answer was not scored, so nobody knows if it is correct."""
    NOT_CORRECT = "not_correct"
    """The score is below 1."""
    SURPLUS = "surplus"
    """The pair or task passed every check and was not written: it repeats another one, contradicts one, or exceeds a quota."""
    NOT_BEST = "not_best"
    """Another correct answer of the seed or task was taken."""
    NOTHING_TO_TRAIN = "nothing_to_train"
    """Every message of the model is masked: it failed, or rests on something that is not shown."""
    MASKED = "masked"
    """The call failed or gave nothing new, and the format can't mask it."""
    NO_TOKENS = "no_tokens"
    """The tokens of its model calls are unknown."""
    OFF_PATH = "off_path"
    """The planner's call chose no action on the path of an answer or task that is taken."""
    NO_ACTIONS = "no_actions"
    """It has no action."""
    NO_SIBLING = "no_sibling"
    """It is the only message after its prefix."""
    SAME_VALUE = "same_value"
    """Its siblings are as good: rewards, verdicts and evidence are equal."""
    UNDECIDED = "undecided"
    """Its order among its siblings is unknown: nothing was scored, rewards overlap, or rewards and verdicts contradict each other; as many
    of the paths through it are right as wrong."""
    NO_MESSAGES = "no_messages"
    """The run kept its tokens and no messages, or it was no conversation."""
    VALIDATION = "validation"
    """It is an episode of a validation, whose tasks must not be trained."""
    SAME_TASK = "same_task"
    """Another episode of the task stands for it."""
    NO_REFERENCE = "no_reference"
    """There is no reference answer."""
    NO_DOCUMENTS = "no_documents"
    """The documents that the answer needs are unknown, or are not all of the tree."""


class ExportRow(NamedTuple):
    """Row of a file."""

    table: str
    """Table; `train` for formats with one."""
    group: str
    """Seed or task that it comes from: a split never divides one."""
    values: dict[str, Any]
    """Columns."""
    images: tuple[str, ...] = ()
    """Paths of the images that it mentions."""


class Dropped(NamedTuple):
    """Something of the run that is in no row."""

    group: str
    """Seed or task that it comes from."""
    id: str
    """Id of the tree, the answer, the node or the call."""
    reason: DropReason
    """Reason."""


COLUMNS: Final = {
    "bool": "bool",
    "float": "float64",
    "int": "int64",
    "json": "json",
    "string": "string",
}
"""Column types and their names in a dataset card; a list of one is written `[type]`."""

STRUCTS: Final[dict[str, dict[str, str]]] = {
    "message": {"role": "string", "content": "string"},
    "reward": {"style": "string", "ground_truth": "string"},
    "task": {
        "index": "int",
        "id": "string",
        "answers": "[string]",
        "need_tools_kwargs": "bool",
        "tools_kwargs": "json",
    },
    "verified_task": {
        "index": "int",
        "id": "string",
        "answers": "[string]",
        "need_tools_kwargs": "bool",
        "tools_kwargs": "json",
        "task": "json",
    },
}
"""Column types with fields."""
