"""Rows that compare: next messages after a shared prefix, and steps with a label each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from agentflow.exports._conversations import (
    add_call,
    begin_chat,
    conversation_of,
    encode,
    hermes_text,
    image_files,
    plain,
    text_of,
    trl_parts,
)
from agentflow.exports._records import ExportNode, ExportTree
from agentflow.exports._rows import Dropped, DropReason, ExportRow
from agentflow.trajectory import ChatMessage


@dataclass
class _NextMessage:
    """Message of the model after a prefix, with the value of every path through it."""

    id: str
    group: str
    prompt: list[ChatMessage]
    message: ChatMessage
    values: list[float | None] = field(default_factory=list[float | None])

    @property
    def value(self) -> float | None:
        """Mean value; `None` if it is unknown."""
        known = [value for value in self.values if value is not None]
        return fmean(known) if known else None

    @property
    def is_trainable(self) -> bool:
        return bool(self.message.get("trainable", True))


class PreferenceFormats:
    """Rows of `trl-dpo`, `trl-kto` and `trl-prm`.

    The next messages of a prefix are siblings: the actions of a node, or the messages in which episodes of a task differ. The
    value of an action is 1 if its observation is new, else 0; that of a message is the mean score of its episodes.
    """

    def __init__(self, common: dict[str, Any], *, images: bool) -> None:
        """Prepare the columns that all rows share.

        :param common: columns with the same value in all rows.
        :param images: the run has images, so every row has a column for them.
        """
        self._common = common
        self._images = images

    def dpo(self, trees: Sequence[ExportTree]) -> Iterator[ExportRow | Dropped]:
        """Yield `prompt`, `chosen` and `rejected`: every worse sibling once, beside the best one."""
        for siblings in _choices(trees):
            rated: list[tuple[float, _NextMessage]] = []
            for one in siblings:
                if one.value is None:
                    yield Dropped(one.group, one.id, DropReason.UNDECIDED)
                else:
                    rated.append((one.value, one))
            best = max((one for one in rated if one[1].is_trainable), key=lambda one: one[0], default=None)
            chosen = False
            for value, one in rated:
                if best is None or value >= best[0]:
                    continue
                chosen = True
                values = {
                    "id": f"{best[1].id}/{one.id}",
                    "prompt": [trl_parts(message) for message in one.prompt],
                    "chosen": [trl_parts(best[1].message)],
                    "rejected": [trl_parts(one.message)],
                }
                yield self._row(one, values)
            for value, one in rated:
                if best is None or (value >= best[0] and not (chosen and one is best[1])):
                    yield Dropped(one.group, one.id, DropReason.SAME_VALUE)

    def kto(self, trees: Sequence[ExportTree]) -> Iterator[ExportRow | Dropped]:
        """Yield `prompt`, `completion` and `label`: each message once."""
        for siblings in _choices(trees):
            for one in siblings:
                if one.value is None or one.value == 0.5:
                    yield Dropped(one.group, one.id, DropReason.UNDECIDED)
                    continue
                values: dict[str, Any] = {
                    "id": one.id,
                    "prompt": [trl_parts(message) for message in one.prompt],
                    "completion": [trl_parts(one.message)],
                    "label": one.value > 0.5,
                }
                yield self._row(one, values)

    def prm(self, trees: Sequence[ExportTree]) -> Iterator[ExportRow | Dropped]:
        """Yield `prompt`, `completions` and `labels`: the path to each leaf, with a label for each step."""
        for tree in trees:
            paths = _labelled(tree)
            if not paths:
                yield Dropped(tree.group, tree.id, DropReason.NO_ACTIONS)
            for id, messages, labels in paths:
                if not labels:
                    reason = DropReason.NO_ACTIONS if len(messages) == 1 else DropReason.NO_SCORE
                    yield Dropped(tree.group, id, reason)
                    continue
                values = {
                    "id": id,
                    "prompt": text_of(messages[0]["content"]),
                    "completions": _steps(messages[1:]),
                    "labels": labels,
                }
                yield ExportRow("train", tree.group, values)

    def _row(self, one: _NextMessage, values: dict[str, Any]) -> ExportRow:
        images = image_files(one.prompt)
        shown = {"images": images} if self._images else {}
        return ExportRow("train", one.group, {**values, **self._common, **shown}, tuple(images))


def _choices(trees: Sequence[ExportTree]) -> Iterator[list[_NextMessage]]:
    """Yield the siblings after each prefix, in the order of their first paths."""
    episodes: dict[str, dict[str, _NextMessage]] = {}
    for tree in trees:
        if not tree.is_episode:
            yield from _actions(tree)
            continue
        for answer in tree.answers:
            if not answer.answer:
                continue
            messages = conversation_of(tree, answer)
            for place, message in enumerate(messages):
                if message["role"] == "assistant":
                    prefix, own = encode([plain(one) for one in messages[:place]]), encode(plain(message))
                    known = episodes.setdefault(prefix, {})
                    if own not in known:
                        id = f"{answer.id}/{place}"
                        known[own] = _NextMessage(id, tree.group, messages[:place], message)
                    known[own].values.append(answer.score)
    for siblings in episodes.values():
        yield list(siblings.values())


def _actions(tree: ExportTree) -> Iterator[list[_NextMessage]]:
    """Yield the actions of each node of a tree."""
    prompts: dict[str, list[ChatMessage]] = {}
    children: dict[str, list[_NextMessage]] = {}
    for node in tree.nodes:
        if node.parent_id is None or node.action is None:
            prompts[node.node_id] = begin_chat(tree.text).messages
            continue
        chat = begin_chat(tree.text)
        chat.messages = list(prompts[node.parent_id])
        add_call(chat, node, tree.text, is_episode=False)
        prompts[node.node_id] = chat.messages
        one = _NextMessage(node.node_id, tree.group, chat.messages[:-2], chat.messages[-2])
        one.values.append(1.0 if node.trainable else 0.0)
        children.setdefault(node.parent_id, []).append(one)
    yield from children.values()


def _labelled(tree: ExportTree) -> list[tuple[str, list[ChatMessage], list[bool]]]:
    """Return each path with its messages and a label for each message of the model; none if it has no score."""
    if not tree.is_episode:
        return [(path[-1].node_id, *_path_labels(tree, path)) for path in tree.leaves()]
    found: list[tuple[str, list[ChatMessage], list[bool]]] = []
    known = tree.by_id()
    for answer in tree.answers:
        messages = conversation_of(tree, answer)
        calls = [known[own].trainable for own in answer.nodes if known[own].action is not None]
        labels = [] if answer.score is None else [*calls, answer.right]
        found.append((answer.id, messages, labels))
    return found


def _path_labels(tree: ExportTree, path: Sequence[ExportNode]) -> tuple[list[ChatMessage], list[bool]]:
    chat = begin_chat(tree.text)
    for node in path:
        add_call(chat, node, tree.text, is_episode=False)
    return chat.messages, [node.trainable for node in path]


def _steps(messages: Sequence[ChatMessage]) -> list[str]:
    """Return each message of the model with the results that follow it, as text."""
    steps: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            steps[-1] += f"\n<tool_response>\n{text_of(message['content'])}\n</tool_response>"
        else:
            steps.append(hermes_text(message))
    return steps
