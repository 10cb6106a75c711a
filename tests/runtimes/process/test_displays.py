"""Rich output of a run besides text."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.runtimes.process.evaluator_session import EvaluatorSession, Ran, ShownOutput

TABLE = "application/vnd.agentflow.table+json"
VARIABLES = "application/vnd.agentflow.variables+json"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[EvaluatorSession]:
    with EvaluatorSession(tmp_path) as running:
        yield running


def table(ran: Ran) -> dict[str, object]:
    (shown,) = ran.displays
    assert shown.mime == TABLE
    return cast("dict[str, object]", json.loads(shown.data))


def assert_png(shown: ShownOutput) -> None:
    data = shown.data
    assert (shown.mime, data[:4]) == ("image/png", b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 100
    assert height > 100


@pytest.mark.promise("code:plots:images")
def test_open_figures_are_shown_once_and_closed(session: EvaluatorSession) -> None:
    ran = session.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure()\nplt.plot([3, 4])")
    assert len(ran.displays) == 2
    for shown in ran.displays:
        assert_png(shown)
    assert session.run("plt.get_fignums()").value == "[]"
    assert session.run("plt.get_fignums()").displays == []


def test_show_displays_open_figures_and_the_next_plot_starts_anew(session: EvaluatorSession) -> None:
    session.run("import matplotlib.pyplot as plt")
    ran = session.run("plt.plot([1]); plt.show(); plt.plot([2]); axes = plt.gca(); plt.show(block=False)")
    assert len(ran.displays) == 2
    assert session.run("len(axes.lines)").value == "1"


def test_a_figure_as_last_expression_is_shown_once(session: EvaluatorSession) -> None:
    ran = session.run("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.bar([1], [2])\nfig")
    assert ran.value == "<Figure size 640x480 with 1 Axes>"
    (shown,) = ran.displays
    assert_png(shown)


def test_figures_of_a_run_that_failed_are_shown_too(session: EvaluatorSession) -> None:
    ran = session.run("import matplotlib.pyplot as plt\nplt.plot([1])\n1 / 0")
    assert ran.failure["type"] == "ZeroDivisionError"
    assert_png(ran.displays[0])


def test_a_figure_that_cannot_be_drawn_is_an_error_of_the_run(session: EvaluatorSession) -> None:
    ran = session.run("import matplotlib.pyplot as plt\nplt.title(r'$\\nothing$')\n1")
    assert ran.failure["type"] == "ValueError"
    assert session.run("plt.get_fignums()").value == "[]"


@pytest.mark.promise("code:tables:structured")
def test_a_data_frame_is_a_structured_table(session: EvaluatorSession) -> None:
    ran = session.run(
        "import pandas as pd\n"
        "df = pd.DataFrame({'n': [1, 2], 'x': [0.5, float('nan')], 't': ['a', None],"
        " 'd': pd.to_datetime(['2026-01-02', None]), 'o': [{'k': (1, 2)}, b'\\x00\\xff']})\ndf"
    )
    assert "0.5" in (ran.value or "")
    assert table(ran) == {
        "columns": [
            {"name": "n", "dtype": "int64"},
            {"name": "x", "dtype": "float64"},
            {"name": "t", "dtype": "str"},
            {"name": "d", "dtype": "datetime64[us]"},
            {"name": "o", "dtype": "object"},
        ],
        "rows": [[1, 0.5, "a", "2026-01-02T00:00:00", {"k": [1, 2]}], [2, None, None, None, "00 ff"]],
        "total_rows": 2,
        "total_columns": 5,
    }


def test_a_labelled_index_comes_first(session: EvaluatorSession) -> None:
    session.run("import pandas as pd\ns = pd.Series([1, 2], index=['a', 'b'], name='n')")
    labelled = table(session.run("s"))
    assert labelled["columns"] == [{"name": "index", "dtype": "str"}, {"name": "n", "dtype": "int64"}]
    assert labelled["rows"] == [["a", 1], ["b", 2]]
    grouped = table(
        session.run("pd.DataFrame({'k': [1, 1], 'j': [2, 3], 'v': [4, 5]}).groupby(['k', 'j']).sum()")
    )
    assert grouped["rows"] == [[1, 2, 4], [1, 3, 5]]


def test_a_big_table_is_bounded_and_reports_its_size(session: EvaluatorSession) -> None:
    big = table(session.run("import pandas as pd\npd.DataFrame({i: range(10**5) for i in range(300)})"))
    rows = cast("list[list[int]]", big["rows"])
    assert (len(rows), len(rows[0])) == (200, 200)
    assert (big["total_rows"], big["total_columns"]) == (100_000, 300)


def test_arrow_tables_and_duckdb_relations_are_tables(session: EvaluatorSession) -> None:
    arrow = table(session.run("import pyarrow as pa\npa.table({'a': [1, None], 'b': ['x', 'y']})"))
    assert arrow["rows"] == [[1, "x"], [None, "y"]]
    relation = table(session.run("import duckdb\nduckdb.sql('SELECT range AS n FROM range(1000)')"))
    assert relation["columns"] == [{"name": "n", "dtype": "BIGINT"}]
    assert relation["total_rows"] is None
    assert len(cast("list[object]", relation["rows"])) == 200


def test_an_object_is_shown_in_its_richest_form(session: EvaluatorSession) -> None:
    session.run(
        "class Rich:\n"
        "    def _repr_html_(self): return '<b>é</b>'\n"
        "    def _repr_svg_(self): return None\n"
        "    def _repr_png_(self): raise ValueError\n"
        "class Bundle:\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'text/plain': 'no', 'image/png': 'AAEC', 'application/json': {'a': 1}}, {}"
    )
    (shown,) = session.run("Rich()").displays
    assert (shown.mime, shown.data.decode()) == ("text/html", "<b>é</b>")
    bundle = {shown.mime: shown.data for shown in session.run("Bundle()").displays}
    assert bundle == {"image/png": b"\x00\x01\x02", "application/json": b'{"a": 1}'}
    assert session.run("Rich").displays == []


def test_pil_images_are_shown_as_images(session: EvaluatorSession) -> None:
    (shown,) = session.run("from PIL import Image\nImage.new('RGB', (200, 200))").displays
    assert_png(shown)


def test_display_shows_any_value_in_order(session: EvaluatorSession) -> None:
    ran = session.run("import pandas as pd\ndisplay('text', pd.DataFrame({'a': [1]}), display_id=True)")
    assert [shown.mime for shown in ran.displays] == ["text/plain", TABLE]


def test_output_over_the_display_limit_is_reported(session: EvaluatorSession) -> None:
    session.run("class Big:\n    def _repr_html_(self): return 'x' * 30_000_000")
    (shown,) = session.run("Big()").displays
    assert shown.data == b"(text/html of 30000000 bytes left out: too much to show)"
    assert len(session.run("for i in range(1000): display(i)").displays) == 64


def test_variables_are_listed_without_running_their_code(session: EvaluatorSession) -> None:
    session.run(
        "import math, numpy as np, pandas as pd\n"
        "class Loud:\n    def __repr__(self): raise SystemError\n"
        "a, _hidden, text = 1, 2, 'x' * 1000\nlst = [1, 2, 3]\nloud = Loud()\n"
        "arr = np.zeros((3, 4))\ndf = pd.DataFrame({'c': [1]})\ndef f(x, *, y=1): ..."
    )
    (shown,) = session.run("import _agentflow_session\n_agentflow_session.show_variables()").displays
    assert shown.mime == VARIABLES
    listed = cast("list[dict[str, str]]", json.loads(shown.data))
    described = {entry["name"]: (entry["type"], entry["summary"]) for entry in listed}
    assert "_hidden" not in described
    assert list(described) == sorted(described)
    assert described["a"] == ("int", "1")
    assert described["lst"] == ("list", "3 items: 1, 2, 3")
    assert described["loud"] == ("__main__.Loud", "")
    assert described["arr"] == ("numpy.ndarray", "shape (3, 4), float64")
    assert described["df"][1] == "1 rows × 1 columns: c"
    assert described["f"] == ("function", "(x, *, y=1)")
    assert len(described["text"][1]) < 400


@pytest.mark.promise("code:sql:files-and-frames")
def test_sql_reads_files_and_data_frames(session: EvaluatorSession, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("region,amount\nnorth,1.5\nsouth,2.5\nnorth,4\n")
    session.run(
        "import pandas as pd, _agentflow_session as tools\nfactors = pd.DataFrame({'region': ['north'], 'f': [10]})"
    )
    query = "SELECT region, sum(amount * f) AS s FROM 'sales.csv' JOIN factors USING (region) GROUP BY region"
    assert table(session.run(f"tools.sql({query!r}, 10);"))["rows"] == [["north", 55.0]]
    bounded = table(session.run("tools.sql('SELECT * FROM range(1000)', 3)"))
    assert (len(cast("list[object]", bounded["rows"])), bounded["total_rows"]) == (3, None)
    assert session.run("tools.sql('SELEC 1', 10)").failure["type"] == "ParserException"
