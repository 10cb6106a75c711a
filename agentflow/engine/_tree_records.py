"""Records of a tree on its journal page, and what can be rebuilt from them."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentflow.journal import Page
from agentflow.trace import (
    NO_OUTCOME,
    ActionOutcome,
    Failure,
    Node,
    Observation,
    Plan,
    Reply,
    Seed,
    Text,
    Tree,
    Usage,
    Verdict,
)


class LevelRecord(Struct, frozen=True):
    """Verdicts of a level, under `level/<depth>`: by rule and by model."""

    others: dict[str, tuple[Verdict, str]]
    """Verdict and reason of each node that is not `new`, by path key."""


class VerdictRecord(Struct, frozen=True):
    """A verdict given by a model, under `node/<path>`."""

    verdict: Verdict
    """The verdict."""
    reason: str
    """Reason for a verdict other than `new`."""
    usage: Usage
    """Usage of the verifier's model."""
    failure: Failure | None = None
    """Failure of the verifier."""
    prompt: str = ""
    """Hash of the last message of its prompt; see `Reply.prompt`."""


def path_key(path: Sequence[int]) -> str:
    """Return the journal key of a node's path: the positions of the node and its ancestors, as in `0-1-0`."""
    return "-".join(map(str, path)) or "root"


def plans_of(tree: Tree, page: Page) -> dict[str, tuple[Reply[Plan], ...]]:
    """Return the planner's replies at each node by node id; nodes at which it was not asked are absent.

    Example::

        replies = plans_of(tree, page)[tree.nodes[0].id]
    """
    found: dict[str, tuple[Reply[Plan], ...]] = {}
    for node, key in _path_keys(tree.nodes).items():
        replies: list[Reply[Plan]] = []
        while (reply := page.recall(f"plan/{key}/{len(replies)}", Reply[Plan])) is not None:
            replies.append(reply)
        if replies:
            found[node] = tuple(replies)
    return found


def diverged_nodes(nodes: Sequence[Node], page: Page) -> tuple[str, ...]:
    """Return the ids of nodes whose action returned something else when it was replayed."""
    return tuple(node for node, key in _path_keys(nodes).items() if f"diverged/{key}" in page)


def without_observations(tree: Tree) -> Tree:
    """Strip a tree for storage: its page already has the observations, and the seed its content.

    `with_observations` restores them.

    See docs/journal.md and docs/engine.md.
    """
    nodes = tuple(replace(node, outcome=NO_OUTCOME) for node in tree.nodes)
    seed = Seed(index=tree.seed.index, id=tree.seed.id, content="")
    return replace(tree, seed=seed, nodes=nodes)


def with_observations(tree: Tree, seed: Seed, page: Page) -> Tree:
    """Restore a tree that was stripped by `without_observations`.

    See docs/journal.md and docs/engine.md.

    :param page: the seed's page; a node without a record there is left unchanged.
    """
    keys = _path_keys(tree.nodes)
    nodes = list(tree.nodes)
    for index, node in enumerate(nodes):
        if node.parent is None:
            nodes[index] = replace(node, outcome=ActionOutcome(Observation((Text(seed.content),))))
        elif (step := page.recall(f"act/{keys[node.id]}", Node)) is not None:
            nodes[index] = replace(node, outcome=step.outcome)
    diverged = tree.diverged or diverged_nodes(nodes, page)
    return replace(tree, seed=seed, nodes=tuple(nodes), diverged=diverged)


def _path_keys(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the path key of each node by id; parents precede their children."""
    paths: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        paths[node.id] = () if node.parent is None else (*paths[node.parent], node.position)
    return {node: path_key(path) for node, path in paths.items()}
