import asyncio
from typing import Self

import anyio
import pytest

from agentflow.errors import ConfigurationError, ErrorKind
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.sandbox._tool_host import SharedRuntime, shared_runtime
from runtimes.process import ProcessRuntime
from tests.agentflow.sandbox._hosts import eager_runtime


class Watched(ProcessRuntime):
    """The real runtime, which says when it is entered and left."""

    log: list[str]

    async def __aenter__(self) -> Self:
        self.log.append("in")
        await super().__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        self.log.append("out")


def watched(log: list[str]) -> SharedRuntime:
    """A shared runtime that logs."""

    def make() -> Watched:
        runtime = Watched()
        runtime.log = log
        return runtime

    return SharedRuntime(make)


@pytest.mark.promise("sandbox:runtime:shared")
async def test_a_runtime_is_started_once_and_stopped_with_its_last_user() -> None:
    log: list[str] = []
    shared = watched(log)
    got: list[object] = []

    async def borrow() -> None:
        got.append(await shared.borrow())

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(borrow)
    assert got[0] is got[1] is got[2]
    await shared.release()
    await shared.release()
    assert log == ["in"]
    await shared.release()
    assert log == ["in", "out"]
    again = await shared.borrow()
    assert again is not got[0]
    await shared.release()
    assert log == ["in", "out"] * 2


@pytest.mark.promise("sandbox:runtime:shared")
async def test_sandboxes_of_one_loop_share_a_runtime_that_ends_with_the_last_of_them() -> None:
    shared = shared_runtime("process")
    async with Sandbox() as one:
        assert not shared.running
        await one.execute("bash:run", {"command": "true"})
        assert shared.running
        async with Sandbox() as other:
            await other.execute("bash:run", {"command": "true"})
        fork = await one.fork()
        assert shared_runtime("process") is shared
    assert shared.running
    assert (await fork.execute("bash:run", {"command": "echo still"})).data["stdout"] == "still\n"
    await fork.close()
    assert not shared.running


@pytest.mark.promise("sandbox:runtime:shared")
def test_a_loop_that_ends_with_open_sandboxes_ends_their_runtime() -> None:
    log: list[str] = []

    async def forget() -> None:
        await watched(log).borrow()

    asyncio.run(forget())
    assert log == ["in", "out"]


@pytest.mark.promise("sandbox:runtime:own")
async def test_a_given_runtime_is_used_and_not_stopped() -> None:
    async with ProcessRuntime() as runtime:
        async with Sandbox(runtime=runtime) as sandbox:
            assert (await sandbox.execute("bash:run", {"command": "echo hi"})).data["stdout"] == "hi\n"
        instance = await runtime.start()
        await instance.stop()


@pytest.mark.promise("sandbox:runtime:unknown")
async def test_an_unknown_runtime_gives_one_clear_error() -> None:
    with pytest.raises(ConfigurationError, match=r"no runtime 'proces'\. Did you mean 'process'\?"):
        Sandbox(SandboxSettings(runtime="proces"))


@pytest.mark.promise("sandbox:settings:limits")
async def test_the_settings_limit_the_runtime() -> None:
    settings = SandboxSettings.model_validate(
        {"backends": ["bash"], "limits": {"wall_seconds": 2}, "env": {"COLOUR": "blue"}}
    )
    async with eager_runtime() as runtime, Sandbox(settings, runtime=runtime) as sandbox:
        result = await sandbox.execute("bash:run", {"command": "echo $COLOUR; sleep 60"})
    assert result.error is not None
    assert result.error.kind is ErrorKind.TIMEOUT
    assert result.data["stdout"] == "blue\n"
