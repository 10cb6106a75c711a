"""Rows for training on long contexts: a question over the documents that it needs, among the others of its tree."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from agentflow.exports._conversations import chosen_answers
from agentflow.exports._records import ExportAnswer, ExportNode, ExportTree
from agentflow.exports._rows import Dropped, DropReason, ExportRow, Take
from agentflow.questions import ShownDocument, documents_of
from agentflow.text import escape_special_tokens
from agentflow.trace import Action, ActionOutcome, Node, Observation, Text, Verdict

LONG_CONTEXT_COLUMNS: Final = {
    "id": "string",
    "prompt": "[json]",
    "completion": "[json]",
    "documents": "[string]",
    "needed": "[int]",
}
"""Columns of `long-context`."""


def long_context_rows(trees: Sequence[ExportTree], take: Take) -> Iterator[ExportRow | Dropped]:
    """Yield a question below all documents of its tree, in an order that does not depend on what it needs, and its answer."""
    documents = {tree.id: documents_of(map(_node, tree.nodes)) for tree in trees}
    for chosen in chosen_answers(trees, take):
        if isinstance(chosen, Dropped):
            yield chosen
            continue
        tree, answer = chosen
        row = _row(tree, answer, documents[tree.id])
        yield Dropped(tree.group, answer.id, DropReason.NO_DOCUMENTS) if row is None else row


def _row(tree: ExportTree, answer: ExportAnswer, documents: Sequence[ShownDocument]) -> ExportRow | None:
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


def _node(node: ExportNode) -> Node:
    action = None if node.action is None else Action(node.action["tool"], node.action["args"])
    return Node(
        id=node.node_id,
        parent=node.parent_id,
        depth=node.depth,
        position=0,
        intent=node.intent,
        action=action,
        outcome=ActionOutcome(Observation((Text(node.observation),), node.sources)),
        verdict=node.verdict or Verdict.NEW,
    )
