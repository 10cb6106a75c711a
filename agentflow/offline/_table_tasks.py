"""Questions about tables from templates, each with two independent queries or programs that answer it.

The engine knows a question again by writing all questions that its templates give for the same tables.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from agentflow.offline._language import terms
from agentflow.trace import (
    IndependentSolution,
    IndependentSolutionRequest,
    InstructionRequest,
    ProposedSolutions,
    SolutionsRequest,
    TaskColumn,
    TaskInstruction,
    TaskTable,
)

_NUMERIC: Final = re.compile(r"int|real|floa|doub|num|dec|money", re.IGNORECASE)
_TEXT: Final = re.compile(r"char|text|string|^$", re.IGNORECASE)


class TableQuestion(Struct, frozen=True):
    """A question with two solutions."""

    question: str
    """The question."""
    solution: str
    """Solution from which it is written."""
    again: str
    """Another solution with the same result."""


def answer_table_request(
    request: SolutionsRequest | InstructionRequest | IndependentSolutionRequest,
) -> Struct:
    """Propose solutions, write the question of a solution, or solve a question again.

    A solution or question that is of no template has an empty answer.
    """
    questions = _questions(request.kind, request.tables)
    match request:
        case SolutionsRequest():
            return ProposedSolutions(_proposed(request, questions))
        case InstructionRequest():
            texts = (question.question for question in questions if question.solution == request.solution)
            return TaskInstruction(next(texts, ""))
        case IndependentSolutionRequest():
            texts = (question.again for question in questions if question.question == request.instruction)
            return IndependentSolution(next(texts, ""))


def _proposed(request: SolutionsRequest, questions: Iterator[TableQuestion]) -> tuple[str, ...]:
    """Return solutions of questions, those that share most words with the seed first."""
    unknown_questions = [question for question in questions if question.solution not in request.known]
    seed = set(terms(f"{request.seed} {request.tips}"))
    unknown_questions.sort(key=lambda candidate: -len(seed & set(terms(candidate.question))))
    return tuple(candidate.solution for candidate in unknown_questions[: request.count])


def _questions(kind: str, tables: Sequence[TaskTable]) -> Iterator[TableQuestion]:
    """Yield the questions of all templates, each template once before it is used again."""
    families = [list(family) for family in (_sql(tables) if kind == "text2sql" else _programs(tables))]
    for at in range(max(map(len, families), default=0)):
        yield from (family[at] for family in families if at < len(family))


def _sql(tables: Sequence[TaskTable]) -> Iterator[Iterator[TableQuestion]]:
    by_name = {table.name.lower(): table for table in tables}
    for child in tables:
        for reference in child.columns:
            parent = by_name.get(reference.refers.partition(".")[0].lower())
            if parent is not None and len(parent.key) == 1 and parent is not child:
                yield _joined(child, reference.name, parent)
        yield _single(child)


def _joined(child: TaskTable, reference: str, parent: TaskTable) -> Iterator[TableQuestion]:
    """Questions that need two tables."""
    many, parents = _words(child.name), _words(parent.name)
    c, p = _quoted(child.name), _quoted(parent.name)
    on = f"c.{_quoted(reference)} = p.{_quoted(parent.key[0])}"
    counted = f"(SELECT COUNT(*) FROM {c} AS c WHERE {on})"
    for label in _texts(parent)[:1]:
        name, label_words = f"p.{_quoted(label.name)}", _words(label.name)
        for measure in _measures(child):
            total, what = f"SUM(c.{_quoted(measure.name)})", _words(measure.name)
            summed = f"(SELECT {total} FROM {c} AS c WHERE {on})"
            yield TableQuestion(
                f"Whose {many} have the highest total {what} among all {parents}? Give the {label_words}; "
                f"of several with the same total, the first by {label_words}.",
                f"SELECT {name} FROM {p} AS p JOIN {c} AS c ON {on} GROUP BY p.{_quoted(parent.key[0])}, {name} "
                f"ORDER BY {total} DESC, {name} LIMIT 1",
                f"SELECT MIN({name}) FROM {p} AS p WHERE {summed} = (SELECT MAX(t.s) FROM "
                f"(SELECT {summed} AS s FROM {p} AS p) AS t)",
            )
            for value in _values(parent, label)[:2]:
                yield TableQuestion(
                    f"What is the total {what} of all {many} that belong to the {parents} with the {label_words} {value}?",
                    f"SELECT {total} FROM {c} AS c JOIN {p} AS p ON {on} WHERE {name} = {_literal(value)}",
                    f"SELECT {total} FROM {c} AS c WHERE c.{_quoted(reference)} IN "
                    f"(SELECT p.{_quoted(parent.key[0])} FROM {p} AS p WHERE {name} = {_literal(value)})",
                )
        yield TableQuestion(
            f"Which {parents} have no {many}? List the {label_words} of each.",
            f"SELECT {name} FROM {p} AS p LEFT JOIN {c} AS c ON {on} WHERE c.{_quoted(reference)} IS NULL",
            f"SELECT {name} FROM {p} AS p WHERE {counted} = 0",
        )
    for least in (1, 2, 3):
        yield TableQuestion(
            f"How many {parents} have more than {least} {many}?",
            f"SELECT COUNT(*) FROM (SELECT c.{_quoted(reference)} FROM {c} AS c JOIN {p} AS p ON {on} "
            f"GROUP BY c.{_quoted(reference)} HAVING COUNT(*) > {least}) AS t",
            f"SELECT COUNT(*) FROM {p} AS p WHERE {counted} > {least}",
        )


def _single(table: TaskTable) -> Iterator[TableQuestion]:
    """Questions about one table."""
    many, t = _words(table.name), _quoted(table.name)
    for label in _texts(table):
        column, label_words = _quoted(label.name), _words(label.name)
        for measure in _measures(table):
            m, what = _quoted(measure.name), _words(measure.name)
            for value in _values(table, label)[:2]:
                yield TableQuestion(
                    f"What is the average {what} of the {many} with the {label_words} {value}?",
                    f"SELECT AVG({m}) FROM {t} WHERE {column} = {_literal(value)}",
                    f"SELECT SUM(CASE WHEN {column} = {_literal(value)} THEN {m} END) * 1.0 / "
                    f"COUNT(CASE WHEN {column} = {_literal(value)} THEN {m} END) FROM {t}",
                )
            yield TableQuestion(
                f"How many {many} of each {label_words} have a {what} above the average of all {many}? "
                f"Give the {label_words} and the number.",
                f"SELECT {column}, COUNT(*) FROM {t} WHERE {m} > (SELECT AVG({m}) FROM {t}) GROUP BY {column}",
                f"SELECT a.{column}, COUNT(*) FROM {t} AS a CROSS JOIN (SELECT AVG({m}) AS mean FROM {t}) AS b "
                f"WHERE a.{m} > b.mean GROUP BY a.{column}",
            )


_LOAD: Final = (
    "import csv, json\nrows = list(csv.DictReader(open({path!r}, encoding='utf-8-sig', newline='')))\n"
)
_NUMBER: Final = "def number(text):\n    return float(text) if text not in ('', None) else None\n"


def _programs(tables: Sequence[TaskTable]) -> Iterator[Iterator[TableQuestion]]:
    for table in tables:
        if table.name.lower().endswith(".csv"):
            yield _of_file(table)


def _of_file(table: TaskTable) -> Iterator[TableQuestion]:
    """Questions about one CSV file, answered with the standard library."""
    load = _LOAD.format(path=table.name) + _NUMBER
    file = table.name.rpartition("/")[2]
    measures = [column for column in table.columns if _NUMERIC.search(column.type) and not _is_id(column)]
    for label in (column for column in table.columns if _TEXT.search(column.type)):
        key, label_words = label.name, _words(label.name)
        for measure in measures:
            m, what = measure.name, _words(measure.name)
            yield TableQuestion(
                f"Which {label_words} has the highest total {what} in {file}? "
                f"Of several with the same total, give the first alphabetically.",
                f"{load}totals = {{}}\nfor row in rows:\n    if number(row[{m!r}]) is not None:\n"
                f"        totals[row[{key!r}]] = totals.get(row[{key!r}], 0) + number(row[{m!r}])\n"
                f"print(min(totals, key=lambda name: (-round(totals[name], 6), name)))",
                f"{load}names = sorted({{row[{key!r}] for row in rows if number(row[{m!r}]) is not None}})\n"
                f"total = lambda name: round(sum(number(row[{m!r}]) or 0 for row in rows if row[{key!r}] == name), 6)\n"
                f"print(max(names, key=total))",
            )
            for value in _values(table, label)[:2]:
                yield TableQuestion(
                    f"What is the average {what} in {file} for the {label_words} {value}? Round to two decimals.",
                    f"{load}values = [number(row[{m!r}]) for row in rows if row[{key!r}] == {value!r}]\n"
                    f"values = [one for one in values if one is not None]\n"
                    f"print(round(sum(values) / len(values), 2))",
                    f"{load}total, count = 0, 0\nfor row in rows:\n"
                    f"    if row[{key!r}] == {value!r} and number(row[{m!r}]) is not None:\n"
                    f"        total, count = total + number(row[{m!r}]), count + 1\n"
                    f"print(round(total / count, 2))",
                )
            yield TableQuestion(
                f"In how many rows of {file} is the {what} above the average {what} of all rows?",
                f"{load}values = [number(row[{m!r}]) for row in rows if number(row[{m!r}]) is not None]\n"
                f"mean = sum(values) / len(values)\nprint(sum(one > mean for one in values))",
                f"{load}import statistics\nvalues = [one for one in (number(row[{m!r}]) for row in rows) if one is not None]\n"
                f"mean = statistics.fmean(values)\nprint(len([one for one in values if one > mean]))",
            )


def _measures(table: TaskTable) -> list[TaskColumn]:
    """Return numeric columns that are part of no key."""
    return [
        column
        for column in table.columns
        if _NUMERIC.search(column.type)
        and column.name not in table.key
        and not column.refers
        and not _is_id(column)
    ]


def _texts(table: TaskTable) -> list[TaskColumn]:
    return [column for column in table.columns if _TEXT.search(column.type) and not column.refers]


def _is_id(column: TaskColumn) -> bool:
    return bool(re.fullmatch(r"(?:.*_)?id|.*Id", column.name))


def _values(table: TaskTable, column: TaskColumn) -> list[str]:
    """Return different values of a column in the sample."""
    at = table.columns.index(column)
    values = (row[at] for row in table.sample if at < len(row))
    return [
        value for value in dict.fromkeys(values) if isinstance(value, str) and value.strip() == value != ""
    ]


def _words(name: str) -> str:
    """Return a name of a table or column as words: `order_items` is "order items"."""
    bare = name.rpartition(".")[2]
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_+", " ", bare).strip().lower()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
