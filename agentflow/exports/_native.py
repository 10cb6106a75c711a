"""Rows of trees, nodes and model calls, and rows of exact tokens."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.exports._records import ExportTree
from agentflow.exports._rows import Dropped, DropReason, ExportRow
from agentflow.tokens import TokenCall, TokenTree, Voice

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
    """Yield every tree, every node and every model call with known tokens."""
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
        yield from _calls(tree)


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


def _calls(tree: ExportTree) -> Iterator[ExportRow]:
    """Yield the calls; `row`, `start` and `stop` say where a row of `trl-sft-tokens` trains their tokens."""
    places = {
        part.call: (number, part.start, part.stop)
        for number, row in enumerate(_token_tree(tree).rows())
        for part in row.trained
    }
    for call in tree.calls:
        row, start, stop = places[call.id]
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


def token_rows(trees: Sequence[ExportTree], role: str) -> Iterator[ExportRow | Dropped]:
    """Yield `input_ids` and `labels`: each sampled token is a label in exactly one row.

    :param role: role whose tokens are trained; empty: all.
    """
    for tree in trees:
        rows = _token_tree(tree).rows((lambda voice: voice.role == role) if role else None)
        for number, row in enumerate(rows):
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
        if not rows:
            yield Dropped(tree.group, tree.id, DropReason.NO_TOKENS)


def _token_tree(tree: ExportTree) -> TokenTree:
    tokens = TokenTree()
    for call in tree.calls:
        voice = Voice(role=call.role, episode=tree.id)
        try:
            tokens.add(TokenCall(id=call.id, voice=voice, tokens=call.tokens))
        except ValueError as error:
            raise ConfigurationError(f"{tree.id}: {error}") from None
    return tokens
