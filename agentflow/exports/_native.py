"""Rows of trees, nodes and model calls, rows of exact tokens, and rows for training on long contexts."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

import msgspec

from agentflow.errors import ConfigurationError
from agentflow.exports._conversations import ExportContext, chosen_answers, fixed_arguments_of
from agentflow.exports._rows import Dropped, DropReason, ExportRow, Take
from agentflow.inspection import AnswerRecord, SeedRecord, nodes_by_path
from agentflow.questions import ShownDocument, documents_of
from agentflow.runs import image_file, image_record
from agentflow.tasks import VerifiableTask
from agentflow.text import escape_special_tokens
from agentflow.trace import ActionOutcome, Node, Observation, Text, TokenTree, Verdict

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


def native_rows(trees: Sequence[SeedRecord], _: ExportContext) -> Iterator[ExportRow | Dropped]:
    """Yield every tree, every node, every verified task and every model call with known tokens."""
    earlier = set[str]()
    for tree in trees:
        yield ExportRow("trees", tree.group, _tree(tree))
        for node in tree.nodes:
            action = node.action
            values: dict[str, Any] = {
                "tree_id": tree.id,
                "node_id": node.id,
                "parent_id": node.parent,
                "depth": node.depth,
                "intent": node.intent,
                "reasoning": tree.tree.reasoning.get(node.id, ""),
                "tool": "" if action is None else action.tool,
                "arguments": {} if action is None else action.arguments,
                "fixed": fixed_arguments_of(tree.tree, node),
                "observation": node.text,
                "images": [image_file(image) for image in node.images],
                "verdict": node.verdict,
                "reason": node.reason,
                "failure": msgspec.to_builtins(node.failure),
                "trouble": node.outcome.trouble if tree.is_episode else "",
                "isolation": "" if tree.is_episode else node.isolation,
                "diverged": node.id in tree.tree.diverged,
                "trainable": node.verdict is Verdict.NEW,
            }
            yield ExportRow("nodes", tree.group, values, tuple(values["images"]))
        for task in tree.tasks:
            yield ExportRow("tasks", tree.group, _task(tree, task))
        for surplus in tree.surplus_tasks:
            yield Dropped(tree.group, surplus, DropReason.SURPLUS)
        yield from _calls(tree, earlier)


def _tree(tree: SeedRecord) -> dict[str, Any]:
    return {
        "tree_id": tree.id,
        "group": tree.group,
        "text": tree.text,
        "is_episode": tree.is_episode,
        "reward": tree.reward,
        "answers": [
            {**msgspec.to_builtins(answer), "images": [image_record(image) for image in answer.images]}
            for answer in tree.answers
        ],
        "facts": tree.facts,
    }


def _task(tree: SeedRecord, task: VerifiableTask) -> dict[str, Any]:
    values = msgspec.to_builtins(task) | {"tree_id": tree.id, "task_id": task.id, "answer": task.answer}
    return {name: values[name] for name in NATIVE_COLUMNS["tasks"]}


def _calls(tree: SeedRecord, earlier: set[str]) -> Iterator[ExportRow]:
    """Yield the calls; `row`, `start` and `stop` say where a row of `trl-sft-tokens` trains their tokens."""
    slices: dict[str, tuple[int, int, int]] = {}
    for number, pieces in enumerate(_token_tree(tree, earlier).rows().values()):
        start = 0
        for piece in pieces:
            slices[piece.call] = number, start, start + len(piece.ids)
            start += len(piece.ids)
    for call in tree.calls:
        # A call that an earlier leaf shares has its slice there.
        row, start, stop = slices.get(call.id, (None, None, None))
        tokens = call.tokens
        values: dict[str, Any] = {
            "tree_id": tree.id,
            "call_id": call.id,
            "role": call.voice.role,
            "prompt_ids": tokens.prompt,
            "sampled_ids": tokens.sampled,
            "logprobs": tokens.logprobs,
            "version": tokens.version,
            "versions": [list(part) for part in tokens.versions],
            "finish": tokens.finish,
            "advantage": tree.advantages.get(call.id),
            "row": row,
            "start": start,
            "stop": stop,
        }
        yield ExportRow("calls", tree.group, values)


def token_rows(trees: Sequence[SeedRecord], export: ExportContext) -> Iterator[ExportRow | Dropped]:
    """Yield `input_ids` and `labels`: each sampled token is a label in exactly one row."""
    take = export.take
    best = max(trees, key=_score, default=None)
    earlier = set[str]()
    for tree in trees:
        if not tree.is_episode:
            yield from _planner_rows(tree, take)
            continue
        if tree.reward is None and take is not Take.ALL:
            yield Dropped(tree.group, tree.id, DropReason.NO_SCORE)
            continue
        if take is not Take.ALL and _score(tree) < 1.0:
            yield Dropped(tree.group, tree.id, DropReason.NOT_CORRECT)
            continue
        if take is Take.BEST and tree is not best:
            yield Dropped(tree.group, tree.id, DropReason.NOT_BEST)
            continue
        yield from _labelled(tree, _token_tree(tree, earlier))
        if not tree.calls:
            yield Dropped(tree.group, tree.id, DropReason.NO_TOKENS)


def _score(tree: SeedRecord) -> float:
    """Return the score of an episode's answer: its reward, unless that has other parts."""
    return (tree.reward or 0.0) if tree.answer_score is None else tree.answer_score


def _planner_rows(tree: SeedRecord, take: Take) -> Iterator[ExportRow | Dropped]:
    """Yield the calls of a tree's planner that chose an action on the path of an answer or a task."""
    if not tree.calls:
        yield Dropped(tree.group, tree.id, DropReason.NO_TOKENS)
        return
    calls = tree.calls
    if take is not Take.ALL:
        used: set[str] = set()
        for chosen in chosen_answers([tree], take):
            if isinstance(chosen, Dropped):
                yield chosen
            else:
                used.update(chosen[1].nodes)
        sources = (source for task in tree.tasks for source in task.sources if source in tree.tree.by_id)
        used.update(node.id for source in sources for node in tree.tree.path(source))
        parents = {node.parent for node in tree.nodes if node.id in used}
        by_path = nodes_by_path(tree.nodes)
        node_paths = {node_path or "root" for node_path, node in by_path.items() if node.id in parents}
        calls = tuple(call for call in tree.calls if call.id.split("/")[1] in node_paths)
        for call in tree.calls:
            if call.id.split("/")[1] not in node_paths:
                yield Dropped(tree.group, f"{tree.id}/{call.id}", DropReason.OFF_PATH)
    yield from _labelled(tree, _token_tree(msgspec.structs.replace(tree, calls=calls), set()))


def _labelled(tree: SeedRecord, tokens: TokenTree) -> Iterator[ExportRow]:
    """Yield the rows of the calls of one tree or episode."""
    for number, (call, pieces) in enumerate(tokens.rows().items()):
        values: dict[str, Any] = {
            "id": f"{tree.id}/{number}",
            "role": tokens.voice(call).role,
            "input_ids": [id for piece in pieces for id in piece.ids],
            "labels": [id if piece.kind == "trained" else _IGNORED for piece in pieces for id in piece.ids],
            "reward": tree.reward,
        }
        yield ExportRow("train", tree.group, values)


def _token_tree(tree: SeedRecord, earlier: set[str]) -> TokenTree:
    """Return the calls of an episode as a tree.

    :param earlier: marks of the calls of earlier leaves of the same tree, which are left out.
    """
    tokens = TokenTree()
    for call in tree.calls:
        if tree.leaf:
            if (mark := call.tokens.mark) in earlier:
                continue
            earlier.add(mark)
        try:
            tokens.add(call)
        except ValueError as error:
            raise ConfigurationError(f"{tree.id}: {error}") from None
    return tokens


LONG_CONTEXT_COLUMNS: Final = {
    "id": "string",
    "prompt": "[json]",
    "completion": "[json]",
    "documents": "[string]",
    "needed": "[int]",
}
"""Columns of `long-context`."""


def long_context_rows(trees: Sequence[SeedRecord], export: ExportContext) -> Iterator[ExportRow | Dropped]:
    """Yield a question below all documents of its tree, in an order that does not depend on what it needs, and its answer."""
    documents = {tree.id: documents_of(map(_without_images, tree.nodes)) for tree in trees}
    for chosen in chosen_answers(trees, export.take):
        if isinstance(chosen, Dropped):
            yield chosen
            continue
        tree, answer = chosen
        row = _long_context_row(tree, answer, documents[tree.id])
        yield Dropped(tree.group, answer.id, DropReason.NO_DOCUMENTS) if row is None else row


def _long_context_row(
    tree: SeedRecord, answer: AnswerRecord, documents: Sequence[ShownDocument]
) -> ExportRow | None:
    shuffled = list(documents)
    Random(answer.id).shuffle(shuffled)
    needed = [number for number, document in enumerate(shuffled, 1) if document.id in answer.documents]
    if not needed or len(needed) < len(answer.documents):
        return None
    texts = [
        f"Document {number}: {document.title or document.id}\n\n{document.text}"
        for number, document in enumerate(shuffled, 1)
    ]
    question = "\n\n---\n\n".join([*texts, answer.question])
    values: dict[str, Any] = {
        "id": answer.id,
        "prompt": [{"role": "user", "content": escape_special_tokens(question)}],
        "completion": [{"role": "assistant", "content": escape_special_tokens(answer.answer)}],
        "documents": [document.id for document in shuffled],
        "needed": needed,
    }
    return ExportRow("train", tree.group, values)


def _without_images(node: Node) -> Node:
    seen = Observation((Text(node.text),), node.observation.sources)
    return msgspec.structs.replace(node, outcome=ActionOutcome(seen))
