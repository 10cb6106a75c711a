"""Trees become groups: every leaf is an episode of its task."""

from collections.abc import Mapping
from math import prod

from agentflow.learner._samples import Sample
from agentflow.trajectory import Node, Plan, Reply, Tokens, Tree

__all__ = ["samples_of_tree"]


def samples_of_tree(
    tree: Tree,
    plans: Mapping[str, tuple[Reply[Plan], ...]],
    rewards: Mapping[str, float],
    *,
    group: str,
    temperature: float,
    version: int = 0,
) -> list[Sample]:
    """The leaves of a tree as the episodes of a group; those without a reward are left out.

    A sample's calls are those of the planner on the way to its leaf, and the last one where it brought no child. A call
    whose proposals lead to several leaves stands in the sample of each of them, with the same tokens: its gradient is
    the sum over its leaves, that is their number times their mean advantage. What was proposed several times at one node
    was done once, and every leaf below it counts as often.

    :param plans: what the planner said at each node.
    :param rewards: what each leaf was worth, by its id.
    :param version: the weights that it began with; where the engine says which weights drew a token, that counts.
    """
    samples: list[Sample] = []
    for leaf in tree.leaves():
        if leaf.id not in rewards:
            continue
        path = tree.path(leaf.id)
        calls = tuple(tokens for node in path for reply in plans.get(node.id, ()) for tokens in _drawn(reply))
        oldest = min((int(call.version) for call in calls if call.version.isdigit()), default=version)
        samples.append(
            Sample(
                task=group,
                id=f"{group}/{leaf.id}",
                reward=rewards[leaf.id],
                calls=calls,
                temperature=temperature,
                multiplicity=prod(tree.drawn.get(node.id, 1) for node in path),
                details={
                    "turns": float(leaf.depth),
                    "tool_calls": float(leaf.depth),
                    "tool_errors": float(sum(_failed(node) for node in path)),
                    "version": float(max(oldest, version)),
                    "sampled_tokens": float(sum(len(call.sampled) for call in calls)),
                },
            )
        )
    return samples


def _drawn(reply: Reply[Plan]) -> tuple[Tokens, ...]:
    """What was sampled for a reply, also what could not be used."""
    return reply.unusable if reply.tokens is None else (*reply.unusable, reply.tokens)


def _failed(node: Node) -> bool:
    return node.failure is not None
