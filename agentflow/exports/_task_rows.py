"""Rows of tasks: verified tasks and pairs of a synthesis, and the tasks of a rollout."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from agentflow.exports._conversations import ExportContext, no_answer_reason, wrong_reason
from agentflow.exports._rows import Dropped, DropReason, ExportRow
from agentflow.inspection import AnswerRecord, SeedRecord
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


def verl_rl(trees: Sequence[SeedRecord], export: ExportContext) -> Iterator[ExportRow | Dropped]:
    """Yield `prompt`, `reward_model` and `extra_info` with `index` and `tools_kwargs`."""
    for group, task in _tasks(trees, export.done):
        if isinstance(task, Dropped):
            yield task
            continue
        names = [tool.name for tool in export.tools] or task.tools
        arguments = {tool: {"create_kwargs": task.kwargs} for tool in names} if task.kwargs else {}
        values: dict[str, Any] = {
            "data_source": "agentflow",
            "prompt": task.prompt,
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": next(iter(task.references), "")},
            "extra_info": {
                "index": next(export.numbers),
                "id": task.id,
                "answers": list(task.references),
                "need_tools_kwargs": bool(arguments),
                "tools_kwargs": arguments,
                **_verified(task),
            },
        }
        yield ExportRow("train", group, values)


def trl_grpo(trees: Sequence[SeedRecord], export: ExportContext) -> Iterator[ExportRow | Dropped]:
    """Yield `prompt`, and `references` and `kwargs` for rewards and the environment."""
    for group, task in _tasks(trees, export.done):
        if isinstance(task, Dropped):
            yield task
            continue
        values: dict[str, Any] = {
            "id": task.id,
            "prompt": task.prompt,
            "references": list(task.references),
            "kwargs": dict(task.kwargs),
            **_verified(task),
        }
        yield ExportRow("train", group, values)


def _tasks(trees: Sequence[SeedRecord], done: set[str]) -> Iterator[tuple[str, _TaskRow | Dropped]]:
    """Yield the verified tasks or accepted pairs of trees, or the task of a group of episodes, once."""
    for tree in trees:
        for task in tree.surplus_tasks:
            yield tree.group, Dropped(tree.group, task, DropReason.SURPLUS)
        for task in tree.tasks:
            references = (task.answer,) if task.answer else ()
            row = _TaskRow(task.id, task.instruction, references, task.setup.kwargs, task.setup.tools, task)
            yield tree.group, row
        if tree.tasks:
            continue  # its pairs are those of its tasks
        if not tree.answers and not tree.surplus_tasks:
            yield tree.group, Dropped(tree.group, tree.id, no_answer_reason(tree))
        for answer in tree.answers:
            if (reason := _no_task(tree, answer)) is not None:
                yield tree.group, Dropped(tree.group, answer.id, reason)
            elif tree.is_episode and tree.group in done:
                yield tree.group, Dropped(tree.group, answer.id, DropReason.SAME_TASK)
            else:
                done |= {tree.group} if tree.is_episode else set()
                kwargs: Mapping[str, Any] = tree.facts.get("kwargs") or {}
                id = tree.group if tree.is_episode else answer.id
                yield tree.group, _TaskRow(id, answer.question, answer.references, kwargs)


def _verified(task: _TaskRow) -> dict[str, Any]:
    return {} if task.verified is None else {"task": msgspec.to_builtins(task.verified)}


def _no_task(tree: SeedRecord, answer: AnswerRecord) -> DropReason | None:
    """Return the reason that an answer stands for no task."""
    if not any(answer.references):
        return DropReason.NO_REFERENCE
    return None if tree.is_episode or answer.right else wrong_reason(tree, answer)
