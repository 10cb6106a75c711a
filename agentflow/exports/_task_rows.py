"""Rows of tasks: verified tasks and pairs of a synthesis, and the tasks of a rollout."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from agentflow.exports._conversations import no_answer_reason, wrong_reason
from agentflow.exports._records import Dropped, DropReason, ExportAnswer, ExportRow, ExportTree
from agentflow.models import ToolSpec
from agentflow.tasks import VerifiableTask
from agentflow.text import escape_special_tokens

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


class _TaskRow(NamedTuple):
    """Task of one row."""

    id: str
    text: str
    references: tuple[str, ...]
    kwargs: Mapping[str, Any]
    """Arguments of tools that it fixes."""
    tools: tuple[str, ...] = ()
    """Its tools, if it names them."""
    verified: VerifiableTask | None = None

    @property
    def prompt(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": escape_special_tokens(self.text)}]


class TaskFormats:
    """Rows of `verl-rl` and `trl-grpo`: the verified tasks or pairs of a synthesis, or each task of a rollout once."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        """Begin without rows.

        :param tools: tools of the run; arguments that a task fixes are given to each.
        """
        self._tools = [tool.name for tool in tools]
        self._numbers = count()
        self._done = set[str]()

    def verl_rl(self, trees: Sequence[ExportTree]) -> Iterator[ExportRow | Dropped]:
        """Yield `prompt`, `reward_model` and `extra_info` with `index` and `tools_kwargs`."""
        for group, one in self._tasks(trees):
            if isinstance(one, Dropped):
                yield one
                continue
            names = self._tools or one.tools
            given = {tool: {"create_kwargs": one.kwargs} for tool in names} if one.kwargs else {}
            values: dict[str, Any] = {
                "data_source": "agentflow",
                "prompt": one.prompt,
                "ability": "agent",
                "reward_model": {"style": "rule", "ground_truth": next(iter(one.references), "")},
                "extra_info": {
                    "index": next(self._numbers),
                    "id": one.id,
                    "answers": list(one.references),
                    "need_tools_kwargs": bool(given),
                    "tools_kwargs": given,
                    **_verified(one),
                },
            }
            yield ExportRow("train", group, values)

    def trl_grpo(self, trees: Sequence[ExportTree]) -> Iterator[ExportRow | Dropped]:
        """Yield `prompt`, and `references` and `kwargs` for rewards and the environment."""
        for group, one in self._tasks(trees):
            if isinstance(one, Dropped):
                yield one
                continue
            values: dict[str, Any] = {
                "id": one.id,
                "prompt": one.prompt,
                "references": list(one.references),
                "kwargs": dict(one.kwargs),
                **_verified(one),
            }
            yield ExportRow("train", group, values)

    def _tasks(self, trees: Sequence[ExportTree]) -> Iterator[tuple[str, _TaskRow | Dropped]]:
        """Yield the verified tasks or accepted pairs of trees, or the task of a group of episodes, once."""
        for tree in trees:
            for task in tree.surplus_tasks:
                yield tree.group, Dropped(tree.group, task, DropReason.SURPLUS)
            for task in tree.tasks:
                known = (task.answer,) if task.answer else ()
                row = _TaskRow(task.id, task.instruction, known, task.setup.kwargs, task.setup.tools, task)
                yield tree.group, row
            if tree.tasks:
                continue  # its pairs are those of its tasks
            if not tree.answers and not tree.surplus_tasks:
                yield tree.group, Dropped(tree.group, tree.id, no_answer_reason(tree))
            for answer in tree.answers:
                if (reason := _no_task(tree, answer)) is not None:
                    yield tree.group, Dropped(tree.group, answer.id, reason)
                elif tree.is_episode and tree.group in self._done:
                    yield tree.group, Dropped(tree.group, answer.id, DropReason.SAME_TASK)
                else:
                    self._done |= {tree.group} if tree.is_episode else set()
                    kwargs: Mapping[str, Any] = tree.facts.get("kwargs") or {}
                    id = tree.group if tree.is_episode else answer.id
                    yield tree.group, _TaskRow(id, answer.question, answer.references, kwargs)


def _verified(one: _TaskRow) -> dict[str, Any]:
    return {} if one.verified is None else {"task": msgspec.to_builtins(one.verified)}


def _no_task(tree: ExportTree, answer: ExportAnswer) -> DropReason | None:
    """Return the reason that an answer stands for no task."""
    if not any(answer.references):
        return DropReason.NO_REFERENCE
    return None if tree.is_episode or answer.right else wrong_reason(tree, answer)
