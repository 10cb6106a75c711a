"""Rows of trees, nodes and model calls, and rows of exact tokens."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.exports._conversations import chosen_answers
from agentflow.exports._records import ExportTree
from agentflow.exports._rows import Dropped, DropReason, ExportRow, Take
from agentflow.tasks import VerifiableTask
from agentflow.trace import TokenTree, Voice

NATIVE_COLUMNS: Final = {
    "trees": {
        "tree_id": "string",
        "group": "string",
        "text": "string",
        "is_episode": "bool",
        "reward": "float",
        "answers": "[json]",
        "facts": "json",
    },
    "nodes": {
        "tree_id": "string",
        "node_id": "string",
        "parent_id": "string",
        "depth": "int",
        "intent": "string",
        "reasoning": "string",
        "tool": "string",
        "arguments": "json",
        "fixed": "[string]",
        "observation": "string",
        "images": "[string]",
        "verdict": "string",
        "reason": "string",
        "failure": "json",
        "trouble": "string",
        "isolation": "string",
        "diverged": "bool",
        "trainable": "bool",
    },
    "tasks": {
        "tree_id": "string",
        "task_id": "string",
        "kind": "string",
        "instruction": "string",
        "answer": "string",
        "setup": "json",
        "gold": "json",
        "verifier": "[json]",
        "wrong": "[json]",
        "sources": "[string]",
        "difficulty": "json",
        "metadata": "json",
    },
    "calls": {
        "tree_id": "string",
        "call_id": "string",
        "role": "string",
        "prompt_ids": "[int]",
        "sampled_ids": "[int]",
        "logprobs": "[float]",
        "version": "string",
        "versions": "[json]",
        "finish": "string",
        "advantage": "float",
        "row": "int",
        "start": "int",
        "stop": "int",
    },
}
"""Columns of `native` and `parquet`."""

TOKEN_COLUMNS: Final = {
    "id": "string",
    "role": "string",
    "input_ids": "[int]",
    "labels": "[int]",
    "reward": "float",
}
"""Columns of `trl-sft-tokens`."""

_IGNORED: Final = -100
"""Label of a token that is not trained."""


def native_rows(trees: Sequence[ExportTree]) -> Iterator[ExportRow | Dropped]:
    """Yield every tree, every node, every verified task and every model call with known tokens."""
    known = set[str]()
    for tree in trees:
        yield ExportRow("trees", tree.group, _tree(tree))
        for node in tree.nodes:
            action = node.action or {"tool": "", "args": {}}
            values: dict[str, Any] = {
                "tree_id": tree.id,
                "node_id": node.node_id,
                "parent_id": node.parent_id,
                "depth": node.depth,
                "intent": node.intent,
                "reasoning": node.reasoning,
                "tool": action["tool"],
                "arguments": action["args"],
                "fixed": list(node.fixed or ()),
                "observation": node.observation,
                "images": [image.file for image in node.images],
                "verdict": node.verdict or "",
                "reason": node.reason or "",
                "failure": msgspec.to_builtins(node.failure),
                "trouble": node.trouble,
                "isolation": node.isolation,
                "diverged": node.diverged,
                "trainable": node.trainable,
            }
            yield ExportRow("nodes", tree.group, values, tuple(values["images"]))
        for task in tree.tasks:
            yield ExportRow("tasks", tree.group, _task(tree, task))
        for surplus in tree.surplus_tasks:
            yield Dropped(tree.group, surplus, DropReason.SURPLUS)
        yield from _calls(tree, known)


def _tree(tree: ExportTree) -> dict[str, Any]:
    return {
        "tree_id": tree.id,
        "group": tree.group,
        "text": tree.text,
        "is_episode": tree.is_episode,
        "reward": tree.reward,
        "answers": msgspec.to_builtins(tree.answers),
        "facts": tree.facts,
    }


def _task(tree: ExportTree, task: VerifiableTask) -> dict[str, Any]:
    known = msgspec.to_builtins(task)
    own = {"tree_id": tree.id, "task_id": task.id, "answer": task.answer}
    return {name: own[name] if name in own else known[name] for name in NATIVE_COLUMNS["tasks"]}


def _calls(tree: ExportTree, known: set[str]) -> Iterator[ExportRow]:
    """Yield the calls; `row`, `start` and `stop` say where a row of `trl-sft-tokens` trains their tokens."""
    places = {
        part.call: (number, part.start, part.stop)
        for number, row in enumerate(_token_tree(tree, known).rows())
        for part in row.trained
    }
    for call in tree.calls:
        # A call that an earlier leaf shares has its place there.
        row, start, stop = places.get(call.id, (None, None, None))
        tokens = call.tokens
        values: dict[str, Any] = {
            "tree_id": tree.id,
            "call_id": call.id,
            "role": call.role,
            "prompt_ids": tokens.prompt,
            "sampled_ids": tokens.sampled,
            "logprobs": tokens.logprobs,
            "version": tokens.version,
            "versions": [list(part) for part in tokens.versions],
            "finish": tokens.finish,
            "advantage": call.advantage,
            "row": row,
            "start": start,
            "stop": stop,
        }
        yield ExportRow("calls", tree.group, values)


def token_rows(trees: Sequence[ExportTree], take: Take, role: str = "") -> Iterator[ExportRow | Dropped]:
    """Yield `input_ids` and `labels`: each sampled token is a label in exactly one row.

    :param role: role whose tokens are trained; empty: all.
    """
    best = max(trees, key=lambda tree: tree.reward or 0.0, default=None)
    known = set[str]()
    for tree in trees:
        if not tree.is_episode:
            yield from _planner_rows(tree, take)
            continue
        if tree.reward is None and take is not Take.ALL:
            yield Dropped(tree.group, tree.id, DropReason.NO_SCORE)
            continue
        if take is not Take.ALL and (tree.reward or 0.0) < 1.0:
            yield Dropped(tree.group, tree.id, DropReason.NOT_CORRECT)
            continue
        if take is Take.BEST and tree is not best:
            yield Dropped(tree.group, tree.id, DropReason.NOT_BEST)
            continue
        yield from _labelled(tree, _token_tree(tree, known), role)
        if not tree.calls:
            yield Dropped(tree.group, tree.id, DropReason.NO_TOKENS)


def _planner_rows(tree: ExportTree, take: Take) -> Iterator[ExportRow | Dropped]:
    """Yield the calls of a tree's planner that chose an action on the path of an answer or a task."""
    if not tree.calls:
        yield Dropped(tree.group, tree.id, DropReason.NO_TOKENS)
        return
    calls = tree.calls
    if take is not Take.ALL:
        used: set[str] = set()
        for one in chosen_answers([tree], take):
            if isinstance(one, Dropped):
                yield one
            else:
                used.update(one[1].nodes)
        used.update(node for task in tree.tasks for source in task.sources for node in tree.path_to(source))
        chose = {node.parent_id for node in tree.nodes if node.node_id in used}
        calls = tuple(call for call in tree.calls if call.node in chose)
        for call in tree.calls:
            if call.node not in chose:
                yield Dropped(tree.group, f"{tree.id}/{call.id}", DropReason.OFF_PATH)
    yield from _labelled(tree, _token_tree(msgspec.structs.replace(tree, calls=calls), set()), "")


def _labelled(tree: ExportTree, tokens: TokenTree, role: str) -> Iterator[ExportRow]:
    """Yield the rows of the calls of one tree or episode."""
    for number, row in enumerate(tokens.rows((lambda voice: voice.role == role) if role else None)):
        ids = list(row.ids)
        labels = [own if trained else _IGNORED for own, trained in zip(ids, row.mask, strict=True)]
        values: dict[str, Any] = {
            "id": f"{tree.id}/{number}",
            "role": row.voice.role,
            "input_ids": ids,
            "labels": labels,
            "reward": tree.reward,
        }
        yield ExportRow("train", tree.group, values)


def _token_tree(tree: ExportTree, known: set[str]) -> TokenTree:
    """Return the calls of an episode as a tree.

    :param known: marks of the calls of earlier leaves of the same tree, which are left out.
    """
    tokens = TokenTree()
    for call in tree.calls:
        if tree.leaf:
            if (mark := call.tokens.mark) in known:
                continue
            known.add(mark)
        voice = Voice(role=call.role, episode=tree.id)
        try:
            tokens.add(call.id, call.tokens, voice)
        except ValueError as error:
            raise ConfigurationError(f"{tree.id}: {error}") from None
    return tokens
