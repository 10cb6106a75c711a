"""Rows that compare: next messages after a shared prefix, and steps with a label each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Any

from agentflow.exports._conversations import (
    ExportContext,
    add_call,
    begin_chat,
    conversation_of,
    encode,
    hermes_text,
    image_files,
    is_masked,
    no_answer_reason,
    plain,
    text_of,
    trl_parts,
)
from agentflow.exports._rows import Dropped, DropReason, ExportRow
from agentflow.inspection import SeedRecord
from agentflow.trace import ChatMessage, Node, Verdict


class Ground(StrEnum):
    """Ground on which one of two messages after the same prompt is better, the most certain first. The set is closed."""

    REWARD = "reward"
    """No episode with the rejected message has a higher score than one with the chosen one, and their means differ."""
    VERDICT = "verdict"
    """The chosen action gave something new, the rejected one failed or gave nothing new."""
    EVIDENCE = "evidence"
    """A pair of the run rests on the chosen action; none rests on the rejected one or shows there what it cites."""


@dataclass
class _NextMessage:
    """Message of the model after a prefix, with all that is known of the paths through it."""

    id: str
    group: str
    prompt: list[ChatMessage]
    message: ChatMessage
    tools: dict[str, Any]
    is_new: bool
    """Its call did not fail and gave something new."""
    scores: list[float | None] = field(default_factory=list[float | None])
    """Score of each episode through it; none in a tree."""
    rights: list[bool] = field(default_factory=list[bool])
    """True for each scored episode through it that is right; in a tree, for a call that gave something new."""
    is_evidence: bool | None = None
    """A pair that was written rests on it, or none rests on anything from it on; `None`: neither, or unknown."""

    @property
    def known_scores(self) -> list[float]:
        return [score for score in self.scores if score is not None]

    @property
    def label(self) -> bool | None:
        """Return whether most of it is right; `None`: half of it is, it is unknown, or the call failed all the same."""
        share = fmean(self.rights) if self.rights else 0.5
        return None if share == 0.5 or (share > 0.5 and not self.is_new) else share > 0.5

    @property
    def rank(self) -> tuple[float, bool, bool]:
        """Order among siblings, the best last."""
        scores = self.known_scores
        return (fmean(scores) if scores else 0.0, self.is_new, self.is_evidence is True)


def ground_of(chosen: _NextMessage, rejected: _NextMessage) -> Ground | None:
    """Return the most certain ground on which a message is better; `None`: there is none, or a more certain one contradicts it."""
    if not chosen.is_new:  # no model is trained to make it
        return None
    orders = {
        Ground.REWARD: _by_reward(chosen.known_scores, rejected.known_scores),
        Ground.VERDICT: chosen.is_new - rejected.is_new,
        Ground.EVIDENCE: (chosen.is_evidence is True and rejected.is_evidence is False)
        - (rejected.is_evidence is True and chosen.is_evidence is False),
    }
    if -1 in orders.values():
        return None
    return next((ground for ground, order in orders.items() if order), None)


def _by_reward(chosen: Sequence[float], rejected: Sequence[float]) -> int:
    """Return 1 if the first scores are better, -1 if they are worse, 0 if they are equal, overlap, or are unknown."""
    if not chosen or not rejected or len({*chosen, *rejected}) == 1:
        return 0
    if min(chosen) >= max(rejected):
        return 1
    return -1 if max(chosen) <= min(rejected) else 0


# The next messages of a prefix are siblings: the actions of a node, or the messages in which episodes of a task differ.


def trl_dpo(trees: Sequence[SeedRecord], export: ExportContext) -> Iterator[ExportRow | Dropped]:
    """Yield `prompt`, `chosen`, `rejected` and `ground`: every worse sibling once, beside the best that is better for sure."""
    yield from _without_messages(trees)
    for siblings in _choices(trees, export):
        ordered = sorted(siblings, key=lambda sibling: sibling.rank, reverse=True)
        used = set[str]()
        for rejected in siblings:
            better = ((other, ground_of(other, rejected)) for other in ordered if other is not rejected)
            best, ground = next((pair for pair in better if pair[1] is not None), (None, None))
            if best is None or ground is None:
                continue
            used |= {best.id, rejected.id}
            values = {
                "id": f"{best.id}/{rejected.id}",
                "prompt": [trl_parts(message) for message in rejected.prompt],
                "chosen": [trl_parts(best.message)],
                "rejected": [trl_parts(rejected.message)],
                "ground": ground.value,
            }
            yield _row(rejected, values, export)
        for sibling in siblings:
            if sibling.id not in used:
                yield Dropped(sibling.group, sibling.id, _no_pair_reason(sibling, siblings))


def trl_kto(trees: Sequence[SeedRecord], export: ExportContext) -> Iterator[ExportRow | Dropped]:
    """Yield `prompt`, `completion` and `label`: each message once."""
    yield from _without_messages(trees)
    for siblings in _choices(trees, export):
        for sibling in siblings:
            if sibling.label is None:
                yield Dropped(sibling.group, sibling.id, DropReason.UNDECIDED)
                continue
            values: dict[str, Any] = {
                "id": sibling.id,
                "prompt": [trl_parts(message) for message in sibling.prompt],
                "completion": [trl_parts(sibling.message)],
                "label": sibling.label,
            }
            yield _row(sibling, values, export)


def trl_prm(trees: Sequence[SeedRecord], _: ExportContext) -> Iterator[ExportRow | Dropped]:
    """Yield `prompt`, `completions` and `labels`: the path to each leaf, with a label for each step."""
    yield from _without_messages(trees)
    for tree in trees:
        paths = _labelled(tree)
        if not paths and not tree.is_episode:
            yield Dropped(tree.group, tree.id, DropReason.NO_ACTIONS)
        for id, messages, labels in paths:
            if not labels:
                has_steps = any(message["role"] == "assistant" for message in messages)
                reason = DropReason.NO_SCORE if has_steps else DropReason.NO_ACTIONS
                yield Dropped(tree.group, id, reason)
                continue
            values = {
                "id": id,
                "prompt": "\n\n".join(text_of(message["content"]) for message in _prompt(messages)),
                "completions": _steps(messages[len(_prompt(messages)) :]),
                "labels": labels,
            }
            yield ExportRow("train", tree.group, values)


def _row(message: _NextMessage, values: dict[str, Any], export: ExportContext) -> ExportRow:
    images = image_files(message.prompt)
    shown = {"images": images} if export.has_images else {}
    return ExportRow("train", message.group, {**values, **message.tools, **shown}, tuple(images))


def _choices(trees: Sequence[SeedRecord], export: ExportContext) -> Iterator[list[_NextMessage]]:
    """Yield the siblings after each prefix, in the order of their first paths."""
    episodes: dict[str, dict[str, _NextMessage]] = {}
    for tree in trees:
        if not tree.is_episode:
            yield from _actions(tree, export)
            continue
        for answer in tree.answers:
            if not answer.answer and not answer.messages:
                continue
            messages = conversation_of(tree, answer)
            tools = export.tools_column(answer)
            for index, message in enumerate(messages):
                if message["role"] != "assistant" or message.get("context"):
                    continue
                prefix = encode([tools, *map(plain, messages[:index])])
                siblings = episodes.setdefault(prefix, {})
                next_message = siblings.setdefault(
                    encode(plain(message)),
                    _NextMessage(
                        f"{answer.id}/{index}",
                        tree.group,
                        messages[:index],
                        message,
                        tools,
                        is_new=not is_masked(message),
                    ),
                )
                next_message.scores.append(answer.score)
                next_message.rights += [] if answer.score is None else [answer.right]
    yield from (list(siblings.values()) for siblings in episodes.values())


def _actions(tree: SeedRecord, export: ExportContext) -> Iterator[list[_NextMessage]]:
    """Yield the actions of each node of a tree."""
    prompts: dict[str, list[ChatMessage]] = {}
    children: dict[str, list[_NextMessage]] = {}
    evidence = _evidence(tree)
    for node in tree.nodes:
        if node.parent is None or node.action is None:
            prompts[node.id] = begin_chat(tree.text).messages
            continue
        chat = begin_chat(tree.text)
        chat.messages = list(prompts[node.parent])
        add_call(chat, tree, node, tree.text)
        prompts[node.id] = chat.messages
        is_new = node.verdict is Verdict.NEW
        message = _NextMessage(
            node.id,
            tree.group,
            chat.messages[:-2],
            chat.messages[-2],
            export.tools_column(),
            is_new=is_new,
            rights=[is_new],
            is_evidence=evidence.get(node.id),
        )
        children.setdefault(node.parent, []).append(message)
    yield from children.values()


def _evidence(tree: SeedRecord) -> dict[str, bool]:
    """Return the nodes that a written pair needs as true, and those from which on nothing is needed as false.

    A call that shows the text that a pair cites elsewhere could have served as well, so it is in neither. What tasks need is
    unknown: their solutions are written with the knowledge of the whole tree.
    """
    pairs = [answer for answer in tree.answers if answer.whole_path]
    written = {node for answer in pairs if answer.right for node in answer.nodes}
    if not written or tree.tasks:
        return {}
    useful = {node for answer in pairs for node in answer.nodes}
    quotes = {quote for answer in pairs for quote in answer.quotes}
    for node in reversed(tree.nodes):
        if node.id in useful or any(quote in node.text for quote in quotes):
            useful |= {node.id, node.parent or node.id}
    ids = [node.id for node in tree.nodes]
    return {id: id in written for id in ids if id in written or id not in useful}


def _no_pair_reason(message: _NextMessage, siblings: Sequence[_NextMessage]) -> DropReason:
    """Return the reason that a message is in no pair."""
    if len(siblings) == 1:
        return DropReason.NO_SIBLING
    facts = [
        (sorted(other.known_scores), other.is_new, other.is_evidence)
        for other in siblings
        if other is not message
    ]
    is_known = bool(message.known_scores) or not message.scores
    is_same = is_known and (sorted(message.known_scores), message.is_new, message.is_evidence) in facts
    return DropReason.SAME_VALUE if is_same else DropReason.UNDECIDED


def _without_messages(trees: Sequence[SeedRecord]) -> Iterator[Dropped]:
    """Yield the reason for each episode that has no messages to compare."""
    for tree in trees:
        if tree.is_episode and not tree.answers:
            yield Dropped(tree.group, tree.id, no_answer_reason(tree))


def _prompt(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Return the messages before the first one of the model."""
    roles = [message["role"] for message in messages]
    return messages[: roles.index("assistant")] if "assistant" in roles else messages


def _labelled(tree: SeedRecord) -> list[tuple[str, list[ChatMessage], list[bool]]]:
    """Return each path with its messages and a label for each message of the model; none if it has no score."""
    if not tree.is_episode:
        leaves = [leaf.id for leaf in tree.tree.leaves() if leaf.action is not None]
        return [(leaf, *_path_labels(tree, tree.tree.path(leaf)[1:])) for leaf in leaves]
    paths: list[tuple[str, list[ChatMessage], list[bool]]] = []
    for answer in tree.answers:
        messages = conversation_of(tree, answer)
        calls = [not is_masked(message) for message in messages if message["role"] == "assistant"]
        labels = [] if answer.score is None else [*calls[:-1], answer.right]
        paths.append((answer.id, messages, labels))
    return paths


def _path_labels(tree: SeedRecord, path: Sequence[Node]) -> tuple[list[ChatMessage], list[bool]]:
    chat = begin_chat(tree.text)
    for node in path:
        add_call(chat, tree, node, tree.text)
    return chat.messages, [node.verdict is Verdict.NEW for node in path]


def _steps(messages: Sequence[ChatMessage]) -> list[str]:
    """Return each message of the model with the results that follow it, as text."""
    steps: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            steps[-1] += f"\n<tool_response>\n{text_of(message['content'])}\n</tool_response>"
        elif message["role"] != "assistant":
            steps[-1] += f"\n{text_of(message['content'])}"
        else:
            steps.append(hermes_text(message))
    return steps
