"""Requests for verified tasks, rendered as messages."""

from collections.abc import Iterable

from agentflow.models import Message, TextPart
from agentflow.team._rendering import bullets, cut, escape_marks, json_text, prompt, system, user
from agentflow.trajectory import (
    IndependentSolutionRequest,
    InstructionRequest,
    SolutionsRequest,
    TaskColumn,
    TaskTable,
)

_MAX_TEXT_CHARS = 6_000
"""Maximum characters of a result or of a description of an environment."""
_MAX_SAMPLE_CHARS = 160
"""Maximum characters of one sample row."""


def solutions_messages(request: SolutionsRequest) -> tuple[Message, ...]:
    """Ask for queries or programs."""
    name = "generator_task_solutions"
    head = prompt(
        name,
        "system",
        language=request.language,
        guidance=prompt(name, request.kind),
        seed_description=request.seed_description,
        tips=request.tips,
    )
    now = prompt(
        name,
        "now",
        seed=escape_marks(request.seed),
        tables=table_list(request.tables),
        known=bullets(escape_marks(one) for one in request.known),
        count=request.count,
    )
    return (system(head), user(now))


def instruction_messages(request: InstructionRequest) -> tuple[Message, ...]:
    """Ask for the instruction that a solution answers; after a rejection, for another one."""
    name = "generator_task_instruction"
    examples = "\n\n".join(f"Question: {each.question}\nAnswer: {each.answer}" for each in request.examples)
    guidance = prompt(name, request.kind)
    head = prompt(name, "system", guidance=guidance, tips=request.tips, examples=examples)
    now = prompt(
        name,
        "now",
        seed=escape_marks(request.seed),
        tables=table_list(request.tables),
        environment=escape_marks(cut(request.environment, _MAX_TEXT_CHARS)),
        language=request.language or "actions",
        solution=escape_marks(request.solution),
        result=escape_marks(cut(request.result, _MAX_TEXT_CHARS)),
    )
    messages = [system(head), user(now)]
    for instruction, reason in request.rejected:
        messages.append(Message("assistant", (TextPart(json_text({"instruction": instruction})),)))
        messages.append(user(prompt(name, "rejected", reason=reason)))
    return tuple(messages)


def independent_messages(request: IndependentSolutionRequest) -> tuple[Message, ...]:
    """Ask for a solution of an instruction, without the one that it was written from."""
    name = "generator_task_attempt"
    head = prompt(name, "system", language=request.language, guidance=prompt(name, request.kind))
    now = prompt(
        name,
        "now",
        tables=table_list(request.tables),
        instruction=escape_marks(request.instruction),
        sample=request.sample if request.sample > 1 else "",
    )
    return (system(head), user(now))


def table_list(tables: Iterable[TaskTable]) -> str:
    """Describe tables, each with its columns, keys, and sample rows."""
    return escape_marks("\n\n".join(map(_table, tables)))


def _table(table: TaskTable) -> str:
    rows = "" if table.rows is None else f" ({table.rows} rows)"
    columns = "\n".join(f"  {_column(column, table.key)}" for column in table.columns)
    sample = "\n".join(f"  {_row(row)}" for row in table.sample)
    return f"{table.name}{rows}\n{columns}" + (f"\n  sample rows:\n{sample}" if sample else "")


def _column(column: TaskColumn, key: tuple[str, ...]) -> str:
    notes = [column.type, *(["primary key"] if column.name in key else [])]
    return f"{column.name} {', '.join(filter(None, notes))}" + (
        f" -> {column.refers}" if column.refers else ""
    )


def _row(row: tuple[object, ...]) -> str:
    text = json_text(row)
    return text if len(text) <= _MAX_SAMPLE_CHARS else f"{text[:_MAX_SAMPLE_CHARS]} …"
