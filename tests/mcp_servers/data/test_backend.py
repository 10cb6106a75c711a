"""Data tools on real files in a real sandbox."""

import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal, cast

import pytest

from agentflow.errors import ConfigurationError
from agentflow.sandbox import Image, TextContent
from mcp_servers.data import DataBackend
from mcp_servers.data._backend import program_sources
from runtimes import Runtime
from runtimes.process import ProcessRuntime
from tests.mcp_servers.data._folder import Analyst, analyst, fill, fill_broken, opened

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
async def runtime(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[Runtime]:
    """One for all tests, which does not wait until nobody else works."""
    async with ProcessRuntime(idle=False) as running:
        yield running


@pytest.fixture(scope="module")
async def shop(runtime: Runtime, folder: Path) -> AsyncGenerator[Analyst]:
    """A session on the folder; one for all tests that only look."""
    async with analyst(runtime, folder=str(folder)) as session:
        yield session


def only_table(file: dict[str, object]) -> dict[str, object]:
    (table,) = cast("list[dict[str, object]]", file["tables"])
    return table


def column(table: dict[str, object], name: str) -> dict[str, object]:
    columns = cast("list[dict[str, object]]", table["columns"])
    return next(entry for entry in columns if entry["name"] == name)


@pytest.mark.promise("data:inspect")
async def test_every_kind_of_file_is_profiled(shop: Analyst) -> None:
    result = await shop.call("inspect")
    assert result.ok, result.error
    files = {str(file["name"]): file for file in cast("list[dict[str, object]]", result.data["files"])}
    assert {name: file["kind"] for name, file in files.items()} == {
        "book.xlsx": "excel",
        "deep/customers.parquet": "parquet",
        "lines.jsonl": "json",
        "list.json": "json",
        "old.tsv": "csv",
        "orders.csv": "csv",
    }
    assert (result.data["folder"], result.data["others"], result.data["more"]) == ("/data", ["notes.txt"], 0)
    orders = only_table(files["orders.csv"])
    assert (orders["row_count"], orders["column_count"]) == (100, 4)
    assert cast("list[object]", orders["sample"])[0] == [0, 1, 0.0, "done"]
    amount, status = column(orders, "amount"), column(orders, "status")
    assert (amount["type"], amount["min"], amount["max"], amount["mean"]) == ("DOUBLE", 0.0, 148.5, 74.25)
    assert (status["nulls"], status["distinct"]) == (0, 2)
    assert status["top"] == [{"value": "open", "count": 66}, {"value": "done", "count": 34}]
    codes, mixed = cast("list[dict[str, object]]", files["book.xlsx"]["tables"])
    assert (codes["sheet"], column(codes, "n")["nulls"], mixed["sheet"]) == ("Codes", 1, "Mixed")
    assert mixed["sample"] == [["1"], ["two"]]
    assert column(only_table(files["deep/customers.parquet"]), "since")["min"] == "2024-01-02"
    assert "Latin-1" in str(only_table(files["old.tsv"])["note"])
    (shown,) = result.parts
    assert isinstance(shown, TextContent)
    assert "amount: DOUBLE; all different; 0.0 … 148.5; mean 74.25" in shown.text


@pytest.mark.promise("data:links")
async def test_columns_that_refer_to_another_file_are_reported(shop: Analyst) -> None:
    links = cast("list[dict[str, object]]", (await shop.data("inspect"))["links"])
    assert links == [
        {
            "file": "orders.csv",
            "sheet": None,
            "column": "customer_id",
            "to_file": "deep/customers.parquet",
            "to_sheet": None,
            "to_column": "id",
            "overlap": 1.0,
        }
    ]


@pytest.mark.promise("data:read")
async def test_a_part_of_a_file_is_read(shop: Analyst) -> None:
    read = await shop.data(
        "read", file="orders.csv", rows=2, offset=1, columns=["STATUS", "amount"], filter="amount > 100"
    )
    assert read["columns"] == [{"name": "status", "type": "VARCHAR"}, {"name": "amount", "type": "DOUBLE"}]
    assert read["rows"] == [["open", 102.0], ["done", 103.5]]
    assert read["next_offset"] == 3
    rest = await shop.data("read", file="orders.csv", offset=98)
    assert (len(cast("list[object]", rest["rows"])), rest["next_offset"]) == (2, None)
    sheet = await shop.data("read", file="book.xlsx", sheet="Mixed")
    assert sheet["rows"] == [["1"], ["two"]]
    nested = await shop.data("read", file="lines.jsonl")
    assert nested["rows"] == [[1, {"c": [1]}], [2, None]]


@pytest.mark.promise("data:read")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"file": "oders.csv"}, ("not_found", "No such file")),
        ({"file": "orders.csv", "columns": ["amont"]}, ("bad_arguments", "Did you mean 'amount'?")),
        ({"file": "orders.csv", "filter": "amont > 1"}, ("bad_arguments", "amount")),
        ({"file": "orders.csv", "filter": "1 = 1); DROP TABLE x; --"}, ("bad_arguments", "filter")),
        ({"file": "book.xlsx", "sheet": "Code"}, ("failed", "There are: Codes, Mixed")),
        ({"file": "notes.txt"}, ("failed", "it is no CSV")),
    ],
)
async def test_an_unreadable_file_is_reported_in_one_line(
    shop: Analyst, arguments: dict[str, object], expected: tuple[str, str]
) -> None:
    kind, message = await shop.failure("read", **arguments)
    assert kind == expected[0], message
    assert expected[1] in message
    assert "\n" not in message


@pytest.mark.promise("data:run")
async def test_code_computes_over_the_data_and_returns_variables_and_plots(shop: Analyst) -> None:
    code = (
        "import pandas as pd\norders = pd.read_csv('/data/orders.csv')\ntotal = float(orders.amount.sum())\n"
        "count = orders.status.value_counts()\norders.amount.plot();"
    )
    wanted = ["total", "count", "orders", "nothing"]
    result = await shop.call("run", code=code, return_vars=wanted)
    assert result.ok, result.error
    assert result.data["error"] is None
    returned = cast("dict[str, dict[str, object]]", result.data["returned"])
    assert returned["total"] == 7425.0
    assert returned["count"]["rows"] == [[66], [34]]
    assert returned["orders"]["row_count"] == 100
    assert result.data["missing"] == ["nothing"]
    assert [part.mime for part in result.parts if isinstance(part, Image)] == ["image/png"]
    assert (await shop.data("code:run", code="total"))["value"] == "7425.0"


@pytest.mark.promise("data:read-only")
async def test_the_data_can_be_read_and_not_written(shop: Analyst, folder: Path) -> None:
    for code in ("open('/data/orders.csv', 'w')", "import os; os.remove('/data/orders.csv')"):
        error = cast("dict[str, str]", (await shop.data("run", code=code))["error"])
        assert error["type"] in {"OSError", "PermissionError"}
    assert (folder / "orders.csv").exists()


@pytest.mark.promise("data:fork")
async def test_a_fork_has_the_data_the_files_and_the_variables_and_shares_nothing(shop: Analyst) -> None:
    await shop.data("run", code="kept = [1]\nopen('made.csv', 'w').write('a,b\\n1,2\\n')")
    fork = Analyst(await shop.sandbox.fork())
    try:
        assert (await fork.data("run", code="kept", return_vars=["kept"]))["returned"] == {"kept": [1]}
        await fork.data("run", code="kept.append(2)")
        await fork.data("bash:run", command="echo 3,4 >> made.csv")
        assert (await fork.data("read", file="made.csv"))["rows"] == [[1, 2], [3, 4]]
        assert (await fork.data("read", file="orders.csv", rows=1))["rows"] == [[0, 1, 0.0, "done"]]
    finally:
        await fork.sandbox.close()
    assert (await shop.data("read", file="made.csv"))["rows"] == [[1, 2]]
    assert (await shop.data("code:run", code="kept"))["value"] == "[1]"
    assert "a,b" in str((await shop.data("files:read", path="made.csv"))["content"])


@pytest.mark.promise("data:names")
async def test_the_names_of_the_documentation_work(runtime: Runtime, folder: Path) -> None:
    async with analyst(runtime, seed_path=str(folder), ds_max_csv=2, ds_summary_max_chars=200) as session:
        result = await session.sandbox.execute("ds_inspect_data", {})
        assert result.ok, result.error
        assert (len(cast("list[object]", result.data["files"])), result.data["more"]) == (2, 4)
        (shown,) = result.parts
        assert isinstance(shown, TextContent)
        assert "characters left out" in shown.text
        read = await session.sandbox.execute("ds_read_csv", {"csv_file": "orders.csv", "max_rows": 1})
        assert read.data["rows"] == [[0, 1, 0.0, "done"]]
        ran = await session.sandbox.execute("ds_run_python", {"code": "x = 1", "return_vars": ["x"]})
        assert ran.data["returned"] == {"x": 1}
        deep = await session.sandbox.execute("ds_inspect_data", {"seed_path": str(folder / "deep")})
        assert [file["name"] for file in cast("list[dict[str, str]]", deep.data["files"])] == [
            "customers.parquet"
        ]


@pytest.mark.promise("data:hostile")
async def test_a_file_that_can_not_be_read_takes_no_other_along(runtime: Runtime, tmp_path: Path) -> None:
    async with analyst(runtime, folder=str(fill_broken(tmp_path))) as session:
        files = await session.files()
        assert {name for name, file in files.items() if file["unreadable"]} == set(files) - {"good.csv"}
        assert only_table(files["good.csv"])["sample"] == [[1, 2]]
        assert files["empty.csv"]["unreadable"] == "the file is empty"
        assert "save it as .xlsx" in str(files["old.xls"]["unreadable"])
        assert files["pipe.csv"]["unreadable"] == "it is no regular file"


# Other processes of a session can write to the standard output of the program.
FORGED = {
    "a bomb": ("'[' + '[],' * 5_000_000 + '1]'", "more than 512144"),
    "a bomb in a field": ("""'{"rows": [' + '{},' * 400_000 + '1]}'""", "more than"),
    "problems": ("""'{"known": [' + '1,' * 200_000 + '1]}'""", "200001 validation errors"),
    "deep nesting": ("'[' * 200_000", "refused"),
    "too much": ("' ' * (16 << 20) + '{}'", "output limit"),
    "wrong types": ("""'{"rows": 7}'""", "valid array"),
    "a long reason": ("""'{"errno": 5, "unreadable": "' + 'x' * 9_000_000 + '"}'""", "can't be read: xxx"),
    "a long filter": ("""'{"wrong_filter": "' + 'x' * 9_000_000 + '"}'""", "can't be used: xxx"),
    "many names": (
        """'{"wrong_column": "xxx", "known": [' + '"xxyyyy",' * 200_000 + '"xxx1"]}'""",
        "Did you mean",
    ),
    "a long name": ("""'{"wrong_column": "' + 'x' * 9_000_000 + '", "known": ["x"]}'""", "no column 'xxx"),
    "no JSON": ("'{'", "refused"),
    "nothing": ("''", "failed"),
}


@pytest.mark.promise("data:forged")
async def test_a_forged_answer_is_one_short_failure(shop: Analyst, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (answer, expected) in FORGED.items():
        with monkeypatch.context() as patch:
            program = f"import sys; sys.stdin.read(); sys.stdout.write({answer})"
            patch.setattr("mcp_servers.data._backend._COMMAND", ("python3", "-I", "-c", program))
            if name.startswith("a bomb"):
                tracemalloc.start()
            try:
                _, message = await shop.failure("read", file="orders.csv")
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert expected in message, (name, message)
        assert len(message) < 800, name
        assert "\n" not in message, name
        assert peak < 64 * MIB, (name, peak // MIB)
    assert "orders.csv" in await shop.files()


@pytest.mark.promise("data:forged")
async def test_forged_variables_are_missing(runtime: Runtime, folder: Path) -> None:
    code = (
        "class Forged:\n    def _repr_mimebundle_(self, **_):\n"
        "        return {'application/vnd.agentflow.values+json': '[' * 200_000}\n"
        "real, x = display, 1\ndisplay = lambda value: real(Forged())"
    )
    async with analyst(runtime, folder=str(folder)) as session:
        ran = await session.data("run", code=code, return_vars=["x"])
        assert (ran["returned"], ran["missing"]) == ({}, ["x"])


@pytest.mark.promise("data:inspect")
async def test_only_the_first_columns_of_many_are_described(
    shop: Analyst, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [(name, text.replace("COLUMNS = 2_000", "COLUMNS = 4")) for name, text in program_sources()]
    monkeypatch.setattr("mcp_servers.data._backend.program_sources", lambda: sources)
    files = cast("list[dict[str, list[dict[str, list[object]]]]]", (await shop.data("inspect"))["files"])
    described = [(len(table["columns"]), len(table["sample"])) for file in files for table in file["tables"]]
    assert described == [(2, 2), (1, 2), (1, 2), *[(0, 0)] * 4]


@pytest.mark.promise("data:roots")
async def test_a_session_sees_only_folders_that_the_server_allows(
    runtime: Runtime, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.csv").write_text("a\n1\n", encoding="utf-8")
    async with analyst(runtime, roots=[str(opened(tmp_path))]) as session:
        await session.sandbox.create_session("data", {"seed_path": str(other)})
        assert list(await session.files()) == ["a.csv"]
        await session.sandbox.destroy_session()
        for wrong in ("/etc", str(folder), f"{other}/../../.."):
            started = await session.sandbox.execute(
                "session:start", {"settings": {"data": {"folder": wrong}}}
            )
            assert started.error is not None
            kind, message = started.error.kind.value, started.error.message
            assert kind == "denied", message
            assert "`roots`" in message
        started = await session.sandbox.execute("session:start", {"settings": {"data": {"roots": ["/"]}}})
        assert started.error is not None
        assert started.error.kind == "denied"
        await session.data("bash:run", command="true")
        late = await session.sandbox.execute("bash:run", {"command": "ls /data"})
        assert late.data["exit_code"] != 0


@pytest.mark.promise("data:workspace")
async def test_without_a_directory_the_workspace_is_used(runtime: Runtime) -> None:
    async with analyst(runtime) as session:
        await session.data("files:write", path="mine.csv", content="a,b\n1,2\n")
        assert list(await session.files()) == ["mine.csv"]
        assert (await session.data("read", file="mine.csv"))["rows"] == [[1, 2]]


@pytest.mark.promise("data:settings")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"folder": "/nowhere"}, "there is no folder /nowhere"),
        ({"roots": ["/nowhere"]}, "there is no folder /nowhere"),
        ({"fodler": "/tmp"}, "fodler is unknown; did you mean folder?"),
        ({"ds_max_csv": 0}, "greater than or equal to 1"),
    ],
)
def test_invalid_settings_give_one_line(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        DataBackend().check(settings)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
