import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from anyio.from_thread import BlockingPortal

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox import SyncSandbox
from tests.agentflow.sandbox._backends import CounterBackend, EchoBackend
from tests.agentflow.sandbox._hosts import TOKEN, serving


@pytest.mark.promise("sandbox:blocking")
def test_the_synchronous_sandbox_works_without_a_loop() -> None:
    backend = CounterBackend()
    with SyncSandbox(backends=[backend, EchoBackend()]) as sandbox:
        sandbox.warmup("echo")
        assert sandbox.execute("up").data == {"result": 1}
        assert [result.ok for result in sandbox.execute_batch([("up", {}), ("down", {})])] == [True, False]
        assert [one.backend for one in sandbox.create_session("counter", {"start": 5})] == ["counter"]
        assert [one.backend for one in sandbox.refresh_sessions()] == ["counter"]
        assert sandbox.list_sessions() != []
        assert [tool.route for tool in sandbox.tools("counter:u*")] == ["counter:up"]
        (link,) = sandbox.execute("keep", {"text": "abc"}).parts
        assert sandbox.read(getattr(link, "uri")) == b"abc"  # noqa: B009
        sandbox.destroy_session()
    assert backend.life[-1] == "shutdown"


@pytest.mark.promise("sandbox:blocking:running-loop")
async def test_the_synchronous_sandbox_works_inside_a_running_loop() -> None:
    with SyncSandbox(backends=[CounterBackend()]) as sandbox:
        assert sandbox.execute("up").data == {"result": 1}


@pytest.mark.promise("sandbox:blocking")
def test_a_fork_outlives_its_parent_and_the_last_one_ends_the_thread() -> None:
    before = threading.enumerate()
    with SyncSandbox(backends=[CounterBackend()]) as sandbox:
        sandbox.execute("up")
        fork = sandbox.fork()
    with fork:
        assert fork.left_behind == ()
        assert fork.execute("up").data == {"result": 2}
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in left if "portal" in thread.name]


@pytest.mark.promise("sandbox:blocking")
def test_the_synchronous_sandbox_may_be_used_from_many_threads() -> None:
    def count(_: int) -> object:
        return sandbox.execute("up").data["result"]

    with SyncSandbox(backends=[CounterBackend()]) as sandbox, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(count, range(50)))
    assert sorted(map(str, results)) == sorted(str(number) for number in range(1, 51))


@pytest.mark.promise("sandbox:blocking")
def test_interrupting_a_call_stops_its_processes() -> None:
    backend = CounterBackend()

    def interrupt(done: float, total: float | None, message: str | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with SyncSandbox(backends=[backend]) as sandbox:
        with pytest.raises(KeyboardInterrupt):
            sandbox.execute("stay", on_progress=interrupt)
        assert sandbox.execute("up").data == {"result": 1}
        sandbox.destroy_session()
    assert backend.left.is_set()


@pytest.mark.promise("sandbox:blocking")
def test_an_interrupt_right_after_the_start_of_a_call_stops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = BlockingPortal.start_task_soon

    def interrupted(portal: BlockingPortal, call: Callable[..., object]) -> None:
        monkeypatch.undo()
        start(portal, call)
        raise KeyboardInterrupt

    backend = CounterBackend()
    with SyncSandbox(backends=[backend]) as sandbox:
        assert sandbox.execute("up").data == {"result": 1}
        monkeypatch.setattr(BlockingPortal, "start_task_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sandbox.execute("stay")
        assert sandbox.execute("up").data == {"result": 2}
        assert backend.left.is_set() == backend.entered.is_set(), "what has begun was stopped"


@pytest.mark.promise("sandbox:blocking")
def test_a_sandbox_that_is_not_open_gives_a_clear_error() -> None:
    sandbox = SyncSandbox(backends=[CounterBackend()])
    with pytest.raises(ToolFailure) as raised:
        sandbox.execute("up")
    assert raised.value.kind is ErrorKind.SESSION_NOT_FOUND
    sandbox.close()


@pytest.mark.promise("sandbox:blocking:forgotten")
def test_a_program_that_leaves_a_sandbox_open_ends() -> None:
    script = """
from agentflow import SyncSandbox
sandbox = SyncSandbox(backends=["bash"])
sandbox.start()
print(sandbox.execute("bash_run", {"command": "echo hi"}).ok)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.promise("sandbox:blocking")
async def test_the_synchronous_sandbox_connects_to_a_server() -> None:
    def use(url: str) -> object:
        with SyncSandbox(url, token=TOKEN) as sandbox:
            return sandbox.execute("up").data["result"]

    async with serving(CounterBackend()) as server:
        assert await anyio.to_thread.run_sync(use, server.url) == 1
