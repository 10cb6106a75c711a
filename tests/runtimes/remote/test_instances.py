"""Remote sandboxes as instances: sessions, commands, streams, files. Every test runs with the stub of each service."""

import anyio
import pytest

from agentflow.errors import InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes import Instance, InstanceSpec, Limits, NetworkAccess, Outcome
from runtimes.remote import RemoteRuntime


@pytest.mark.promise("remote:sessions")
async def test_both_sessions_keep_their_state_and_share_the_files(instance: Instance) -> None:
    assert (await instance.run("python", "x = 20\nopen('seen', 'w').write('file')")).value == "4"
    assert (await instance.run("python", "x + 1")).value == "21"
    shell = await instance.run("bash", "cat seen; cd /tmp; y=7")
    assert (shell.stdout, shell.cwd) == ("file", "/tmp")
    assert (await instance.run("bash", "echo $y")).stdout == "7\n"


@pytest.mark.promise("remote:sessions")
async def test_an_ended_session_is_replaced_by_a_fresh_one(instance: Instance) -> None:
    await instance.run("python", "x = 1")
    ended = await instance.run("python", "import os\nos._exit(3)")
    assert (ended.outcome, ended.exit_code, ended.state_lost) == (Outcome.ENDED, 3, True)
    assert (await instance.run("python", "'x' in globals()")).value == "False"


@pytest.mark.promise("remote:sessions")
async def test_a_run_is_interrupted(instance: Instance) -> None:
    await instance.run("python", "x = 1")
    outcomes: list[Outcome] = []
    async with anyio.create_task_group() as tasks:

        async def interrupt() -> None:
            while not await instance.interrupt("python"):
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(interrupt)
        outcomes.append((await instance.run("python", "import time\ntime.sleep(100)")).outcome)
    assert outcomes == [Outcome.INTERRUPTED]
    assert (await instance.run("python", "x")).value == "1"


@pytest.mark.promise("remote:sessions")
async def test_a_cancelled_run_ends_inside_and_the_session_keeps_working(instance: Instance) -> None:
    async with anyio.create_task_group() as tasks:

        def cancel(_: str, __: bytes) -> None:
            tasks.cancel_scope.cancel()

        tasks.start_soon(lambda: instance.run("bash", "echo begun; sleep 1000; touch late", on_output=cancel))
    assert (await instance.run("bash", "ls")).stdout == ""


@pytest.mark.promise("remote:sessions")
async def test_a_run_with_open_stdin_receives_input(instance: Instance) -> None:
    async with anyio.create_task_group() as tasks:

        async def feed() -> None:
            while True:
                try:
                    await instance.send_input("bash", b"fed\n")
                except RuntimeFailure:
                    await anyio.lowlevel.checkpoint()
                else:
                    return

        tasks.start_soon(feed)
        assert (await instance.run("bash", "read line; echo $line", stdin_open=True)).stdout == "fed\n"


@pytest.mark.promise("remote:commands")
async def test_a_command_has_input_outputs_directory_and_status(instance: Instance) -> None:
    await instance.make_directory("deep")
    done = await instance.exec(
        ["sh", "-c", "cat; pwd; echo $WORD >&2; exit 3"], input=b"in ", cwd="deep", env={"WORD": "w"}
    )
    assert (done.stdout, done.stderr, done.exit_code) == (b"in /home/agent/deep\n", b"w\n", 3)


@pytest.mark.promise("remote:commands")
async def test_output_arrives_while_a_command_runs(instance: Instance) -> None:
    pieces: list[tuple[str, bytes]] = []
    seen = anyio.Event()

    def collect(name: str, data: bytes) -> None:
        pieces.append((name, data))
        seen.set()

    script = "echo first; until [ -e answer ]; do sleep 0.05; done; echo last"
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            done = await instance.exec(["sh", "-c", script], on_output=collect)
            assert done.stdout == b"first\nlast\n"

        tasks.start_soon(run)
        await seen.wait()
        await instance.write("answer", b"")
    assert b"".join(data for _, data in pieces) == b"first\nlast\n"


@pytest.mark.promise("remote:commands")
async def test_background_processes_of_a_command_end_with_it(instance: Instance) -> None:
    await instance.exec(["sh", "-c", "setsid sleep 987 > /dev/null 2>&1 & sleep 986 > /dev/null 2>&1 &"])
    with anyio.fail_after(60):
        while (await instance.usage()).processes:
            await anyio.lowlevel.checkpoint()


@pytest.mark.promise("remote:commands")
async def test_a_command_can_be_streamed(instance: Instance) -> None:
    async with await instance.open_stream(["cat"]) as stream:
        await stream.send(b"there")
        await stream.close_stdin()
        pieces = [piece async for piece in stream.receive()]
        assert (b"".join(data for _, data in pieces), await stream.wait()) == (b"there", 0)


@pytest.mark.promise("remote:commands")
async def test_a_large_output_is_complete(instance: Instance) -> None:
    done = await instance.exec(["head", "-c", "3000000", "/dev/zero"])
    assert done.stdout == bytes(3_000_000)


@pytest.mark.promise("remote:limits")
async def test_limits_of_time_and_output_end_a_command(instance: Instance) -> None:
    late = await instance.exec(["sleep", "1000"], timeout=0.2)
    assert (late.outcome, late.exit_code) == (Outcome.TIMEOUT, 137)
    loud = await instance.exec(["cat", "/dev/zero"])
    assert loud.outcome is Outcome.OUTPUT_LIMIT


@pytest.mark.promise("remote:users")
async def test_a_command_can_run_as_root_inside(instance: Instance) -> None:
    done = await instance.exec(["id", "-u"], user="root")
    assert done.stdout == b"0\n"
    assert (await instance.exec(["id", "-u"])).stdout == b"64111\n"
    refused = await instance.exec(["true"], user="nobody-there")
    assert (refused.exit_code, refused.stderr) == (126, b"no user 'nobody-there' in the sandbox\n")


@pytest.mark.promise("remote:users")
async def test_the_agent_cannot_reach_the_server_of_its_sandbox(instance: Instance) -> None:
    tried = await instance.exec(["sh", "-c", "ls /run/agentflow/spool; : > /run/agentflow/socket"])
    assert tried.exit_code != 0
    assert tried.stdout == b""


@pytest.mark.promise("remote:files")
async def test_files_are_written_read_and_removed_by_name(instance: Instance) -> None:
    data = bytes(range(256)) * 8192
    await instance.write("a/b/data", data, executable=True)
    assert await instance.read("a/b/data", offset=3, length=4) == data[3:7]
    assert await instance.read("a/b/data") == data
    assert [(i.path, i.kind, i.size) for i in await instance.list("a/b")] == [
        ("/home/agent/a/b/data", "file", len(data))
    ]
    await instance.move("a/b/data", "moved")
    assert (await instance.stat("moved")).mode == 0o755
    await instance.remove("a", recursive=True)
    with pytest.raises(FileNotFoundError):
        await instance.read("a/b/data")
    with pytest.raises(OSError, match=r"Read-only|Permission denied"):
        await instance.write("/etc/mine", b"x")


@pytest.mark.promise("remote:files")
async def test_file_operations_have_the_rights_of_the_agent_alone(instance: Instance) -> None:
    await instance.exec(["sh", "-c", "echo secret > /tmp/own; chmod 600 /tmp/own"], user="root")
    with pytest.raises(PermissionError):
        await instance.read("/tmp/own")
    with pytest.raises(ValueError, match="negative"):
        await instance.read("x", offset=-1)


@pytest.mark.promise("remote:spec")
async def test_a_sandbox_has_the_environment_of_its_spec_and_nothing_of_the_server(
    runtime: RemoteRuntime,
) -> None:
    instance = await runtime.start(InstanceSpec(env={"ADDED": "yes"}, warm=frozenset({"python", "bash"})))
    assert (await instance.run("bash", "echo $ADDED")).stdout == "yes\n"
    names = (await instance.run("python", "import os; sorted(os.environ)")).value
    assert "ADDED" in str(names)
    assert "STUB_KEY" not in str(names)
    await instance.stop()


@pytest.mark.promise("remote:spec")
@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (InstanceSpec(network=NetworkAccess(allow=("example.org",))), "network.allow works with the process"),
        (InstanceSpec(mounts={"/data": "/usr"}), "can't mount folders of this machine"),
    ],
)
async def test_what_a_service_lacks_is_refused_in_one_line(
    runtime: RemoteRuntime, spec: InstanceSpec, line: str
) -> None:
    with pytest.raises(IsolationUnavailable, match=line) as error:
        await runtime.start(spec)
    assert "\n" not in str(error.value)


@pytest.mark.promise("remote:gone")
async def test_every_method_of_a_stopped_sandbox_reports_its_end(runtime: RemoteRuntime) -> None:
    instance = await runtime.start()
    await instance.stop()
    await instance.stop()
    with pytest.raises(InstanceGone):
        await instance.exec(["true"])


@pytest.mark.promise("remote:gone")
async def test_a_sandbox_that_its_service_ended_is_gone_and_the_runtime_keeps_working(
    runtime: RemoteRuntime,
) -> None:
    instance = await runtime.start()
    await instance.calls.sandbox.end()
    with pytest.raises(InstanceGone):
        await instance.read("x")
    other = await runtime.start(InstanceSpec(limits=Limits(open_files=99)))
    assert (await other.run("bash", "ulimit -n")).stdout == "99\n"
    await instance.stop()
    await other.stop()
