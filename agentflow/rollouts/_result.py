"""Result of a task, and the records of the files."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from agentflow.engine import fixed_names
from agentflow.runs import image_record
from agentflow.scoring import Scored, evidence_score
from agentflow.trace import (
    ActionOutcome,
    Assessment,
    Ending,
    Episode,
    Failure,
    Node,
    Observation,
    Seed,
    Task,
    Text,
    Tree,
    Turn,
    Verdict,
    digest,
)

_TRUST = {Assessment.COMPLETE: 1.0, Assessment.UNVERIFIED: 0.6, Assessment.AMBIGUOUS: 0.4}


class TaskResult(Struct, frozen=True, kw_only=True):
    """Result of a task, or of one of its samples."""

    task: Task
    """The task."""
    sample: int = 0
    """Number of the sample, from 0."""
    episode: Episode | None = None
    """Episode with the answer, or the last one; `None`: all tries crashed."""
    failure: Failure | None = None
    """Reason that there is no answer."""
    scored: Scored | None = None
    """Score of the answer; `None`: it was not scored."""
    tries: int = 1
    """Number of episodes."""
    value: float | UnsetType = UNSET
    """Estimate of the guide that chose between the paths of a branching task; unset: there is none."""
    paths: tuple["TaskResult", ...] | UnsetType = UNSET
    """Results of all paths of a branching task; this one has no episode of its own. Unset: there is one episode."""
    chosen: int | UnsetType = UNSET
    """Position of the path with the answer; unset: there is one episode."""

    @property
    def samples(self) -> tuple["TaskResult", ...]:
        """Results of all paths of a branching task, or this one."""
        return (self,) if self.paths is UNSET else self.paths

    @property
    def is_pruned(self) -> bool:
        """A search gave up this path of a branching task before it answered."""
        return self.episode is not None and self.episode.ending is Ending.PRUNED

    @property
    def drawn(self) -> int:
        """Number of equal episodes that it stands for."""
        return 1 if self.episode is None else self.episode.drawn

    @property
    def answer(self) -> str:
        """The answer; empty if there is none."""
        if self.paths is not UNSET:
            return self.paths[self.chosen or 0].answer
        return "" if self.episode is None else self.episode.answer

    @property
    def score(self) -> float:
        """Score; 0 for a failed task and for one that could not be judged."""
        return 0.0 if self.scored is None or self.failure is not None else self.scored.score

    @property
    def evidence(self) -> float | None:
        """Score of the documents that were read; `None` if the task names none that it needs, or no episode ended."""
        return None if self.episode is None else evidence_score(self.episode)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Turns of the episode."""
        return () if self.episode is None else self.episode.turns

    @property
    def trust(self) -> float:
        """Confidence of the verifier, from 0 to 1; of two equal ones the shorter episode ranks higher."""
        if self.episode is None or self.episode.failure is not None or not self.answer:
            return 0.0
        return confidence(self.turns) - len(self.turns) / 10_000


def confidence(turns: Sequence[Turn]) -> float:
    """Return how sure the verifier was of the last of these turns, from 0 to 1."""
    assessment = next((turn.decision.assessment for turn in reversed(turns) if turn.decision), None)
    return _TRUST.get(assessment, 0.2) if assessment is not None else 0.5


def task_of(seed: Seed) -> tuple[Task, int]:
    """Return the task of a seed, and the number of its sample. See docs/rollout.md."""
    return msgspec.convert(seed.kwargs["task"], Task), int(seed.kwargs["sample"])


def result_record(result: TaskResult) -> dict[str, object]:
    """Return a line of `results.jsonl`, without times: the same work gives the same line."""
    task, episode = result.task, result.episode
    record: dict[str, object] = {
        "task_id": task.id,
        "sample": result.sample,
        "question": task.question,
        "answer": result.answer,
        "references": task.references,
        "success": result.failure is None,
        "score": None if result.scored is None else result.score,
        "reason": "" if result.scored is None else result.scored.reason,
        "ending": None if episode is None else episode.ending,
        "turns": len(result.turns),
        "tool_calls": sum(turn.action is not None for turn in result.turns),
        "tool_errors": sum(turn.failed for turn in result.turns),
        "tries": result.tries,
        "calls": {} if episode is None else dict(sorted(episode.calls.items())),
        "usage": {} if episode is None else dict(sorted(episode.usage.items())),
    }
    if result.failure is not None:
        record["failure"] = result.failure
    if result.scored is not None and result.scored.failure is not None:
        record["not_judged"] = result.scored.failure
    if (evidence := result.evidence) is not None:
        record["evidence"] = evidence
    if task.metadata:
        record["metadata"] = task.metadata
    if episode is not None and episode.branches is not UNSET:
        record |= {"path": episode.path, "drawn": episode.drawn}
        if result.value is not UNSET:
            record["value"] = result.value
    return record


def episode_tree(result: TaskResult) -> Tree:
    """Return the turns of a result as a path: nodes with the ids and texts of `trajectories.jsonl`.

    See docs/rollout.md.
    """
    task = result.task
    key = [task.index, task.id, task.question, result.sample]
    ids = [f"node_{digest([*key, number])}" for number in range(len(result.turns) + 1)]
    seen = Observation((Text(f"Starting point: {task.question}"), *task.images))
    nodes = [Node(id=ids[0], intent="Understand the question", outcome=ActionOutcome(seen))]
    for depth, turn in enumerate(result.turns, 1):
        seen = Observation((Text(turn.result), *turn.images))
        nodes.append(
            Node(
                id=ids[depth],
                parent=ids[depth - 1],
                depth=depth,
                intent=turn.step.sub_goal,
                action=turn.action,
                outcome=ActionOutcome(seen, turn.failure, turn.trouble),
                verdict=Verdict.ERROR if turn.failed else Verdict.NEW,
            )
        )
    reasoning = {id: turn.reasoning for id, turn in zip(ids[1:], result.turns, strict=True) if turn.reasoning}
    seed = Seed(index=task.index, id=task.id, content=task.question, kwargs=task.kwargs)
    return Tree(id=f"traj_{digest(key)}", seed=seed, nodes=tuple(nodes), reasoning=reasoning)


def trajectory_record(result: TaskResult) -> dict[str, object]:
    """Return a line of `trajectories.jsonl`: nodes in the format of synthesis, and every model call."""
    task, episode, tree = result.task, result.episode, episode_tree(result)
    record: dict[str, object] = {
        "trajectory_id": tree.id,
        "task_id": task.id,
        "sample": result.sample,
        "seed_data": task.question,
        "total_depth": len(result.turns),
        "nodes": [_node_record(tree, *pair) for pair in zip(tree.nodes, (None, *result.turns), strict=True)],
        "answer": result.answer,
        "score": None if result.scored is None else result.score,
    }
    if result.failure is not None:
        record["failure"] = result.failure
    if episode is None:
        return record
    exchanges = [_without_time(exchange) for exchange in msgspec.to_builtins(episode.exchanges)]
    return record | {
        "agent": episode.agent,
        "ending": episode.ending,
        "analysis": episode.analysis,
        "solution": episode.solution,
        "exchanges": exchanges,
        "diverged": episode.diverged,
        **({} if episode.branches is UNSET else {"branches": episode.branches}),
    }


def trajectory_result(result: TaskResult) -> dict[str, object]:
    """Return a line of `results.jsonl` with `trajectory_only`."""
    return {
        "task_id": result.task.id,
        "sample": result.sample,
        "success": result.failure is None,
        "trajectory": trajectory_record(result),
    }


def _node_record(tree: Tree, node: Node, turn: Turn | None) -> dict[str, object]:
    action = node.action
    record: dict[str, object] = {
        "node_id": node.id,
        "observation": node.text,
        "intent": node.intent,
        "action": None if action is None else {"tool": action.tool, "args": action.arguments},
        "parent_id": node.parent,
        "children_ids": list(tree.children[node.id]),
        "depth": node.depth,
        "verdict": node.verdict,
    }
    if turn is not None:
        record |= {"step": turn.step, "decision": turn.decision}
    optional: dict[str, object] = {
        "reasoning": tree.reasoning.get(node.id),
        "failure": node.failure,
        "trouble": node.outcome.trouble,
        "fixed": [] if action is None else fixed_names(action.arguments, tree.seed.kwargs),
        # Context for its repair: no model is trained to make it.
        "trainable": None if node.verdict is Verdict.NEW else False,
        "images": [image_record(blob) for blob in node.images],
    }
    return record | {name: value for name, value in optional.items() if value or value is False}


def _without_time(exchange: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in exchange.items() if name != "seconds" and value not in (None, "")}
