"""Paths without wandering: the shortest sequence of a tree's actions that yields some observations."""

from collections.abc import Collection, Iterator, Sequence

from agentflow._typeguards import is_list
from agentflow.trajectory import Node, Tree, Verdict

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
    while waiting:
        node = waiting.pop()
        if node.id in needed or node.action is None:
            continue
        needed.add(node.id)
        before = _prerequisites(tree, node, {*wanted, *needed})
        waiting += [prerequisite for prerequisite in before if prerequisite.id not in needed]
    return (tree.nodes[0].id, *sorted(needed, key=positions.__getitem__))


def _prerequisites(tree: Tree, node: Node, taken: Collection[str]) -> Iterator[Node]:
    """Yield what a call rests on; one of several that show the same name, if possible one that is needed anyway."""
    ancestors = tree.path(node.id)[:-1]
    if not node.observation.sources and node.action is not None:
        # Without sources, the call may depend on files, variables or pages of earlier calls.
        family = node.action.tool.partition("_")[0]
        yield from (
            each
            for each in ancestors
            if each.action is not None and each.action.tool.startswith(f"{family}_")
        )
    for name in _names(node):
        showing = [other for other in ancestors if other.action is not None and _shows(other, name)]
        if showing:
            yield next((other for other in showing if other.id in taken), showing[0])


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
