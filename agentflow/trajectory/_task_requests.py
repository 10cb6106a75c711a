"""Requests for verified tasks: solutions, instructions, and independent attempts."""

from typing import Any

from msgspec import Struct

from agentflow.trajectory._roles import Example, Request


class TaskColumn(Struct, frozen=True):
    """Column of a table."""

    name: str
    """Name of the column."""
    type: str
    """Its type, as the database or the file declares it."""
    refers: str = ""
    """`TABLE.COLUMN` that its values refer to; empty if it is no foreign key."""


class TaskTable(Struct, frozen=True, kw_only=True):
    """Table of a database or a file, as shown to the roles."""

    name: str
    """Name of the table or path of the file."""
    columns: tuple[TaskColumn, ...]
    """Its columns."""
    key: tuple[str, ...] = ()
    """Columns of the primary key."""
    rows: int | None = None
    """Number of rows, if known."""
    sample: tuple[tuple[Any, ...], ...] = ()
    """Sample rows."""


class ProposedSolutions(Struct, frozen=True):
    """Solutions from which tasks are made."""

    solutions: tuple[str, ...]
    """Queries or programs, each independent of the others."""


class SolutionsRequest(Request[ProposedSolutions], frozen=True, kw_only=True):
    """Ask the generator for queries or programs worth a question, before there is a question."""

    kind: str
    """Kind of the tasks, such as `text2sql`."""
    language: str
    """Language of a solution, such as `SQL (sqlite)`."""
    seed: str
    """The subject that was explored."""
    seed_description: str = ""
    """Description of the seeds of this run."""
    tips: str = ""
    """The user's guidance for questions."""
    tables: tuple[TaskTable, ...]
    """The tables."""
    known: tuple[str, ...] = ()
    """Solutions that are already used, or failed."""
    count: int
    """Number of solutions wanted."""


class TaskInstruction(Struct, frozen=True):
    """Instruction written from a solution."""

    instruction: str
    """The question or instruction, understandable on its own."""
    ordered: bool = False
    """It asks for rows in a certain order."""


class InstructionRequest(Request[TaskInstruction], frozen=True, kw_only=True):
    """Ask the generator for the question that a solution answers."""

    kind: str
    """Kind of the task, such as `text2sql`."""
    language: str
    """Language of the solution; empty for a list of actions."""
    seed: str
    """The subject that was explored."""
    tips: str = ""
    """The user's guidance for questions."""
    examples: tuple[Example, ...] = ()
    """Examples of the wanted style."""
    tables: tuple[TaskTable, ...] = ()
    """The tables, if there are any."""
    environment: str = ""
    """Description of the initial state, if there are no tables."""
    solution: str
    """The solution."""
    result: str
    """Result of the solution."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Earlier instructions, each with the reason of its rejection."""


class IndependentSolution(Struct, frozen=True):
    """Solution written from the instruction alone."""

    solution: str
    """The query or program; empty if the instruction can't be answered."""


class IndependentSolutionRequest(Request[IndependentSolution], frozen=True, kw_only=True):
    """Ask for a solution of an instruction, by a role that sees neither the solution nor its result."""

    kind: str
    """Kind of the task, such as `text2sql`."""
    language: str
    """Language of the solution."""
    instruction: str
    """The instruction."""
    tables: tuple[TaskTable, ...]
    """The tables."""
    sample: int = 1
    """Number of this sample, from 1."""
