"""Nodes of the files of a synthesis."""

from typing import Any

from msgspec import Struct

from agentflow.runs import image_record
from agentflow.team import fixed_names
from agentflow.trace import Failure, Isolation, Node, SourceSpan, Tree, Verdict


class TrajectoryNode(Struct, frozen=True, omit_defaults=True):
    """A node in `trajectories.jsonl` and `trees.jsonl`: an observation, and the action that led to it.

    The first seven fields are those of files of other systems, which have no others.

    Example::

        record = json.loads(line)  # a line of trajectories.jsonl
        nodes = msgspec.convert(record["nodes"], list[TrajectoryNode])
    """

    node_id: str
    """Its id."""
    observation: str
    """Text that was seen; of a root, the seed."""
    intent: str
    """Reason for the action."""
    action: dict[str, Any] | None
    """`tool` and `args`; `None` for a root."""
    parent_id: str | None
    """Id of the previous node; `None` for a root."""
    children_ids: list[str]
    """Ids of the next nodes."""
    depth: int
    """Number of actions from the root."""
    verdict: Verdict | None = None
    """Judgement of the observation."""
    reason: str | None = None
    """Reason of the judgement."""
    isolation: Isolation | None = None
    """Sandbox of the action."""
    failure: Failure | None = None
    """Failure of the action."""
    images: list[dict[str, str]] | None = None
    """`hash`, `mime` and `file` of each image that was seen; the file is relative to that of the node."""
    sources: list[SourceSpan] | None = None
    """Documents that the observation shows, each with its span of the text."""
    diverged: bool = False
    """Repeating the path to this node gave another observation."""
    reasoning: str = ""
    """Reasoning of the planner's model about the next actions."""
    trainable: bool = True
    """False for an action that failed or gave nothing new: it is context for its repair, and no model is trained to make it."""
    fixed: list[str] | None = None
    """Names of the arguments that the seed fixed: no model wrote them."""

    @classmethod
    def of(cls, tree: Tree, node: Node) -> "TrajectoryNode":
        """Return the record of a node."""
        action = node.action
        fixed = [] if action is None else fixed_names(action.arguments, tree.seed.kwargs)
        images = [image_record(blob) for blob in node.observation.blobs]
        return cls(
            node_id=node.id,
            observation=f"Starting point: {tree.seed.content}" if action is None else node.observation.text,
            intent="Initialize exploration" if action is None else node.intent,
            action=None if action is None else {"tool": action.tool, "args": action.arguments},
            parent_id=node.parent,
            children_ids=list(tree.children[node.id]),
            depth=node.depth,
            verdict=node.verdict,
            reason=node.reason,
            isolation=node.isolation,
            failure=node.failure,
            images=images or None,
            sources=list(node.observation.sources) or None,
            diverged=node.id in tree.diverged,
            reasoning=tree.reasoning.get(node.id, ""),
            trainable=action is None or node.verdict is Verdict.NEW,
            fixed=fixed or None,
        )
