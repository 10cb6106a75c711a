"""Conversations for supervised fine-tuning from the files of a synthesis."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from agentflow.errors import ConfigurationError
from agentflow.text import excerpt, search_terms

T = TypeVar("T", bound=Struct)

ChatMessage: TypeAlias = dict[str, Any]
"""A message in the format of chat templates."""

_PAIRS: Final = "synthesized_qa.jsonl"
_TRAJECTORIES: Final = "trajectories.jsonl"


class _PairLine(Struct):
    question: str
    answer: str
    trajectory_id: str


class _CallLine(Struct):
    tool: str
    args: dict[str, Any]


class _FailureLine(Struct):
    kind: str
    message: str


class _NodeLine(Struct):
    observation: str
    intent: str
    action: _CallLine | None
    trainable: bool = True
    failure: _FailureLine | None = None


class _PathLine(Struct):
    trajectory_id: str
    nodes: list[_NodeLine] = field(default_factory=list[_NodeLine])


def read_conversations(folder: str | Path, *, max_result_chars: int = 6_000) -> list[list[ChatMessage]]:
    """Return the pairs of a synthesis as conversations with tool calls, in the order of their file.

    The user asks, the assistant calls the tools of the path and answers. Messages of actions that failed have
    `"trainable": False`: `lessons_of` trains their repair and no failure. See docs/train-data.md.

    :param folder: output directory of the synthesis.
    :param max_result_chars: maximum characters of a tool result; of a longer one, windows that fit the question are shown.
    :raises ConfigurationError: one line with file and line, if something can't be read.
    """
    root = Path(folder)
    paths = {path.trajectory_id: path.nodes for path in _read(root / _TRAJECTORIES, _PathLine)}
    conversations: list[list[ChatMessage]] = []
    for number, pair in enumerate(_read(root / _PAIRS, _PairLine), 1):
        nodes = paths.get(pair.trajectory_id)
        if nodes is None:
            missing = f"trajectory {pair.trajectory_id} is not in {_TRAJECTORIES}; write the files again"
            raise ConfigurationError(f"{root / _PAIRS}:{number}: {missing}")
        conversations.append(
            [
                {"role": "user", "content": pair.question},
                *_steps(nodes, pair.question, max_result_chars),
                {"role": "assistant", "content": pair.answer},
            ]
        )
    return conversations


def _steps(nodes: list[_NodeLine], question: str, limit: int) -> Iterator[ChatMessage]:
    """Yield the call of each node and its result."""
    for number, node in enumerate(nodes):
        if node.action is None:
            continue
        key = f"call_{number}"
        call = {"name": node.action.tool, "arguments": node.action.args}
        message = {
            "role": "assistant",
            "content": node.intent,
            "tool_calls": [{"id": key, "type": "function", "function": call}],
        }
        yield message if node.trainable else {**message, "trainable": False}
        result = excerpt(node.observation, limit, search_terms(question, node.intent))
        failed = (
            "" if node.failure is None else f"The call failed: {node.failure.kind}: {node.failure.message}"
        )
        content = "\n".join(filter(None, (result, failed))) or "(empty)"
        yield {"role": "tool", "tool_call_id": key, "name": node.action.tool, "content": content}


def _read(path: Path, kind: type[T]) -> Iterator[T]:
    decoder = msgspec.json.Decoder(kind)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise ConfigurationError(f"{path}:{number}: {error}; name files of a synthesis") from None
    except OSError as error:
        raise ConfigurationError(
            f"{path}: can't be read: {error.strerror}; name the output directory of a synthesis"
        ) from None
