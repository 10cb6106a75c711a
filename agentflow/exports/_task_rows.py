"""Rows of tasks for reinforcement learning: questions with reference answers, without paths."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from agentflow.exports._records import ExportAnswer, ExportTree
from agentflow.exports._rows import Dropped, DropReason, ExportRow
from agentflow.models import ToolSpec

VERL_RL_COLUMNS: Final = {
    "data_source": "string",
    "prompt": "[message]",
    "ability": "string",
    "reward_model": "reward",
    "extra_info": "task",
}
"""Columns of `verl-rl`."""

GRPO_COLUMNS: Final = {
    "id": "string",
    "prompt": "[json]",
    "references": "[string]",
    "kwargs": "json",
}
"""Columns of `trl-grpo`."""


class TaskFormats:
    """Rows of `verl-rl` and `trl-grpo`: the pairs of a synthesis, or each task of a rollout once."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        """Begin without rows.

        :param tools: tools of the run; arguments that a task fixes are given to each.
        """
        self._tools = [tool.name for tool in tools]
        self._numbers = count()

    def verl_rl(self, trees: Sequence[ExportTree]) -> Iterator[ExportRow | Dropped]:
        """Yield `prompt`, `reward_model` and `extra_info` with `index` and `tools_kwargs`."""
        for one in _tasks(trees):
            if isinstance(one, Dropped):
                yield one
                continue
            tree, answer, kwargs = one
            given = {tool: {"create_kwargs": kwargs} for tool in self._tools} if kwargs else {}
            values: dict[str, Any] = {
                "data_source": "agentflow",
                "prompt": [{"role": "user", "content": answer.question}],
                "ability": "agent",
                "reward_model": {"style": "rule", "ground_truth": answer.references[0]},
                "extra_info": {
                    "index": next(self._numbers),
                    "id": _task_id(tree, answer),
                    "answers": list(answer.references),
                    "need_tools_kwargs": bool(given),
                    "tools_kwargs": given,
                },
            }
            yield ExportRow("train", tree.group, values)

    def trl_grpo(self, trees: Sequence[ExportTree]) -> Iterator[ExportRow | Dropped]:
        """Yield `prompt`, and `references` and `kwargs` for rewards and the environment."""
        for one in _tasks(trees):
            if isinstance(one, Dropped):
                yield one
                continue
            tree, answer, kwargs = one
            values: dict[str, Any] = {
                "id": _task_id(tree, answer),
                "prompt": [{"role": "user", "content": answer.question}],
                "references": list(answer.references),
                "kwargs": dict(kwargs),
            }
            yield ExportRow("train", tree.group, values)


def _task_id(tree: ExportTree, answer: ExportAnswer) -> str:
    return tree.group if tree.is_episode else answer.id


def _tasks(
    trees: Sequence[ExportTree],
) -> Iterator[tuple[ExportTree, ExportAnswer, Mapping[str, Any]] | Dropped]:
    """Yield each accepted pair, or the task of a group of episodes, once, with the arguments that it fixes."""
    done = False
    for tree in trees:
        if not tree.answers:
            yield Dropped(tree.group, tree.id, DropReason.NO_QUESTION)
        kwargs: Mapping[str, Any] = tree.facts.get("kwargs") or {}
        for answer in tree.answers:
            if not answer.references or not any(answer.references):
                yield Dropped(tree.group, answer.id, DropReason.NO_REFERENCE)
            elif not tree.is_episode and not answer.right:
                yield Dropped(tree.group, answer.id, DropReason.NOT_CORRECT)
            elif tree.is_episode and done:
                yield Dropped(tree.group, answer.id, DropReason.SAME_TASK)
            else:
                done = tree.is_episode
                yield tree, answer, kwargs
