"""Commands with live pipes."""

from collections.abc import AsyncIterator
from typing import Literal

import anyio
import pytest

from agentflow.errors import InstanceGone
from runtimes import Instance
from runtimes.process import ProcessRuntime
from runtimes.process._command import RunningCommand


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> AsyncIterator[Instance]:
    instance = await runtime.start()
    yield instance
    await instance.stop()


@pytest.mark.promise("instances:stream:talk")
async def test_a_stream_is_interactive(instance: Instance) -> None:
    async with await instance.open_stream(["cat"]) as stream:
        answers = stream.receive()
        for word in (b"first", b"second\0\xff"):
            await stream.send(word)
            assert await anext(answers) == ("stdout", word)
        await stream.close_stdin()
        assert [piece async for piece in answers] == []
        assert await stream.wait() == 0


@pytest.mark.promise("instances:stream:talk")
async def test_stdout_and_stderr_are_separate(instance: Instance) -> None:
    async with await instance.open_stream(["sh", "-c", "echo out; echo err >&2; exit 3"]) as stream:
        outputs = {"stdout": b"", "stderr": b""}
        async for name, data in stream.receive():
            outputs[name] += data
        assert (outputs, await stream.wait()) == ({"stdout": b"out\n", "stderr": b"err\n"}, 3)


@pytest.mark.promise("instances:stream:talk")
async def test_output_that_arrives_before_the_start_is_reported_is_kept(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = RunningCommand.start

    async def start_slowly(
        command: RunningCommand, argv: list[str], cwd: str, env: dict[str, str], user: None
    ) -> None:
        await start(command, argv, cwd, env, user)
        assert command.pipes is not None
        ended = anyio.Event()
        command.pipes.on_end = ended.set
        command.pipes.replay()
        await ended.wait()

    monkeypatch.setattr(RunningCommand, "start", start_slowly)
    pieces: list[tuple[Literal["stdout", "stderr"], bytes]] = []
    with anyio.fail_after(60):
        async with await instance.open_stream(["sh", "-c", "echo out; echo err >&2"]) as stream:
            assert {piece async for piece in stream.receive()} == {("stdout", b"out\n"), ("stderr", b"err\n")}
        result = await instance.exec(
            ["echo", "out"], on_output=lambda name, data: pieces.append((name, data))
        )
    assert (result.stdout, pieces) == (b"out\n", [("stdout", b"out\n")])


@pytest.mark.promise("instances:stream:talk")
async def test_a_stream_has_its_own_folder_and_variables(instance: Instance) -> None:
    async with await instance.open_stream(["sh", "-c", "pwd; echo $A"], cwd="/tmp", env={"A": "b"}) as stream:
        assert b"".join([data async for _, data in stream.receive()]) == b"/tmp\nb\n"


@pytest.mark.promise("instances:stream:large")
async def test_large_input_waits_for_a_slow_reader(instance: Instance) -> None:
    script = "head -c 1 >/dev/null; echo reading; wc -c"
    async with await instance.open_stream(["bash", "-c", script]) as stream:
        await stream.send(b"x" * 3_000_000)
        await stream.close_stdin()
        output = b"".join([data async for _, data in stream.receive()])
    assert output.startswith(b"reading\n")
    # head may take more than it shows.
    assert 0 < int(output.split()[1]) < 3_000_000


@pytest.mark.promise("instances:stream:large")
async def test_output_is_unlimited_while_it_is_consumed(instance: Instance) -> None:
    wanted, got = 4 * instance.spec.limits.output_bytes, 0
    async with await instance.open_stream(["yes"]) as stream:
        async for _, data in stream.receive():
            got += len(data)
            if got > wanted:
                break
    assert await stream.wait() == 137


@pytest.mark.promise("instances:stream:leave")
async def test_leaving_a_stream_kills_its_command_and_every_process_it_started(instance: Instance) -> None:
    script = "trap '' TERM HUP; setsid sleep 7654 & sleep 7654 & echo on; wait"
    async with await instance.open_stream(["bash", "-c", script]) as stream:
        assert await anext(stream.receive()) == ("stdout", b"on\n")
    assert await stream.wait() == 137
    left = await instance.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | grep -c '[7]654'"])
    assert left.stdout == b"0\n"


@pytest.mark.promise("instances:stream:leave")
async def test_a_killed_stream_ends(instance: Instance) -> None:
    async with await instance.open_stream(["sleep", "100"]) as stream:
        await stream.kill()
        assert await stream.wait() == 137
        assert [piece async for piece in stream.receive()] == []
        await stream.kill()


@pytest.mark.promise("instances:stream:closed")
async def test_sending_to_a_closed_reader_is_a_broken_pipe(instance: Instance) -> None:
    async with await instance.open_stream(["true"]) as stream:
        await stream.wait()
        for size in (1, 1_000_000):
            with pytest.raises(BrokenPipeError):
                await stream.send(b"x" * size)
    async with await instance.open_stream(["cat"]) as stream:
        await stream.close_stdin()
        with pytest.raises(BrokenPipeError):
            await stream.send(b"late")


@pytest.mark.promise("instances:stream:closed")
async def test_a_missing_program_ends_its_stream(instance: Instance) -> None:
    async with await instance.open_stream(["missing-program"]) as stream:
        pieces = [piece async for piece in stream.receive()]
        assert (pieces, await stream.wait()) == (
            [("stderr", b"missing-program: No such file or directory\n")],
            127,
        )


@pytest.mark.promise("instances:stream:closed")
async def test_stopping_the_instance_ends_its_streams(runtime: ProcessRuntime) -> None:
    instance = await runtime.start()
    async with await instance.open_stream(["sleep", "100"]) as stream:
        await instance.stop()
        assert await stream.wait() == 137
        assert [piece async for piece in stream.receive()] == []
    with pytest.raises(InstanceGone):
        await instance.open_stream(["true"])
