"""Containers as instances: sessions, commands, streams and files."""

import anyio
import pytest

from agentflow.errors import InstanceGone, RuntimeFailure
from runtimes import Instance, InstanceSpec, Limits, Outcome
from runtimes.docker import DockerRuntime
from tests._dockerd import Dockerd


@pytest.mark.promise("docker:sessions")
async def test_both_sessions_keep_their_state_and_share_the_files(instance: Instance) -> None:
    assert (await instance.run("python", "x = 20\nopen('seen', 'w').write('file')")).value == "4"
    assert (await instance.run("python", "x + 1")).value == "21"
    shell = await instance.run("bash", "cat seen; cd /tmp; y=7")
    assert (shell.stdout, shell.cwd) == ("file", "/tmp")
    assert (await instance.run("bash", "echo $y")).stdout == "7\n"


@pytest.mark.promise("docker:sessions")
async def test_an_ended_session_is_replaced_by_a_fresh_one(instance: Instance) -> None:
    await instance.run("python", "x = 1")
    ended = await instance.run("python", "import os\nos._exit(3)")
    assert (ended.outcome, ended.exit_code, ended.state_lost) == (Outcome.ENDED, 3, True)
    assert (await instance.run("python", "'x' in globals()")).value == "False"


@pytest.mark.promise("docker:sessions")
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


@pytest.mark.promise("docker:sessions")
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


@pytest.mark.promise("docker:commands")
async def test_a_command_has_input_outputs_directory_and_status(instance: Instance) -> None:
    await instance.make_directory("deep")
    done = await instance.exec(
        ["sh", "-c", "cat; pwd; echo $WORD >&2; exit 3"], input=b"in ", cwd="deep", env={"WORD": "w"}
    )
    assert (done.stdout, done.stderr, done.exit_code) == (b"in /home/agent/deep\n", b"w\n", 3)


@pytest.mark.promise("docker:commands")
async def test_background_processes_of_a_command_end_with_it(instance: Instance) -> None:
    await instance.exec(["sh", "-c", "setsid sleep 987 > /dev/null 2>&1 & sleep 986 > /dev/null 2>&1 &"])
    with anyio.fail_after(60):
        while (await instance.usage()).processes:
            await anyio.lowlevel.checkpoint()


@pytest.mark.promise("docker:commands")
async def test_a_command_can_be_streamed(instance: Instance) -> None:
    async with await instance.open_stream(["cat"]) as stream:
        await stream.send(b"there")
        await stream.close_stdin()
        pieces = [piece async for piece in stream.receive()]
        assert (b"".join(data for _, data in pieces), await stream.wait()) == (b"there", 0)


@pytest.mark.promise("docker:users")
async def test_a_command_can_run_as_root_inside(instance: Instance) -> None:
    done = await instance.exec(["sh", "-c", "id -u; grep CapEff /proc/self/status | cut -f2"], user="root")
    user, power = done.stdout.decode().split()
    assert user == "0"
    # chown, dac_override, fowner, fsetid, kill, setgid, setuid and setfcap; nothing over the host.
    assert int(power, 16) == sum(1 << n for n in (0, 1, 3, 4, 5, 6, 7, 31))
    refused = await instance.exec(["true"], user="nobody-there")
    assert (refused.exit_code, refused.stderr) == (126, b"no user 'nobody-there' in the sandbox\n")


@pytest.mark.promise("docker:files")
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


@pytest.mark.promise("docker:files")
async def test_file_operations_have_the_rights_of_the_agent_alone(instance: Instance) -> None:
    await instance.exec(["sh", "-c", "echo secret > /tmp/own; chmod 600 /tmp/own"], user="root")
    with pytest.raises(PermissionError):
        await instance.read("/tmp/own")
    with pytest.raises(OSError, match=r"Permission denied|No such file"):
        await instance.read("/proc/1/environ")


@pytest.mark.promise("docker:spec")
async def test_a_container_has_the_environment_and_directories_of_its_spec(
    runtime: DockerRuntime, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shown")
    folder.chmod(0o755)
    (folder / "file").write_text("shown", encoding="utf-8")
    spec = InstanceSpec(env={"ADDED": "yes"}, mounts={"/data/shown": str(folder)})
    instance = await runtime.start(spec)
    seen = await instance.run("bash", "echo $ADDED; cat /data/shown/file; touch /data/shown/x")
    assert (seen.stdout, seen.exit_code) == ("yes\nshown", 1)
    names = (await instance.run("python", "import os; sorted(os.environ)")).value
    assert "AGENTFLOW" not in str(names)
    assert "ADDED" in str(names)
    await instance.stop()


@pytest.mark.promise("docker:gone")
async def test_every_method_of_a_stopped_container_reports_its_end(runtime: DockerRuntime) -> None:
    instance = await runtime.start()
    await instance.stop()
    await instance.stop()
    with pytest.raises(InstanceGone):
        await instance.exec(["true"])


@pytest.mark.promise("docker:gone")
async def test_a_container_killed_from_outside_reports_it_and_its_runtime_keeps_working(
    docker: DockerRuntime, engine: Dockerd
) -> None:
    instance = await docker.start()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(InstanceGone, match="the container has ended"):
                await instance.exec(["sleep", "100"])
                await instance.exec(["true"])

        tasks.start_soon(run)
        while not (await instance.usage()).processes:
            await anyio.lowlevel.checkpoint()
        await anyio.to_thread.run_sync(engine.docker, "kill", f"agentflow-{instance.id}")
    with pytest.raises(InstanceGone):
        await instance.read("x")
    other = await docker.start(InstanceSpec(limits=Limits(wall_seconds=30)))
    assert (await other.exec(["echo", "on"])).stdout == b"on\n"
    await other.stop()
