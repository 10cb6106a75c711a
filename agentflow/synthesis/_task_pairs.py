"""Question-answer pairs of tasks whose solution a tree ran: the result is the answer, on the path to the node that computed it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._seed_result import CitedSpan, SeedResult, Trajectory
from agentflow.synthesis._selection import join_paths, select
from agentflow.tasks import VerifiableTask
from agentflow.trace import Node, Seed, Tree

_MAX_QUOTE: Final = 2_000


class TaskPair(NamedTuple):
    """A task as a question-answer pair."""

    id: str
    """Id of the pair."""
    question: str
    """Question, without advice on the form of the answer."""
    answer: str
    """Result of the solution."""
    path: Trajectory
    """Path to the node that ran its solution."""


def pair_of_task(task: VerifiableTask, paths: Sequence[Trajectory]) -> TaskPair | None:
    """Return a task as a pair; `None` if no node of the tree ran its solution. See docs/exports.md."""
    path = _path_of(task, paths) if _is_pair(task) else None
    if path is None:
        return None
    answer = task.answer if task.metadata.get("answer") else _rows(task.verifier[0].expected)
    return TaskPair(f"{path.id}_{task.id}", str(task.metadata["question"]), answer, path)


def with_paths(result: SeedResult, tree: Tree, config: SynthesisConfig) -> SeedResult:
    """Return the tasks of a tree with the paths of those that are pairs: selected ones, and the paths to other solutions.

    :raises ConfigurationError: if a user's strategy can't be used.
    """
    solved = [task for task in result.tasks if _is_pair(task)]
    if not solved:
        return result
    selection = select(tree, config)
    chosen = [Trajectory.of(tree, path, score) for path, score in selection.chosen]
    for task in solved:
        if _path_of(task, chosen) is None:
            path, score = join_paths(tree, task.sources, config.max_depth)
            chosen.append(Trajectory.of(tree, path, score, joined=True))
    return replace(result, trajectories=tuple(chosen), left_out=selection.left_out)


def task_pair_record(
    seed: Seed, task: VerifiableTask, tree: Tree, paths: Sequence[Trajectory], config: SynthesisConfig
) -> dict[str, object] | None:
    """Return the line of `synthesized_qa.jsonl` of a task; `None` if no node of the tree ran its solution."""
    pair = pair_of_task(task, paths)
    if pair is None:
        return None
    return {
        "question": pair.question,
        "answer": pair.answer,
        "trajectory_id": pair.path.id,
        "source_id": seed.id,
        "qa_id": pair.id,
        "reasoning_steps": _steps(task, tree.by_id[task.sources[0]]),
        "metadata": {
            "engine": config.model_for("generator").name,
            "kind": task.kind,
            "grounding": "executed",
            "solution": _solution(task),
            "task_id": task.id,
            "agreed": task.metadata["agreed"],
            "samples": task.metadata["samples"],
            "score": pair.path.score.total,
            "trajectory_depth": len(pair.path.nodes) - 1,
        },
    }


def _is_pair(task: VerifiableTask) -> bool:
    return bool(task.sources) and "question" in task.metadata


def _path_of(task: VerifiableTask, paths: Sequence[Trajectory]) -> Trajectory | None:
    return next((path for path in paths if set(task.sources) <= set(path.nodes)), None)


def _steps(task: VerifiableTask, node: Node) -> list[dict[str, object]]:
    """Return the steps: what is needed, its solution, its result."""
    assert node.action is not None  # sources are actions
    text = node.observation.text[:_MAX_QUOTE]
    cited = CitedSpan(node_id=node.id, quote=text, start=0, end=len(text))
    statements = (
        f"The question needs a result of the tool {node.action.tool}.",
        f"It is computed by: {_solution(task)}",
        "Its result is the answer.",
    )
    return [{"step": step, "citations": [cited] if step is statements[-1] else []} for step in statements]


def _solution(task: VerifiableTask) -> str:
    """Return the query or the program."""
    return task.gold.answer or "".join(str(action.arguments.get("code", "")) for action in task.gold.actions)


def _rows(rows: Sequence[Sequence[object]]) -> str:
    """Return rows in one line: cells separated by commas, rows by semicolons."""
    return "; ".join(", ".join("" if cell is None else str(cell) for cell in row) for row in rows)
