"""The code tools, on the real process runtime."""

import tracemalloc
from typing import cast

import anyio
import pytest

from mcp_servers import ResourceLink
from tests.mcp_servers.live import Live, images


@pytest.mark.promise("code:run")
async def test_code_keeps_its_state_and_shows_its_last_value(live: Live) -> None:
    data = await live.data(
        "code_run", code="import sys\nx = 41\nprint('ä')\nprint('e', file=sys.stderr)\nx + 1"
    )
    assert (data["value"], data["stdout"], data["stderr"], data["error"]) == ("42", "ä\n", "e\n", None)
    assert await live.python("x") == "41"


@pytest.mark.promise("code:run:raises")
async def test_code_that_raises_is_not_a_failed_call(live: Live) -> None:
    data = await live.data("code_run", code="print('before')\n1 / 0")
    error = cast("dict[str, str]", data["error"])
    assert (error["type"], error["message"]) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in error["traceback"]
    assert data["stdout"] == "before\n"


@pytest.mark.promise("code:timeout:partial")
async def test_code_that_times_out_is_stopped_and_its_output_is_returned(live: Live) -> None:
    result = await live.call("code_run", code="print('begun', flush=True)\nwhile True: pass", timeout=3)
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert result.data["stdout"] == "begun\n"
    assert await live.python("1 + 1") == "2"


async def test_an_interpreter_that_dies_is_reported_and_replaced(live: Live) -> None:
    await live.python("x = 1")
    data = await live.data("code_run", code="import os\nos._exit(7)")
    assert cast("dict[str, str]", data["error"])["type"] == "SessionEnded"
    assert data["state_lost"] is True
    lost = await live.data("code_run", code="x")
    assert cast("dict[str, str]", lost["error"])["type"] == "NameError"


async def test_exit_keeps_the_session(live: Live) -> None:
    await live.python("x = 1\nexit()")
    assert await live.python("x") == "1"


@pytest.mark.promise("code:plots:content")
async def test_plots_are_images_beside_the_data(live: Live) -> None:
    result = await live.call("code_run", code="import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert result.ok, result
    (image,) = images(result)
    assert image.data.startswith(b"\x89PNG")
    (picture,) = cast("list[dict[str, object]]", result.data["images"])
    assert (picture["mime"], picture["size"]) == ("image/png", len(image.data))
    kept = live.table.sessions.resource(str(picture["resource"]), "local")
    assert kept is not None
    assert kept.data == image.data


async def test_many_plots_are_kept_though_only_some_are_shown(live: Live) -> None:
    code = (
        "import matplotlib.pyplot as plt\nfor n in range(12):\n    plt.figure(figsize=(1, 1)); plt.plot([n])"
    )
    result = await live.call("code_run", code=code)
    assert len(images(result)) == 10
    assert len([part for part in result.parts if isinstance(part, ResourceLink)]) == 2
    assert len(cast("list[object]", result.data["images"])) == 12


@pytest.mark.promise("code:tables:data")
async def test_data_frames_are_structured_tables(live: Live) -> None:
    data = await live.data(
        "code_run", code="import pandas as pd\npd.DataFrame({'ä': [1, 2], 'b': ['x', None]})"
    )
    (table,) = cast("list[dict[str, object]]", data["tables"])
    assert table["columns"] == [{"name": "ä", "dtype": "int64"}, {"name": "b", "dtype": "str"}]
    assert table["rows"] == [[1, "x"], [2, None]]
    assert "ä" in str(data["value"])


async def test_other_rich_output_is_text(live: Live) -> None:
    code = "class Rich:\n    def _repr_html_(self): return '<b>ä</b>'\nRich()"
    data = await live.data("code_run", code=code)
    assert data["displays"] == [{"mime": "text/html", "text": "<b>ä</b>"}]


@pytest.mark.promise("code:tables:bounded")
async def test_forged_displays_are_text_and_not_tables(live: Live) -> None:
    code = (
        "class Forged:\n    def _repr_mimebundle_(self, **_):\n"
        "        return {'application/vnd.agentflow.table+json': {'columns': 1}}\nForged()"
    )
    data = await live.data("code_run", code=code)
    assert data["tables"] == []
    assert len(cast("list[object]", data["displays"])) == 1


TABLE = '{"columns": [], "rows": [%s], "total_rows": 1, "total_columns": 0}'


@pytest.mark.promise("code:tables:bounded")
async def test_tables_of_one_run_are_bounded_and_others_are_text(live: Live) -> None:
    bomb, large = "'[],' * 7_000_000 + '[]'", "'[\"' + 'x' * 1_500_000 + '\"]'"
    for rows, shown, tables in ((bomb, 1, 0), ("'[],' * 1_000_000 + '[]'", 1, 0), (large, 4, 2)):
        code = (
            "class Forged:\n    def _repr_mimebundle_(self, **_):\n"
            f"        return {{'application/vnd.agentflow.table+json': {TABLE!r} % ({rows})}}\n"
            f"for _ in range({shown}): display(Forged())"
        )
        tracemalloc.start()
        try:
            data = await live.data("code_run", code=code)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        counts = [len(cast("list[object]", data[name])) for name in ("tables", "displays")]
        assert counts == [tables, shown - tables], rows
        assert peak < 192 * 1024 * 1024, (rows, peak >> 20)


@pytest.mark.promise("code:sql")
async def test_sql_joins_files_of_the_workspace_and_data_frames(live: Live) -> None:
    await live.data(
        "files_write", path="data/sales.csv", content="region,amount\nnorth,1.5\nsouth,2\nnorth,4\n"
    )
    await live.bash('echo \'[{"region": "north", "boss": "Ärmel"}]\' > data/bosses.json')
    query = "SELECT boss, sum(amount) AS total FROM 'data/sales.csv' JOIN 'data/bosses.json' USING (region) GROUP BY boss"
    data = await live.data("code_sql", query=query)
    assert data["rows"] == [["Ärmel", 5.5]]
    assert data["total_rows"] == 1
    await live.python("import pandas as pd\nframe = pd.DataFrame({'n': range(1000)})")
    assert (await live.data("code_sql", query="SELECT sum(n) AS s FROM frame"))["rows"] == [[499500]]
    bounded = await live.data("code_sql", query="SELECT * FROM frame", limit=3)
    assert (bounded["rows"], bounded["total_rows"]) == ([[0], [1], [2]], None)
    await live.data("code_sql", query="COPY frame TO 'frame.parquet'")
    assert (await live.data("code_sql", query="SELECT max(n) FROM 'frame.parquet'"))["rows"] == [[999]]


async def test_sql_that_fails_is_not_a_failed_call(live: Live) -> None:
    data = await live.data("code_sql", query="SELECT * FROM 'nowhere.csv'")
    assert cast("dict[str, str]", data["error"])["type"] == "IOException"
    await live.python("x = 1")
    data = await live.data("code_sql", query='SELEC "quo\'ted"\n')
    assert cast("dict[str, str]", data["error"])["type"] == "ParserException"
    assert await live.python("x") == "1"


@pytest.mark.promise("code:variables")
async def test_variables_are_listed_by_name(live: Live) -> None:
    await live.python("import pandas as pd\nb = [1, 2]\na = 'ä'\nframe = pd.DataFrame({'c': [1]})")
    variables = cast("list[dict[str, str]]", (await live.data("code_variables"))["variables"])
    described = {entry["name"]: (entry["type"], entry["summary"]) for entry in variables}
    assert described["a"] == ("str", "'ä'")
    assert described["b"] == ("list", "2 items: 1, 2")
    assert described["frame"][1] == "1 rows × 1 columns: c"


@pytest.mark.promise("code:fork")
async def test_a_fork_includes_variables_and_is_independent(live: Live) -> None:
    await live.python("x = [1]\ndef f():\n    return x")
    fork = await live.fork()
    await fork.python("x.append(2)")
    assert await live.python("f()") == "[1]"
    assert await fork.python("f()") == "[1, 2]"


async def test_a_fork_works_after_plots_and_sql(live: Live) -> None:
    await live.call("code_run", code="import matplotlib.pyplot as plt\nplt.plot([1])")
    await live.data("code_sql", query="SELECT 1")
    await live.data("code_run", code="import asyncio\nawait asyncio.sleep(0)")
    with anyio.fail_after(60):
        fork = await live.fork()
        assert len(images(await fork.call("code_run", code="plt.plot([1]); plt.show()"))) == 1
        assert (await fork.data("code_sql", query="SELECT 2"))["rows"] == [[2]]


@pytest.mark.promise("code:output:bounded")
async def test_long_values_and_output_are_truncated_and_kept_whole(live: Live) -> None:
    result = await live.call("code_run", code="print('x' * 50_000)\n'y' * 200_000")
    assert result.ok, result
    assert len(str(result.data["stdout"])) < 31_000
    assert len(str(result.data["value"])) < 31_000
    links = [part for part in result.parts if isinstance(part, ResourceLink)]
    assert {link.name: link.size for link in links} == {"stdout.txt": 50_001, "value.txt": 200_002}


async def test_unusual_text_is_preserved(live: Live) -> None:
    assert await live.python("'\\ud800 \\x00 \\U0001F600'") == "'\\ud800 \\x00 😀'"
    data = await live.data("code_run", code="import sys\nsys.stdout.buffer.write(b'\\xff\\x00a')\nNone")
    assert data["stdout"] == "�\0a"


async def test_an_await_that_times_out_is_reported_without_event_loop_frames(live: Live) -> None:
    result = await live.call("code_run", code="import asyncio\nawait asyncio.sleep(1000)", timeout=3)
    assert result.error is not None
    assert result.error.kind == "timeout"
    error = cast("dict[str, str]", result.data["error"])
    assert error["type"] == "KeyboardInterrupt"
    assert "site-packages" not in error["traceback"]
    assert ".py" not in error["traceback"]


@pytest.mark.promise("code:output:limit")
async def test_a_hundred_megabytes_of_output_are_stopped_and_the_session_continues(live: Live) -> None:
    await live.python("x = 1")
    result = await live.call("code_run", code="print('x' * 100_000_000)")
    assert result.error is not None
    assert result.error.kind == "output_limit"
    assert await live.python("x") == "1"


async def test_a_cancelled_call_leaves_a_session_that_works(live: Live) -> None:
    await live.python("x = 1")
    begun = anyio.Event()

    async def run() -> None:
        arguments = {"session": live.session, "code": "print('go', flush=True)\nwhile True: pass"}
        await live.table.call("code_run", arguments, progress=heard)

    def heard(done: float, total: float | None, message: str | None) -> None:
        begun.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await begun.wait()
            group.cancel_scope.cancel()
        assert await live.python("x") == "1"


async def test_modules_of_the_workspace_can_be_imported(live: Live) -> None:
    await live.data("files_write", path="own_module.py", content="ANSWER = 42\n")
    assert await live.python("import own_module\nown_module.ANSWER") == "42"


async def test_a_query_that_times_out_is_stopped_and_the_session_continues(live: Live) -> None:
    await live.python("x = 1")
    query = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    result = await live.call("code_sql", query=query, timeout=3)
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert await live.python("x") == "1"


async def test_a_process_forked_by_code_does_not_disturb_the_session(live: Live) -> None:
    assert await live.python("import os\nos.fork() > 0") == "True"
    assert await live.python("'next'") == "'next'"


@pytest.mark.promise("code:data_libraries")
async def test_libraries_of_the_data_extra_are_importable(live: Live) -> None:
    code = "import requests, scipy, sklearn\nscipy.__name__ + sklearn.__name__"
    assert await live.python(code) == "'scipysklearn'"
