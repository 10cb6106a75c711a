"""Text-to-SQL tasks: a query first, then its question, verified on the database and on perturbed copies."""

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from msgspec import Struct

from agentflow.actors import together
from agentflow.errors import ToolFailure
from agentflow.journal import Page
from agentflow.sandbox import Sandbox
from agentflow.tasks._contract import (
    GOLD,
    NO_OP,
    DerivedTasks,
    RejectedTask,
    TaskAttempt,
    TaskFinding,
    TaskPredicate,
    TaskProblem,
    TaskRelation,
    TaskSetup,
    VerifiableTask,
    task_id,
)
from agentflow.tasks._derivation import (
    CandidateSolution,
    DerivationSettings,
    Earlier,
    IndependentVote,
    TaskAuthor,
    TaskCalls,
    TaskWriter,
    failure_reason,
    instruction_problem,
    rejected,
    vote,
)
from agentflow.tasks._sql_changes import COPIES, boundaries, changed_tables, changes_of, used_tables
from agentflow.tasks._sql_copies import SqlCopies, SqlResult, SqlSchema
from agentflow.tasks._sql_mistakes import constant_query, mistakes_of, same_rows
from agentflow.tasks._verifiers import QueryVerifier
from agentflow.trace import (
    Action,
    IndependentSolutionRequest,
    InstructionRequest,
    Node,
    Reply,
    TaskInstruction,
    TaskTable,
    Tree,
    Verdict,
    digest,
)

KIND: Final = "text2sql"
"""Name of the kind."""
TOOL: Final = "sql_execute"
"""Tool that the tasks are about."""

_MAX_ROWS: Final = 50
_MAX_COLUMNS: Final = 6
_MAX_TABLES: Final = 30
"""Maximum number of tables shown to the roles."""
_MAX_MISTAKES: Final = 4
_MAX_SIBLINGS: Final = 2
_SHOWN_ROWS: Final = 20
_ORDER: Final = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
_WORTH: Final = (
    (2, re.compile(r"\bJOIN\b", re.IGNORECASE)),
    (2, re.compile(r"\(\s*SELECT\b", re.IGNORECASE)),
    (2, re.compile(r"\bGROUP\s+BY\b|\bOVER\s*\(", re.IGNORECASE)),
    (1, re.compile(r"\bWHERE\b|\bHAVING\b", re.IGNORECASE)),
    (1, re.compile(r"\b(?:COUNT|SUM|AVG|MIN|MAX)\s*\(", re.IGNORECASE)),
    (1, re.compile(r"\bORDER\s+BY\b.*\bLIMIT\b", re.IGNORECASE | re.DOTALL)),
)
_LEAST_WORTH: Final = 2


class _Gold(Struct, frozen=True):
    """A query with its results on the database and on the perturbed copies."""

    results: tuple[SqlResult, ...]
    """The results; that on the database itself is the first."""
    changes: tuple[tuple[str, ...], ...] = ()
    """Statements that make each copy; the database itself has none."""


class Text2Sql(QueryVerifier):
    """Tasks whose answer is a query. See docs/tasks.md."""

    def __init__(self, copies: SqlCopies, generator: TaskAuthor, settings: DerivationSettings) -> None:
        """Describe the kind; `open_text2sql` makes one."""
        super().__init__(copies)
        self._generator = generator
        self._settings = settings

    async def derive(self, tree: Tree, page: Page) -> DerivedTasks:
        """Derive tasks from the queries of a tree, then from queries that the generator proposes."""
        calls = TaskCalls(page, KIND)
        try:
            schema = await calls.once("schema", SqlSchema, partial(self._schema, tree))
        except ToolFailure as failure:
            reason = TaskFinding(TaskProblem.UNVERIFIABLE, failure.message)
            return DerivedTasks(rejected=(rejected(KIND, reason, solution=""),))
        writer = _Text2SqlWriter(tree, schema, calls, self._copies, self._generator, self._settings)
        await writer.work()
        return DerivedTasks(tasks=tuple(writer.tasks), rejected=tuple(writer.rejected), usage=calls.usage)

    async def _schema(self, tree: Tree) -> SqlSchema:
        databases = await self._copies.databases()
        wanted = [str(tree.seed.kwargs.get("database", tree.seed.kwargs.get("db_id", "")))]
        wanted += [str(node.action.arguments.get("database", "")) for node in _queries(tree) if node.action]
        chosen = next((database for database in wanted if database in databases), databases[0])
        return await self._copies.schema(chosen)


@asynccontextmanager
async def open_text2sql(
    sandbox: Sandbox, generator: TaskAuthor, settings: DerivationSettings
) -> AsyncGenerator[Text2Sql]:
    """Open the kind, and close its copies at the end.

    See docs/tasks.md for an example.

    :param sandbox: sandbox whose `sql` backend is writable, so that each session has its own copies.
    """
    copies = SqlCopies(sandbox)
    try:
        await copies.prepare()
        yield Text2Sql(copies, generator, settings)
    finally:
        await copies.close()


def _queries(tree: Tree) -> Iterator[Node]:
    """Yield the nodes that ran a query successfully."""
    for node in tree.nodes:
        if node.action is not None and node.action.tool == TOOL and node.verdict is Verdict.NEW:
            yield node


def _worth(query: str) -> int:
    return sum(points * bool(pattern.search(query)) for points, pattern in _WORTH)


class _Text2SqlWriter(TaskWriter):
    """Makes the tasks of one tree."""

    def __init__(
        self,
        tree: Tree,
        schema: SqlSchema,
        calls: TaskCalls,
        copies: SqlCopies,
        generator: TaskAuthor,
        settings: DerivationSettings,
    ) -> None:
        super().__init__(KIND, tree, calls, settings)
        self._schema = schema
        self._copies = copies
        self._generator = generator
        self._language = f"SQL ({schema.engine})"
        self._explored = [
            CandidateSolution(str(node.action.arguments.get("query", "")).strip(), node.id)
            for node in _queries(tree)
            if node.action is not None
        ]
        self._golds: list[_Gold] = []

    async def work(self) -> None:
        """Try the queries of the tree, the richest first; then proposed ones until there are enough tasks."""
        worth = [explored for explored in self._explored if _worth(explored.text) >= _LEAST_WORTH]
        for candidate in sorted(worth, key=lambda explored: -_worth(explored.text)):
            if self.missing > 0:
                await self._try(candidate)
        if self.missing <= 0:
            return
        proposed = await self.propose(
            self._generator,
            language=self._language,
            tables=self._schema.tables[:_MAX_TABLES],
            known=(explored.text for explored in self._explored),
        )
        for query in proposed:
            if self.missing > 0:
                await self._try(CandidateSolution(query))

    async def _try(self, candidate: CandidateSolution) -> None:
        key = digest(candidate.text)
        tables = used_tables(self._schema, candidate.text)
        gold = await self.calls.once(f"{key}/gold", _Gold, partial(self._run, candidate.text))
        if problem := self._problem(candidate.text, gold):
            self.reject(problem, solution=candidate.text)
        elif await self.instruct(key, partial(self._instruct, candidate, gold, tables)):
            self._golds.append(gold)

    async def _run(self, query: str) -> _Gold:
        """Run a query on the database, and on copies with other rows."""
        database = self._schema.database
        base = await self._copies.run(database, query)
        if self._flaw(query, base) is not None:
            return _Gold((base,))
        try:
            changes = await self._changes(changed_tables(self._schema, query), boundaries(query))
        except ToolFailure as failure:
            return _Gold((SqlResult(error=failure.message, unavailable=True),))
        results = [await self._copies.run(database, query, change) for change in changes]
        return _Gold((base, *results), ((), *changes))

    async def _changes(
        self, tables: Sequence[TaskTable], bounds: Sequence[str]
    ) -> tuple[tuple[str, ...], ...]:
        """Return the changes of each copy, as far as the database accepts them."""

        async def accepted() -> tuple[tuple[str, ...], ...]:
            database = self._schema.database
            tried = (changes_of(self._schema, tables, number, bounds) for number in range(COPIES))
            return tuple(
                await together(partial(self._copies.accepted, database, statements) for statements in tried)
            )

        key = digest([[table.name for table in tables], bounds])
        return await self.calls.once(f"changes/{key}", tuple[tuple[str, ...], ...], accepted)

    def _problem(self, query: str, gold: _Gold) -> TaskFinding | None:
        """Return the reason that a query is worth no question."""
        base = gold.results[0]
        if flaw := self._flaw(query, base):
            return flaw
        for result in gold.results[1:]:
            if result.error:
                problem = TaskProblem.UNVERIFIABLE if result.unavailable else TaskProblem.NO_GOLD
                return TaskFinding(problem, result.error)
        if not any(gold.changes[1:]):
            return TaskFinding(
                TaskProblem.UNVERIFIABLE, "the database accepts none of the changes of its rows"
            )
        if all(same_rows(base.rows, other.rows, ordered=True) for other in gold.results[1:]):
            return TaskFinding(TaskProblem.CONSTANT, "the result is the same whatever the rows are")
        if any(_same_results(gold, other) for other in self._golds):
            return TaskFinding(TaskProblem.DUPLICATE, "another task of this tree has the same results")
        return None

    def _flaw(self, query: str, base: SqlResult) -> TaskFinding | None:
        """Return the reason that a query is worth no question, judging by its result on the database."""
        if base.error:
            problem = TaskProblem.UNVERIFIABLE if base.unavailable else TaskProblem.NO_GOLD
            return TaskFinding(problem, base.error)
        if base.empty:
            return TaskFinding(TaskProblem.EMPTY_RESULT, "the query returns no value")
        rows, columns = len(base.rows), len(base.columns)
        if base.truncated or rows > _MAX_ROWS or columns > _MAX_COLUMNS:
            reason = (
                f"the query returns {rows} rows and {columns} columns: at most {_MAX_ROWS} and {_MAX_COLUMNS}"
            )
            return TaskFinding(TaskProblem.WHOLE_TABLE, reason)
        for table in used_tables(self._schema, query):
            if table.rows == rows and (columns == len(table.columns) or not _worth(query)):
                return TaskFinding(TaskProblem.WHOLE_TABLE, f"the query returns every row of {table.name}")
        return None

    async def _instruct(
        self,
        candidate: CandidateSolution,
        gold: _Gold,
        tables: Sequence[TaskTable],
        earlier: Earlier,
        key: str,
    ) -> VerifiableTask | RejectedTask:
        """Have the question written from a query, and answered again by queries of others."""
        request = InstructionRequest(
            kind=KIND,
            language=self._language,
            seed=self.tree.seed.content,
            tips=self.settings.tips,
            examples=self.settings.examples,
            tables=tuple(tables),
            solution=candidate.text,
            result=_shown(gold.results[0]),
            rejected=earlier,
        )
        reply = await self.calls.ask(
            f"{key}/instruct", Reply[TaskInstruction], partial(self._generator.instruct, request)
        )
        if reply.value is None:
            return rejected(KIND, TaskProblem.MODEL_FAILED, failure_reason(reply), solution=candidate.text)
        question = reply.value.instruction.strip()
        ordered = reply.value.ordered and orders_rows(candidate.text)
        base = gold.results[0]
        answers = [str(cell) for row in base.rows for cell in row] if len(base.rows) == 1 else []
        if problem := instruction_problem(question, candidate.text, answers):
            return rejected(KIND, problem, solution=candidate.text, instruction=question or "(empty)")
        again = IndependentSolutionRequest(
            kind=KIND, language=self._language, instruction=question, tables=self._schema.tables[:_MAX_TABLES]
        )
        agreement = await vote(
            self.calls,
            self._generator,
            again,
            partial(self._difference, gold, ordered),
            samples=self.settings.samples,
            key=key,
        )
        if not agreement.accepted:
            return rejected(
                KIND, TaskProblem.AMBIGUOUS, agreement.reason, solution=candidate.text, instruction=question
            )
        wrong = await self.calls.once(
            f"{key}/wrong", tuple[TaskAttempt, ...], partial(self._wrong, candidate.text, gold, ordered)
        )
        return self._task(candidate, gold, question, wrong, agreement, ordered=ordered)

    async def _difference(self, gold: _Gold, ordered: bool, query: str) -> str:
        """Return the first difference of a query's results from those of the gold query, or an empty text."""
        for number, (changes, expected) in enumerate(zip(gold.changes, gold.results, strict=True)):
            result = await self._copies.run(self._schema.database, query.rstrip("; \n"), changes)
            where = "the database" if number == 0 else f"perturbed copy {number}"
            if result.error:
                return f"an independent query fails on {where}: {result.error}"
            if not same_rows(expected.rows, result.rows, ordered=ordered):
                return (
                    f"an independent query returns something else on {where}: "
                    f"{_brief(result)} instead of {_brief(expected)}"
                )
        return ""

    async def _wrong(self, query: str, gold: _Gold, ordered: bool) -> tuple[TaskAttempt, ...]:
        """Return attempts that must fail: constants, siblings, and typical mistakes that matter on this database."""
        wrong = [
            TaskAttempt(name=NO_OP, answer="SELECT NULL"),
            TaskAttempt(name="constant", answer=constant_query(gold.results[0])),
        ]
        siblings = [candidate for candidate in self._explored if candidate.node and candidate.text != query]
        sibling_texts: set[str] = set()
        for sibling in siblings:
            if len(sibling_texts) == _MAX_SIBLINGS or sibling.text in sibling_texts:
                continue
            if await self._difference(gold, ordered, sibling.text):
                sibling_texts.add(sibling.text)
                wrong.append(TaskAttempt(name=f"sibling/{sibling.node}", answer=sibling.text))
        names: set[str] = set()
        for name, changed in mistakes_of(query):
            if len(names) == _MAX_MISTAKES or name in names:
                continue
            if await self._difference(gold, ordered, changed):
                names.add(name)
                wrong.append(TaskAttempt(name=name, answer=changed))
        return tuple(wrong)

    def _task(
        self,
        candidate: CandidateSolution,
        gold: _Gold,
        question: str,
        wrong: tuple[TaskAttempt, ...],
        agreement: IndependentVote,
        *,
        ordered: bool,
    ) -> VerifiableTask:
        database = self._schema.database
        setup = TaskSetup(tools=("sql_schema", TOOL), kwargs={"database": database})
        attempt = TaskAttempt(name=GOLD, answer=candidate.text)
        relation = TaskRelation.SAME_ORDERED_ROWS if ordered else TaskRelation.SAME_ROWS
        verifier = tuple(
            TaskPredicate(
                says=f"the rows are those of the solution on {'the database' if number == 0 else f'perturbed copy {number}'}",
                probe=tuple(Action(TOOL, {"query": change, "database": database}) for change in changes),
                relation=relation,
                expected=[list(row) for row in result.rows],
            )
            for number, (changes, result) in enumerate(zip(gold.changes, gold.results, strict=True))
        )
        return VerifiableTask(
            id=task_id(self.tree.id, KIND, attempt, setup),
            kind=KIND,
            instruction=f"{question}\n\nAnswer with one {self._language} query on the database {database}.",
            setup=setup,
            gold=attempt,
            verifier=verifier,
            wrong=wrong,
            tree_id=self.tree.id,
            source_id=self.tree.seed.id,
            sources=(candidate.node,) if candidate.node else (),
            metadata={
                "question": question,
                "engine": self._schema.engine,
                "ordered": ordered,
                "agreed": agreement.agreed,
                "samples": agreement.samples,
            },
        )


def _same_results(gold: _Gold, other: _Gold) -> bool:
    """Tell whether two queries return the same rows on the database and on all copies."""
    pairs = zip(gold.results, other.results, strict=True)
    return all(same_rows(first.rows, second.rows, ordered=False) for first, second in pairs)


def orders_rows(query: str) -> bool:
    """Tell whether a query orders its whole result, not only a window or a subquery."""
    bare = _QUOTED.sub("''", query)
    return any(
        bare.count("(", 0, match.start()) == bare.count(")", 0, match.start())
        for match in _ORDER.finditer(bare)
    )


def _shown(result: SqlResult) -> str:
    """Return the first rows of a result as lines."""
    lines = [" | ".join(result.columns)]
    lines += [" | ".join(map(str, row)) for row in result.rows[:_SHOWN_ROWS]]
    more = len(result.rows) - _SHOWN_ROWS
    return "\n".join([*lines, *([f"… {more} more rows"] if more > 0 else [])])


def _brief(result: SqlResult) -> str:
    rows = "; ".join(", ".join(map(str, row)) for row in result.rows[:2])
    return f"{len(result.rows)} rows ({rows[:100]})"
