"""Records of the files: the documented fields, then ours."""

from agentflow.synthesis._seed_result import Pair, Trajectory
from agentflow.trajectory import Node, Seed, Tree


def pair_record(seed: Seed, pair: Pair, trajectory: Trajectory) -> dict[str, object]:
    """Return a line of `synthesized_qa.jsonl`."""
    return {
        "question": pair.question,
        "answer": pair.answer,
        "trajectory_id": pair.trajectory_id,
        "source_id": seed.id,
        "qa_id": pair.id,
        "reasoning_steps": [
            {"step": step.step, "citations": step.citations} for step in pair.reasoning_steps
        ],
        "metadata": {
            "engine": pair.engine,
            "score": trajectory.score.total,
            "tries": pair.tries,
            "grounding": pair.grounding,
            "hops": pair.hops,
            "trajectory_depth": len(trajectory.nodes) - 1,
            "answerable_without_path": pair.answerable,
        },
    }


def trajectory_record(tree: Tree, trajectory: Trajectory) -> dict[str, object]:
    """Return a line of `trajectories.jsonl`."""
    return {
        "trajectory_id": trajectory.id,
        "source_id": tree.seed.id,
        "seed_data": tree.seed.content,
        "total_depth": len(trajectory.nodes) - 1,
        "nodes": [_node(tree, tree.by_id[own]) for own in trajectory.nodes],
        "tree_id": tree.id,
        "score": trajectory.score,
    }


def tree_record(tree: Tree) -> dict[str, object]:
    """Return a line of `trees.jsonl`."""
    return {
        "tree_id": tree.id,
        "source_id": tree.seed.id,
        "seed_data": tree.seed.content,
        "seed_kwargs": tree.seed.kwargs,
        "nodes": [_node(tree, node) for node in tree.nodes],
        "stalled": tree.stalled,
        "duplicates": tree.duplicates,
    }


def _node(tree: Tree, node: Node) -> dict[str, object]:
    action = node.action
    record: dict[str, object] = {
        "node_id": node.id,
        "observation": f"Starting point: {tree.seed.content}" if action is None else node.observation.text,
        "intent": "Initialize exploration" if action is None else node.intent,
        "action": None if action is None else {"tool": action.tool, "args": action.arguments},
        "parent_id": node.parent,
        "children_ids": tree.children[node.id],
        "depth": node.depth,
        "verdict": node.verdict,
        "reason": node.reason,
        "isolation": node.isolation,
    }
    if node.failure is not None:
        record["failure"] = node.failure
    if node.observation.blobs:
        record["images"] = [{"hash": blob.hash, "mime": blob.mime} for blob in node.observation.blobs]
    if node.id in tree.diverged:
        record["diverged"] = True
    return record
