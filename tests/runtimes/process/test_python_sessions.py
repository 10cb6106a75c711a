"""Python sessions: persistent state, output, and isolation of the server from the code inside."""

from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtimes import Instance, Outcome, RunResult, pack_message
from runtimes.process import ProcessRuntime
from tests.runtimes.process.hearing import Ear


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(preload=("numpy", "pandas"), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> AsyncIterator[Instance]:
    instance = await runtime.start()
    yield instance
    await instance.stop()


async def python(instance: Instance, source: str) -> RunResult:
    return await instance.run("python", source, timeout=60)


async def value(instance: Instance, source: str) -> str | None:
    result = await python(instance, source)
    assert (result.outcome, result.error) == (Outcome.OK, None), result
    return result.value


# -- results of a run -----------------------------------------------------------------------------------


@pytest.mark.promise("instances:python:state")
async def test_names_persist_between_runs(instance: Instance) -> None:
    await value(instance, "import math\nx = 41\ndef up(n):\n    return n + 1\nclass Box:\n    full = True")
    assert await value(instance, "up(x), math.floor(2.5), Box().full") == "(42, 2, True)"
    await python(instance, "x = 'changed'\nraise ValueError")
    assert await value(instance, "x") == "'changed'"


@pytest.mark.promise("instances:python:state")
async def test_the_working_directory_persists_and_is_reported(instance: Instance) -> None:
    result = await python(instance, "import os; os.makedirs('deep'); os.chdir('deep')")
    assert result.cwd == "/home/agent/deep"
    assert await value(instance, "os.getcwd()") == "'/home/agent/deep'"
    gone = await python(instance, "os.rmdir('/home/agent/deep')")
    assert (gone.error, gone.cwd) == (None, "")


@pytest.mark.promise("instances:python:value")
@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("1 + 1", "2"),
        ("None", None),
        ("x = 1", None),
        ("1;", None),
        ("", None),
        ("# note", None),
        ("'é\\n'", "'é\\n'"),
    ],
)
async def test_the_last_expression_is_the_value(instance: Instance, source: str, shown: str | None) -> None:
    assert await value(instance, source) == shown


@pytest.mark.promise("instances:python:value")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
        | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
async def test_a_value_is_reported_as_its_repr(instance: Instance, data: object) -> None:
    wanted = None if data is None else repr(data).encode("utf-8", "backslashreplace").decode()
    assert await value(instance, ascii(data)) == wanted


@pytest.mark.promise("instances:python:value")
async def test_a_huge_value_is_truncated_inside(instance: Instance) -> None:
    for source in (
        "'x' * 50_000_000",
        "list(range(2_000_000))",
        "type('R', (), {'__repr__': lambda s: 'y' * 9**8})()",
    ):
        shown = await value(instance, source)
        assert shown is not None
        assert 100_000 < len(shown) < 2_000_000


@pytest.mark.promise("instances:python:output")
async def test_any_bytes_are_returned_as_text(instance: Instance) -> None:
    result = await python(
        instance,
        "import os, sys\nprint('é', end='', flush=True)\nos.write(1, b'\\xff')\nprint('err', file=sys.stderr)",
    )
    assert (result.stdout, result.stderr) == ("é\ufffd", "err\n")


@pytest.mark.promise("instances:python:output")
async def test_output_is_streamed_during_the_run(instance: Instance) -> None:
    ear = Ear(b"step 2")
    async with anyio.create_task_group() as tasks:
        source = "import time\nfor n in range(3): print('step', n, flush=True)\ntime.sleep(100)"
        tasks.start_soon(partial(instance.run, "python", source, on_output=ear))
        await ear.heard.wait()
        assert await instance.interrupt("python")
    assert ear.output.startswith(b"step 0\nstep 1\nstep 2\n")


@pytest.mark.promise("instances:python:output")
async def test_output_of_threads_and_children_is_received(instance: Instance) -> None:
    source = "import subprocess, threading\nt = threading.Thread(target=print, args=['thread'])\nt.start(); t.join()\n"
    result = await python(
        instance, source + "subprocess.run(['sh', '-c', 'echo child; echo bad >&2; exit 3']).returncode"
    )
    assert (result.stdout, result.stderr, result.value) == ("thread\nchild\n", "bad\n", "3")


@pytest.mark.promise("instances:python:error")
async def test_an_exception_is_reported_with_the_users_lines(instance: Instance) -> None:
    await python(instance, "def divide(a, b):\n    return a / b")
    error = (await python(instance, "divide(1, 0)")).error
    assert error is not None
    assert (error.type, error.message) == ("ZeroDivisionError", "division by zero")
    assert "divide(1, 0)" in error.traceback
    assert "return a / b" in error.traceback
    assert "runtimes" not in error.traceback


@pytest.mark.promise("instances:python:error")
@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def f(:", "SyntaxError"),
        ("  x", "IndentationError"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise BaseException", "BaseException"),
        ("input()", "EOFError"),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E", "E"),
        ("s = '\ud800'", "UnicodeEncodeError"),
        ("import missing_module", "ModuleNotFoundError"),
    ],
)
async def test_the_session_continues_after_any_failure_of_user_code(
    instance: Instance, source: str, kind: str
) -> None:
    await value(instance, "kept = 1")
    result = await python(instance, source)
    assert result.outcome is Outcome.OK
    assert result.error is not None
    assert result.error.type == kind
    assert not result.state_lost
    assert await value(instance, "kept") == "1"


@pytest.mark.promise("instances:python:error")
async def test_exit_ends_the_run_and_keeps_the_session(instance: Instance) -> None:
    result = await python(instance, "kept = 1\nexit()\nkept = 2")
    assert (result.outcome, result.error, result.state_lost) == (Outcome.OK, None, False)
    assert await value(instance, "kept") == "1"


@pytest.mark.promise("instances:python:await")
async def test_code_can_await(instance: Instance) -> None:
    await value(instance, "import asyncio\nasync def slow(n):\n    await asyncio.sleep(0)\n    return n * 2")
    assert await value(instance, "await slow(21)") == "42"
    async_for = "[n async for n in (await asyncio.sleep(0, k) for k in range(3))]"
    assert await value(instance, async_for) == "[0, 1, 2]"


@pytest.mark.promise("instances:python:libraries")
async def test_a_table_and_a_plot_are_shown(instance: Instance) -> None:
    table = await python(instance, "import pandas as pd\npd.DataFrame({'a': [1, 2]})")
    assert [display.mime for display in table.displays] == ["application/vnd.agentflow.table+json"]
    plot = await python(instance, "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()")
    assert [display.mime for display in plot.displays] == ["image/png"]
    assert plot.displays[0].data.startswith(b"\x89PNG")


@pytest.mark.promise("instances:python:libraries")
async def test_processes_can_be_started_from_code(instance: Instance) -> None:
    pool = "from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2) as pool:\n"
    assert await value(instance, f"{pool}    found = list(pool.map(abs, [-1, -2]))\nfound") == "[1, 2]"
    assert await value(instance, "import multiprocessing as m\nq = m.Queue()\nq.put(5)\nq.get()") == "5"


@pytest.mark.promise("instances:python:libraries")
async def test_classes_and_sources_of_cells_can_be_looked_up(instance: Instance) -> None:
    await value(instance, "class Point:\n    def __init__(self): self.x = 3\ndef f():\n    return 'source'")
    assert await value(instance, "import pickle; pickle.loads(pickle.dumps(Point())).x") == "3"
    assert await value(instance, "import inspect; inspect.getsource(f).strip()") == repr(
        "def f():\n    return 'source'"
    )


@pytest.mark.promise("instances:python:forked")
async def test_a_process_forked_by_user_code_never_replies_for_the_session(instance: Instance) -> None:
    result = await python(
        instance, "import os\nparent = os.getpid()\nos.fork()\nprint('once each', flush=True)\n'done'"
    )
    assert (result.value, result.stdout.count("once each") >= 1) == ("'done'", True)
    assert await value(instance, "os.getpid() == parent") == "True"
    assert [await value(instance, f"{n}") for n in range(5)] == ["0", "1", "2", "3", "4"]


# -- code that damages its own session --------------------------------------------------------------------


@pytest.mark.promise("instances:python:rude")
@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.stdout.close()",
        "import sys; del sys.stdout, sys.stderr",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.stdout = object()",
        "import json; json.dumps = json.loads = json.JSONEncoder = json.JSONDecoder = json.encoder = None",
        "import builtins\nfor n in ('print', 'len', 'compile', 'repr', 'isinstance', 'str', 'type'): setattr(builtins, n, None)",
        "import os; os.read = os.write = os._exit = os.getcwd = None",
        "import sys; sys.modules.clear()",
        "globals().clear()",
        "del __builtins__",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import sys; sys.settrace(lambda *a: 1 / 0); sys.setprofile(None)",
        "import sys; sys.excepthook = sys.displayhook = sys.unraisablehook = None",
        "import gc; gc.collect(); gc.disable()",
        "import threading; [threading.Thread(target=lambda: 1 / 0).start() for _ in range(5)]",
        "import atexit; atexit.register(lambda: 1 / 0)",
        "import linecache, traceback; linecache.cache.clear(); traceback.format_exc = None",
    ],
)
async def test_a_session_survives_replaced_parts_of_the_interpreter(instance: Instance, source: str) -> None:
    await python(instance, source)
    result = await python(instance, "import sys\nsys.settrace(None)\n6 * 7")
    assert (result.outcome, result.value, result.state_lost) == (Outcome.OK, "42", False), result
    failed = await python(instance, "1 / 0")
    assert failed.error is not None
    assert failed.error.type == "ZeroDivisionError"


@pytest.mark.promise("instances:python:ended")
@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import os; print('said', flush=True); os._exit(3)", 3),
        ("import os; print('said', flush=True); os.kill(os.getpid(), 9)", 137),
        ("import ctypes; print('said', flush=True); ctypes.string_at(0)", 139),
        ("import os; print('said', flush=True); os.fork() or os.pause() if 0 else os.abort()", 134),
    ],
    ids=["exit", "kill", "segmentation fault", "abort"],
)
async def test_the_end_of_a_session_is_reported_and_a_fresh_one_follows(
    instance: Instance, source: str, code: int
) -> None:
    await value(instance, "kept = 1")
    await instance.write("file", b"kept")
    result = await python(instance, source)
    assert (result.outcome, result.exit_code, result.state_lost) == (Outcome.ENDED, code, True)
    assert result.stdout.startswith("said\n")
    assert await value(instance, "'kept' in globals(), open('file').read()") == "(False, 'kept')"


@pytest.mark.promise("instances:python:ended")
async def test_the_end_of_a_session_with_living_children_is_still_reported(instance: Instance) -> None:
    source = "import os, time\nif os.fork() == 0:\n    time.sleep(100)\nos.kill(os.getpid(), 9)"
    assert (await python(instance, source)).outcome is Outcome.ENDED
    assert await value(instance, "1") == "1"


REPLY: dict[str, object] = {"run": 1, "cwd": "/", "value": 6, "error": None, "displays": []}
SEND = "import os\ndef send(b):\n    b = memoryview(len(b).to_bytes(4, 'big') + b)\n    while b:\n        b = b[os.write(3, b):]\n"


def forged(data: bytes = b"forged", **fields: object) -> str:
    """Return code that sends a reply to its own run."""
    return f"{SEND}send({pack_message({**REPLY, **fields}, data)!r})\n"


ATTACKS = {
    "closes it": "import os; os.close(3)",
    "replaces it": "import os; os.dup2(os.open('/dev/null', os.O_RDWR), 3)",
    "garbage": "import os; os.write(3, b'garbage' * 1000)",
    "a huge frame": "import os; os.write(3, bytes([255] * 8))",
    "a list": SEND + "send(b'[]')",
    "no JSON": SEND + "send(b'not json!\\n')",
    "no newline": SEND + "send(b'{}')",
    "deep JSON": SEND + "send(b'[' * 60_000 + b'\\n')",
    "a bomb": SEND + "send(b'{\"a\":[' + b'[],' * 40_000 + b'1],\"run\":1}\\n')",
    "a bomb of 95 MiB": SEND + "send(b'{\"a\":[' + b'[],' * 33_000_000 + b'1],\"run\":1}\\n')",
    "a long head": SEND + "send(b'{\"run\":1,\"value\":\"' + b'x' * 200_000 + b'\"}\\n')",
    "nothing expected": forged(error=1),
    "no fields": SEND + "send(b'{\"run\": 1}\\n')",
    "a number of displays": forged(displays=7),
    "too little data": forged(value=7),
    "too much data": forged(value=5),
    "a negative size": forged(value=-1),
    "a size that is a text": forged(value="6"),
    "sizes beyond the data": forged(displays=[["text/plain", 1 << 62]]),
    "a text of 6 MB": forged(b"\xff" * 6_000_000, value=6_000_000),
    "a type that is no text": forged(displays=[[None, 0]]),
    "old replies": f"{SEND}for _ in range(99): send(b'{{\"run\":0}}\\n')",
}


@pytest.mark.promise("instances:python:control")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_code_that_writes_to_the_control_channel_ends_only_its_own_session(
    instance: Instance, attack: str
) -> None:
    result = await python(instance, ATTACKS[attack])
    assert (result.outcome, result.value, result.state_lost) == (Outcome.ENDED, None, True)
    assert await value(instance, "1 + 1") == "2"


@pytest.mark.promise("instances:python:control")
async def test_a_forged_reply_affects_only_its_own_run(instance: Instance) -> None:
    assert (await python(instance, f"{forged()}'own'")).value in ("forged", "'own'")
    assert [await value(instance, f"{n}") for n in range(10, 13)] == ["10", "11", "12"]


@pytest.mark.promise("instances:control:unasked")
async def test_a_session_that_keeps_replying_unasked_is_ended_and_the_next_run_names_the_reason(
    instance: Instance,
) -> None:
    sending = "threading.Thread(target=lambda: (time.sleep(0.05), [send(b'{}\\n') for _ in range(99)]), daemon=True)"
    started = await python(instance, f"{SEND}import threading, time\nkept = 1\n{sending}.start()")
    assert started.outcome is Outcome.OK
    while (await instance.usage()).processes:
        continue
    again = await python(instance, "'kept' in globals()")
    assert (again.value, again.state_lost) == ("False", True)
    assert "replies that nobody had asked for" in again.detail


# -- ending a run -----------------------------------------------------------------------------------------


@pytest.mark.promise("instances:python:interrupt")
async def test_an_interrupt_ends_the_run_and_keeps_the_session(instance: Instance) -> None:
    assert not await instance.interrupt("python")
    ear, results = Ear(b"on"), list[RunResult]()

    async def run() -> None:
        source = "import time\nkept = 1\ntry:\n    print('on', flush=True)\n    time.sleep(100)\nfinally:\n    print('tidied')"
        results.append(await instance.run("python", source, on_output=ear))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await ear.heard.wait()
        assert await instance.interrupt("python")
    result = results[0]
    assert (result.outcome, result.stdout, result.state_lost) == (Outcome.INTERRUPTED, "on\ntidied\n", False)
    assert result.error is not None
    assert result.error.type == "KeyboardInterrupt"
    assert await value(instance, "kept") == "1"


@pytest.mark.promise("instances:python:cancel")
async def test_cancelling_a_run_ends_it_with_the_processes_it_started(instance: Instance) -> None:
    ear = Ear(b"on")
    source = (
        "import subprocess\nkept = 1\nprint('on', flush=True)\nsubprocess.run(['sleep', '5432'])\nkept = 2"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(instance.run, "python", source, on_output=ear))
        await ear.heard.wait()
        tasks.cancel_scope.cancel()
    assert await value(instance, "kept") == "1"
    # A cancelled run does not wait for the end of its processes.
    gone = "while cat /proc/[0-9]*/cmdline | grep -q '[5]432'; do :; done; echo gone"
    assert (await instance.exec(["sh", "-c", gone])).stdout == b"gone\n"


@pytest.mark.promise("instances:python:cancel")
async def test_cancelling_a_queued_run_does_not_affect_the_running_one(instance: Instance) -> None:
    ear = Ear(b"on")
    results: list[RunResult] = []

    async def first() -> None:
        source = "import os, time\nprint('on', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n'first'"
        results.append(await instance.run("python", source, on_output=ear))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await ear.heard.wait()
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(instance.run, "python", "never = 1")
            await anyio.wait_all_tasks_blocked()
            waiting.cancel_scope.cancel()
        await instance.write("go", b"")
    assert results[0].value == "'first'"
    assert await value(instance, "'never' in globals()") == "False"


@pytest.mark.promise("instances:sessions")
async def test_runs_of_one_language_queue_and_the_languages_run_concurrently(instance: Instance) -> None:
    await instance.exec(["mkfifo", "to-bash", "to-python"])
    order: list[str | None] = []

    async def run(source: str) -> None:
        order.append(await value(instance, source))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, "open('to-bash', 'w').write('ping')\nopen('to-python').read()")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(run, "'second'")
        result = await instance.run("bash", "cat to-bash; printf pong > to-python")
        assert result.stdout == "ping"
    assert order == ["'pong'", "'second'"]
