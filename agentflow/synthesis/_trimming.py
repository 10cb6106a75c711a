"""Paths without wandering: the shortest sequence of a tree's actions that yields some observations."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from agentflow._typeguards import is_list
from agentflow.trace import Node, Tree, Verdict

_MIN_NAME = 3
"""Length from which an argument can name something that another observation has shown."""


def trimmed_path(tree: Tree, wanted: Collection[str]) -> tuple[str, ...]:
    """Return the nodes of the tree that yield the observations of others, with their prerequisites, the root first.

    A search that showed the name of a document precedes the call that reads it. A tool with state needs what was done before
    on its branch.

    :param wanted: ids of nodes.
    """
    positions = {node.id: position for position, node in enumerate(tree.nodes)}
    needed = set[str]()
    waiting = [node for node in tree.nodes if node.id in wanted]
    unnamed: list[list[Node]] = []
    while waiting or unnamed:
        while waiting:
            node = waiting.pop()
            if node.id in needed or node.action is None:
                continue
            needed.add(node.id)
            waiting += _earlier_calls(tree, node)
            unnamed += _showing(tree, node)
        unnamed = [showing for showing in unnamed if not any(each.id in needed for each in showing)]
        if unnamed:
            # One call may show several names; of equal ones, the first of the own branch.
            counts = Counter(each.id for showing in unnamed for each in showing)
            waiting.append(max(unnamed[0], key=lambda each: counts[each.id]))
    return (tree.nodes[0].id, *sorted(needed, key=positions.__getitem__))


def _earlier_calls(tree: Tree, node: Node) -> Iterator[Node]:
    """Yield the calls on whose files, variables or pages a call without sources may depend."""
    if node.observation.sources or node.action is None:
        return
    family = node.action.tool.partition("_")[0]
    for each in tree.path(node.id)[:-1]:
        if each.action is not None and each.action.tool.startswith(f"{family}_"):
            yield each


def _showing(tree: Tree, node: Node) -> Iterator[list[Node]]:
    """Yield, for each name in the arguments of a call, the earlier calls that show it; those of its branch come first."""
    branch = tree.path(node.id)[:-1]
    others = tree.nodes[: tree.nodes.index(node)] if node.observation.sources else ()
    elsewhere = [each for each in others if each.observation.sources and each not in branch]
    for name in _names(node):
        showing = [each for each in (*branch, *elsewhere) if each.action is not None and _shows(each, name)]
        if showing:
            yield showing


def _names(node: Node) -> Iterator[str]:
    """Yield the arguments of a call that may name something, other than words to search for."""
    for name, value in (node.action.arguments if node.action is not None else {}).items():
        values: Sequence[object] = value if is_list(value) else (value,)
        if name not in ("query", "queries", "q", "goal"):
            yield from (each for each in values if isinstance(each, str) and len(each) >= _MIN_NAME)


def _shows(node: Node, name: str) -> bool:
    if node.verdict is Verdict.ERROR:
        return False
    return (
        any(source.document == name for source in node.observation.sources) or name in node.observation.text
    )
