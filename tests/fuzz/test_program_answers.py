"""Answers of programs and sessions in a sandbox: each is a result in valid JSON, or one failure of one line."""

import json
import re
from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from mcp_servers import ToolTable
from mcp_servers.code import CodeBackend
from mcp_servers.data import DataBackend
from mcp_servers.files import FilesBackend
from runtimes import Display, ExecResult, Outcome, RunResult, Runtime
from runtimes.process import ProcessRuntime
from tests.fuzz._budget import FuzzBudget, FuzzCase, fuzzed

pytestmark = pytest.mark.promise("instances:answers:fuzzed")

COLUMN = (
    '{"name": "a", "type": "BIGINT", "nulls": 0, "distinct": 1, "min": -1, "max": {"b": [2]}, "mean": 0.5, '
    '"top": [{"value": "x", "count": 3}]}'
)
TABLE = (
    '{"sheet": "s", "note": "", "row_count": 9, "profiled_rows": 9, "column_count": 1, "columns": [COLUMN], "sample": [[1]]}'
).replace("COLUMN", COLUMN)
LINK = '{"file": "a", "sheet": null, "column": "b", "to_file": "c", "to_sheet": null, "to_column": "d", "overlap": 0.9}'
PROGRAMS = {
    "data_inspect": '{"files": [{"name": "a", "kind": "csv", "size": 3, "tables": [TABLE]}], "links": [LINK], "others": ["x"], "more": 1}'.replace(
        "TABLE", TABLE
    ).replace("LINK", LINK),
    "data_read": '{"columns": [{"name": "a", "type": "T"}], "rows": [[1, {"b": null}]], "more": true, "note": "", "sheet": "s"}',
    "files_search": '{"found": {"matches": [{"path": "a", "line": 1, "text": "b"}], "files_searched": 1, "truncated": false}}',
}
ARGUMENTS: dict[str, dict[str, object]] = {
    "data_inspect": {},
    "data_read": {"file": "a"},
    "files_search": {"glob": "*"},
}
ERRORS = (
    '{"unreadable": "it is damaged", "errno": 2}',
    '{"wrong_column": "a", "known": ["b"]}',
    '{"wrong_filter": "x", "wrong": "y"}',
)
TABLES = (
    '{"columns": [{"name": "a", "dtype": "int64"}], "rows": [[1, [2, {"b": 1.5}]]], "total_rows": 1, "total_columns": 1}',
    '[{"name": "a", "type": "int", "summary": "1"}]',
)
MIMES = [
    *(f"application/vnd.agentflow.{name}+json" for name in ("table", "variables", "values")),
    "image/png",
    "text/\x1b",
]
ODD = (
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 4_000,
    "9" * 5_000,
    "null",
    '"\\ud800"',
    "[" * 500,
    "-0.0",
    '"\\u0000\\u001b"',
)


class SandboxAnswers:
    """Tools of one session, whose sandbox gives prepared answers."""

    def __init__(self, table: ToolTable, session: str) -> None:
        self.table = table
        self.session = session
        self.stdout = b""
        self.stderr = b""
        self.displays: tuple[Display, ...] = ()

    async def exec(self, *_: object, **__: object) -> ExecResult:
        return ExecResult(outcome=Outcome.OK, exit_code=0, stdout=self.stdout, stderr=self.stderr)

    async def run(self, *_: object, **__: object) -> RunResult:
        return RunResult(outcome=Outcome.OK, displays=self.displays)

    async def check(self, tool: str, **arguments: object) -> None:
        """Call a tool; its result must be valid JSON, or one line of an expected kind."""
        result = await self.table.call(tool, {"session": self.session, **arguments})
        if result.error is None:
            json.dumps(result.data, allow_nan=False).encode()
            return
        assert result.error.kind.value in ("failed", "not_found", "bad_arguments"), result.error
        assert "\n" not in result.error.message, result.error
        assert len(result.error.message) < 1_000


@pytest.fixture(scope="module")
async def answers(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[SandboxAnswers]:
    async def given() -> Runtime:
        return running

    async with ProcessRuntime(preload=(), idle=False) as running:
        backends = [CodeBackend(), FilesBackend(), DataBackend()]
        async with ToolTable(backends, runtime=given) as table:
            started = await table.call("session_start")
            assert started.ok, started.error
            answers = SandboxAnswers(table, str(started.data["session"]))
            await answers.check("code_run", code="1")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("runtimes.process._instance.ProcessInstance.exec", answers.exec)
                patch.setattr("runtimes.process._instance.ProcessInstance.run", answers.run)
                yield answers


def changed(case: FuzzCase, text: str) -> bytes:
    """Return a JSON text with odd values, changed bytes, or both."""
    for _ in range(case.randrange(3)):
        values = list(re.finditer(r'-?\d+(\.\d+)?|"[^"]*"(?!:)|null|true', text))
        if values:
            chosen = case.choice(values)
            text = text[: chosen.start()] + case.choice(ODD) + text[chosen.end() :]
    data = text.encode()
    return case.mutated(data) if case.random() < 0.6 else data


@fuzzed
async def test_any_answer_of_a_program_is_a_result_or_one_failure(
    budget: FuzzBudget, answers: SandboxAnswers
) -> None:
    for case in budget.cases(short=150):
        with case:
            name = case.choice(list(PROGRAMS))
            answers.stdout = changed(case, case.choice((PROGRAMS[name], PROGRAMS[name], *ERRORS, "")))
            answers.stderr = (
                case.mutated(b"Traceback:\n  at 1\nKeyError: 'x'\n") if case.random() < 0.5 else b""
            )
            await answers.check(name, **ARGUMENTS[name])


@fuzzed
async def test_any_display_of_a_session_is_shown_in_valid_json(
    budget: FuzzBudget, answers: SandboxAnswers
) -> None:
    calls: dict[str, dict[str, object]] = {
        "code_run": {"code": "1"},
        "code_sql": {"query": "SELECT 1"},
        "code_variables": {},
        "data_run": {"code": "1", "return_vars": ["a"]},
    }
    for case in budget.cases(short=150):
        with case:
            answers.displays = tuple(
                Display(case.choice(MIMES), changed(case, case.choice((*TABLES, '{"a": [1, 2.5]}'))))
                for _ in range(case.randrange(4))
            )
            name = case.choice(list(calls))
            await answers.check(name, **calls[name])
