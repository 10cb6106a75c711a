"""The evaluator behaves like a notebook, whatever its code does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtimes.process.evaluator_session import ROOT, EvaluatorSession


@pytest.fixture
def session(tmp_path: Path) -> Iterator[EvaluatorSession]:
    with EvaluatorSession(tmp_path) as running:
        yield running


@pytest.mark.promise("code:state:kept")
def test_names_persist_between_runs(session: EvaluatorSession) -> None:
    session.run("import math\nx = 41\ndef twice(n):\n    return n * 2")
    assert session.run("twice(x) + math.floor(0.5)").value == "82"


@pytest.mark.promise("code:value:last-expression")
def test_the_last_expression_is_shown_and_kept_as_underscore(session: EvaluatorSession) -> None:
    assert session.run("x = 41\nx + 1").value == "42"
    assert session.run("_ * 2").value == "84"


@pytest.mark.parametrize(
    "source", ["x = 1", "None", "1;", "1 ; # nothing to see", "(\n1\n);", "", "# only a comment", "print()"]
)
def test_nothing_is_shown_without_a_last_value(session: EvaluatorSession, source: str) -> None:
    assert session.run(source).value is None


@pytest.mark.parametrize("source", ["'ä;'", "1 # not; silent", "(\n1\n)", "';'"])
def test_a_semicolon_inside_does_not_hide_the_value(session: EvaluatorSession, source: str) -> None:
    assert session.run(source).value is not None


@pytest.mark.promise("code:value:bounded")
def test_a_huge_value_is_truncated_with_a_note(session: EvaluatorSession) -> None:
    text = session.run("'x' * 50_000_000").value or ""
    assert len(text) < 1_100_000
    assert text.endswith("… 49000000 more")
    assert (session.run("list(range(10**6))").value or "").endswith("… 980000 more")
    nested = session.run("[list(range(10**5)) for _ in range(10)]").value or ""
    assert "characters left out" in nested


def test_a_value_is_always_valid_text(session: EvaluatorSession) -> None:
    made = session.run(
        "class Odd:\n    def __repr__(self):\n        return 'half \\ud800 of a pair'\nOdd()"
    ).value
    assert made == "half \\ud800 of a pair"


def test_printed_text_goes_to_standard_output(session: EvaluatorSession) -> None:
    assert session.run("print('héllo')\n1").stdout == "héllo\n"


@pytest.mark.promise("code:await:top-level")
def test_top_level_await_runs_the_whole_cell_in_one_loop(session: EvaluatorSession) -> None:
    ran = session.run(
        "import asyncio\n"
        "async def half(n):\n    await asyncio.sleep(0)\n    return n / 2\n"
        "task = asyncio.create_task(half(3))\n"
        "await task"
    )
    assert ran.value == "1.5"
    assert session.run("[n async for n in aiter_()]").failure["type"] == "NameError"
    assert session.run("import asyncio\nasyncio.run(half(4))").value == "2.0"


@pytest.mark.promise("code:error:traceback")
def test_a_traceback_shows_the_users_lines_and_no_frame_of_the_runtime(session: EvaluatorSession) -> None:
    session.run("def divide(a, b):\n    return a / b")
    error = session.run("import asyncio\nawait asyncio.sleep(0)\ndivide(1, 0)").failure
    assert (error["type"], error["message"]) == ("ZeroDivisionError", "division by zero")
    assert error["traceback"].splitlines() == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 3, in <module>',
        "    divide(1, 0)",
        '  File "<cell 1>", line 2, in divide',
        "    return a / b",
        "            ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


def test_frames_of_the_runtime_between_user_frames_are_omitted(session: EvaluatorSession) -> None:
    source = "class Bad:\n    def __repr__(self):\n        raise ValueError('no')\ndisplay(Bad())"
    error = session.run(source).failure
    assert error["traceback"].count("File ") == 2
    assert "_displays.py" not in error["traceback"]


def test_chained_and_grouped_exceptions_are_reported_completely(session: EvaluatorSession) -> None:
    source = "try:\n    {}['k']\nexcept KeyError as cause:\n    raise ExceptionGroup('both', [ValueError(1)]) from cause"
    traceback = session.run(source).failure["traceback"]
    assert "KeyError: 'k'" in traceback
    assert "direct cause" in traceback
    assert "ValueError: 1" in traceback


@pytest.mark.parametrize(
    "source", ["x = = 1", "def f(:", "return 1", "  x = 1", "'\\N{nothing}'", "a\0b", "(" * 300]
)
def test_invalid_source_is_an_error_and_the_session_continues(session: EvaluatorSession, source: str) -> None:
    error = session.run(source).failure
    assert error["type"] in {"SyntaxError", "IndentationError", "ValueError"}
    assert "_evaluate.py" not in error["traceback"]
    assert session.run("1 + 1").value == "2"


def test_a_syntax_error_points_at_its_position(session: EvaluatorSession) -> None:
    lines = session.run("x = 1\ny = = 2").failure["traceback"].splitlines()
    assert lines[:3] == ['  File "<cell 1>", line 2', "    y = = 2", "        ^"]


@pytest.mark.promise("code:exit:goes-on")
def test_exit_ends_the_run_but_not_the_session(session: EvaluatorSession) -> None:
    session.run("kept = 1")
    assert session.run("exit()\nkept = 2").error is None
    assert session.run("import sys; sys.exit(0)").error is None
    assert session.run("quit(3)").failure["type"] == "SystemExit"
    assert session.run("raise SystemExit('why')").failure["message"] == "why"
    assert session.run("kept").value == "1"


def test_an_interrupt_ends_the_run_but_not_the_session(session: EvaluatorSession, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    subprocess.run(["mkfifo", str(ready)], check=True)
    session.run("kept = 1")
    session.send(f"open({str(ready)!r}, 'w').close()\nwhile True:\n    pass")
    ready.read_bytes()
    os.kill(session.pid, signal.SIGINT)
    assert session.receive().failure["type"] == "KeyboardInterrupt"
    assert session.run("kept").value == "1"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def f():\n    return f()\nf()", "RecursionError"),
        ("class E(Exception):\n    def __str__(self):\n        1 / 0\nraise E", "E"),
        ("class E(BaseException):\n    pass\nraise E", "E"),
        ("class R:\n    def __repr__(self):\n        1 / 0\nR()", "ZeroDivisionError"),
        ("raise ValueError('\\ud800')", "ValueError"),
        ("raise ValueError('x' * 10**7)", "ValueError"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("x = []\nx.append(x)\nfor _ in range(10**5):\n    x = [x]\nx", "RecursionError"),
    ],
)
def test_unusual_failures_are_reported_within_bounds(
    session: EvaluatorSession, source: str, kind: str
) -> None:
    error = session.run(source).failure
    assert error["type"] == kind
    assert len(error["traceback"]) + len(error["message"]) < 100_000
    error["traceback"].encode()
    assert session.run("1 + 1").value == "2"


@pytest.mark.promise("code:functions:source")
def test_functions_of_cells_can_be_pickled_and_inspected(session: EvaluatorSession) -> None:
    session.run("class Point:\n    x = 1\ndef f(a):\n    return a + 1")
    assert session.run("import pickle\npickle.loads(pickle.dumps(f))(1)").value == "2"
    assert session.run("pickle.loads(pickle.dumps(Point())).x").value == "1"
    assert session.run("import inspect\ninspect.getsource(f)").value == repr("def f(a):\n    return a + 1")
    assert session.run("__name__").value == "'__main__'"


def test_a_future_import_applies_to_later_runs(session: EvaluatorSession) -> None:
    session.run("from __future__ import annotations")
    assert session.run("def f(a: nowhere): ...\nf.__annotations__").value == "{'a': 'nowhere'}"


@pytest.mark.promise("code:hostile:survives")
def test_a_session_survives_code_that_replaces_builtins(session: EvaluatorSession) -> None:
    session.run("kept = 1")
    session.run(
        "import builtins\nfor name in ('len', 'isinstance', 'str', 'repr', 'dict', 'open'):\n    setattr(builtins, name, None)"
    )
    assert session.run("kept + 1").value == "2"
    assert session.run("1 / 0").failure["type"] == "ZeroDivisionError"
    session.run(
        "import json, sys, traceback, linecache\njson.dumps = traceback.TracebackException = None\nlinecache.cache.clear()"
    )
    assert session.run("nowhere").failure["type"] == "NameError"
    session.run("sys.stdout.close()\nsys.stderr = None\nsys.modules['__main__'] = None")
    assert session.run("print('still here', flush=True)\nkept").stdout == "still here\n"


def test_importing_the_evaluator_loads_no_heavy_library() -> None:
    program = (
        "import sys; from runtimes.process.inside._evaluate import PythonEvaluator; PythonEvaluator().run('1', 'cell');"
        "print(sorted({n.partition('.')[0] for n in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['__main__', '_agentflow_session', 'runtimes']\n"


def test_modules_of_the_working_directory_can_be_imported(session: EvaluatorSession, tmp_path: Path) -> None:
    (tmp_path / "own_module.py").write_text("ANSWER = 42\n")
    assert session.run("import own_module\nown_module.ANSWER").value == "42"


def test_an_interrupted_await_is_reported_without_frames_of_the_event_loop(session: EvaluatorSession) -> None:
    source = (
        "import asyncio, os, signal\n"
        "asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGINT)\n"
        "await asyncio.sleep(1000)"
    )
    error = session.run(source).failure
    assert error["type"] == "KeyboardInterrupt"
    assert "    await asyncio.sleep(1000)\n" in error["traceback"]
    assert "runners.py" not in error["traceback"]
    assert session.run("1").value == "1"


@pytest.mark.promise("code:forked:silent")
def test_a_process_forked_by_user_code_never_replies_for_the_session(session: EvaluatorSession) -> None:
    session.run("import os")
    ran = session.run("pid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\npid != 0")
    assert ran.value == "True"
    assert session.run("'the next answer'").value == "'the next answer'"
    status = session.run("pid = os.fork()\n1 / bool(pid)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])")
    assert status.value == "1"


def test_lines_are_numbered_as_python_numbers_them(session: EvaluatorSession) -> None:
    source = "text = 'a\\u2028b\x0cc'\r\nother = '\x0b'\r\n1 / 0;"
    error = session.run(source).failure
    assert '  File "<cell 1>", line 3, in <module>\n    1 / 0;\n' in error["traceback"]
    assert session.run("x = '\u2028\x0c'\nx;").value is None
