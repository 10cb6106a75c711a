"""Storing a tree without repeating what its page of the journal already has: the observations."""

from msgspec.structs import replace

from agentflow.growth._acting import Acted
from agentflow.growth._node_path import spots_of
from agentflow.journal import Page
from agentflow.trajectory import Observation, Seed, Text, Tree

__all__ = ["with_observations", "without_observations"]


def without_observations(tree: Tree) -> Tree:
    """Return a tree for storage, without its seed's content and without what its page has under `act/`."""
    nodes = tuple(replace(node, observation=Observation(), failure=None) for node in tree.nodes)
    seed = Seed(index=tree.seed.index, id=tree.seed.id, content="")
    return replace(tree, seed=seed, nodes=nodes)


def with_observations(tree: Tree, seed: Seed, page: Page) -> Tree:
    """Return the whole tree of a stored one.

    :param page: the seed's page; a node without an entry there stays as it is.
    """
    paths = spots_of(tree.nodes)
    nodes = list(tree.nodes)
    for index, node in enumerate(nodes):
        if node.parent is None:
            nodes[index] = replace(node, observation=Observation((Text(seed.content),)))
        elif (acted := page.recall(f"act/{paths[node.id]}", Acted)) is not None:
            outcome = acted.outcome
            nodes[index] = replace(node, observation=outcome.observation, failure=outcome.failure)
    return replace(tree, seed=seed, nodes=tuple(nodes))
