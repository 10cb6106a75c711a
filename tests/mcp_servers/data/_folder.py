"""A folder of data files, good, odd and broken ones, and a sandbox that sees it."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import duckdb
import openpyxl

from agentflow import Sandbox
from agentflow.sandbox import SandboxSettings, ToolResult
from runtimes import Runtime

ORDERS = "order_id,customer_id,amount,status\n" + "".join(
    f"{number},{number % 20 + 1},{number * 1.5},{'open' if number % 3 else 'done'}\n" for number in range(100)
)


def fill(folder: Path) -> Path:
    """Write the files that can be read."""
    (folder / "deep").mkdir()
    (folder / "orders.csv").write_text(ORDERS, encoding="utf-8")
    (folder / "old.tsv").write_bytes("name\tsize\ncafé\t1\n".encode("latin-1"))
    (folder / "notes.txt").write_text("no data", encoding="utf-8")
    (folder / "lines.jsonl").write_text('{"a": 1, "b": {"c": [1]}}\n{"a": 2}\n', encoding="utf-8")
    (folder / "list.json").write_text(json.dumps([{"k": "x"}, {"k": None}]), encoding="utf-8")
    with duckdb.connect() as connection:
        query = (
            "SELECT i AS id, 'n' || i AS name, DATE '2024-01-01' + i::INTEGER AS since FROM range(1, 21) r(i)"
        )
        connection.execute(f"COPY ({query}) TO '{folder}/deep/customers.parquet'")
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Codes"
    for row in (("code", "n"), ("a", 1), ("b", None)):
        sheet.append(row)
    mixed = book.create_sheet("Mixed")
    for row in (("x",), (1,), ("two",)):
        mixed.append(row)
    book.save(folder / "book.xlsx")
    return opened(folder)


def fill_broken(folder: Path) -> Path:
    """Write files that can't be read, and one that can."""
    (folder / "empty.csv").touch()
    (folder / "junk.parquet").write_bytes(b"PAR1" + os.urandom(500) + b"PAR1")
    (folder / "junk.xlsx").write_bytes(b"PK\x03\x04" + os.urandom(500))
    (folder / "junk.json").write_text('{"a": [1, 2', encoding="utf-8")
    (folder / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    (folder / "good.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (folder / "nothing.csv").symlink_to("/nowhere")
    os.mkfifo(folder / "pipe.csv")
    return opened(folder)


def opened(folder: Path) -> Path:
    """The folder, for everybody to read."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    return folder


class Analyst:
    """The data tools of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        return await self.sandbox.execute(tool if ":" in tool else f"data:{tool}", arguments)

    async def data(self, tool: str, **arguments: object) -> dict[str, object]:
        result = await self.call(tool, **arguments)
        assert result.ok, result.error
        return result.data

    async def files(self, **arguments: object) -> dict[str, dict[str, object]]:
        """Return the description of each file by `inspect`."""
        files = cast("list[dict[str, object]]", (await self.data("inspect", **arguments))["files"])
        return {str(file["name"]): file for file in files}

    async def failure(self, tool: str, **arguments: object) -> tuple[str, str]:
        """Kind and message of a call that must fail."""
        result = await self.call(tool, **arguments)
        assert result.error is not None, result
        return result.error.kind.value, result.error.message


@asynccontextmanager
async def analyst(runtime: Runtime, **settings: object) -> AsyncGenerator[Analyst]:
    """A sandbox with these settings of the data backend, beside code, files and bash."""
    backends = {"data": settings, "code": {}, "files": {}, "bash": {}}
    wanted = SandboxSettings.model_validate({"backends": backends})
    async with Sandbox(wanted, runtime=runtime) as sandbox:
        yield Analyst(sandbox)
