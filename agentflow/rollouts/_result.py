"""Result of a task, and the records of the files."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from agentflow.runs import image_record
from agentflow.scoring import Scored
from agentflow.team import fixed_names
from agentflow.trace import Assessment, Blob, Episode, Failure, Seed, Task, Turn, Verdict, digest

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

    @property
    def answer(self) -> str:
        """The answer; empty if there is none."""
        return "" if self.episode is None else self.episode.answer

    @property
    def score(self) -> float:
        """Score; 0 for a failed task and for one that could not be judged."""
        return 0.0 if self.scored is None or self.failure is not None else self.scored.score

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Turns of the episode."""
        return () if self.episode is None else self.episode.turns

    @property
    def trust(self) -> float:
        """Confidence of the verifier, from 0 to 1; of two equal ones the shorter episode ranks higher."""
        if self.episode is None or self.episode.failure is not None or not self.answer:
            return 0.0
        said = next((turn.decision.assessment for turn in reversed(self.turns) if turn.decision), None)
        sure = _TRUST.get(said, 0.2) if said is not None else 0.5
        return sure - len(self.turns) / 10_000


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
    if task.metadata:
        record["metadata"] = task.metadata
    return record


def trajectory_record(result: TaskResult) -> dict[str, object]:
    """Return a line of `trajectories.jsonl`: nodes in the format of synthesis, and every model call."""
    task, episode = result.task, result.episode
    key = [task.index, task.id, task.question, result.sample]
    ids = [f"node_{digest([*key, number])}" for number in range(len(result.turns) + 1)]
    record: dict[str, object] = {
        "trajectory_id": f"traj_{digest(key)}",
        "task_id": task.id,
        "sample": result.sample,
        "seed_data": task.question,
        "total_depth": len(result.turns),
        "nodes": [
            _root(task, ids),
            *(_node(task, turn, place, ids) for place, turn in enumerate(result.turns, 1)),
        ],
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
    }


def trajectory_result(result: TaskResult) -> dict[str, object]:
    """Return a line of `results.jsonl` with `trajectory_only`."""
    return {
        "task_id": result.task.id,
        "sample": result.sample,
        "success": result.failure is None,
        "trajectory": trajectory_record(result),
    }


def _root(task: Task, ids: list[str]) -> dict[str, object]:
    root: dict[str, object] = {
        "node_id": ids[0],
        "observation": f"Starting point: {task.question}",
        "intent": "Understand the question",
        "action": None,
        "parent_id": None,
        "children_ids": ids[1:2],
        "depth": 0,
        "verdict": Verdict.NEW,
    }
    return root | _images(task.images)


def _node(task: Task, turn: Turn, place: int, ids: list[str]) -> dict[str, object]:
    action = turn.action
    node: dict[str, object] = {
        "node_id": ids[place],
        "observation": turn.result,
        "intent": turn.step.sub_goal,
        "action": None if action is None else {"tool": action.tool, "args": action.arguments},
        "parent_id": ids[place - 1],
        "children_ids": ids[place + 1 : place + 2],
        "depth": place,
        "verdict": Verdict.ERROR if turn.failed else Verdict.NEW,
        "step": turn.step,
        "decision": turn.decision,
    }
    if turn.reasoning:
        node["reasoning"] = turn.reasoning
    if turn.failure is not None:
        node["failure"] = turn.failure
    if turn.trouble:
        node["trouble"] = turn.trouble
    if action is not None and (fixed := fixed_names(action.arguments, task.kwargs)):
        node["fixed"] = fixed
    if turn.failed:
        # Context for its repair: no model is trained to make it.
        node["trainable"] = False
    return node | _images(turn.images)


def _images(images: Iterable[Blob]) -> dict[str, object]:
    found = [image_record(blob) for blob in images]
    return {"images": found} if found else {}


def _without_time(exchange: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in exchange.items() if name != "seconds" and value not in (None, "")}
