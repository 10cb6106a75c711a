"""Single commands: their input, environment, outcome and cleanup."""

from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest

from agentflow.errors import InstanceGone
from runtimes import ExecResult, Instance, InstanceSpec, Outcome
from runtimes.process import ProcessRuntime
from tests.runtimes.process.hearing import Ear


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> AsyncIterator[Instance]:
    instance = await runtime.start()
    yield instance
    await instance.stop()


async def shell(instance: Instance, script: str) -> ExecResult:
    return await instance.exec(["bash", "-c", script])


def needs_other_users(runtime: ProcessRuntime) -> None:
    if not runtime.capabilities.root:
        pytest.skip("; ".join(runtime.capabilities.notes))


async def running(instance: Instance, word: str) -> int:
    """Return the number of processes of the instance with a word in their command line."""
    script = (
        "import os, sys\nn = 0\nfor p in os.listdir('/proc'):\n if p.isdigit() and int(p) != os.getpid():\n"
    )
    script += "  try: n += sys.argv[1].encode() in open(f'/proc/{p}/cmdline', 'rb').read()\n"
    script += "  except OSError: pass\nprint(n)"
    result = await instance.exec(["python3", "-c", script, word])
    return int(result.stdout)


# -- input and environment ----------------------------------------------------------------------------


@pytest.mark.promise("instances:exec:streams")
async def test_a_command_gets_its_input_and_returns_both_outputs_as_bytes(instance: Instance) -> None:
    result = await instance.exec(["sh", "-c", "cat; printf '\\376' >&2"], input=b"\0\xff\n")
    assert (result.outcome, result.exit_code) == (Outcome.OK, 0)
    assert (result.stdout, result.stderr) == (b"\0\xff\n", b"\xfe")


@pytest.mark.promise("instances:exec:streams")
async def test_a_command_without_input_reads_nothing(instance: Instance) -> None:
    assert (await instance.exec(["cat"])).stdout == b""


@pytest.mark.promise("instances:exec:streams")
async def test_input_and_output_larger_than_any_pipe_pass_through(instance: Instance) -> None:
    data = bytes(range(256)) * 40_000
    assert (await instance.exec(["cat"], input=data)).stdout == data


@pytest.mark.promise("instances:exec:streams")
async def test_a_command_need_not_read_its_input(instance: Instance) -> None:
    result = await instance.exec(["true"], input=bytes(5_000_000))
    assert (result.outcome, result.exit_code) == (Outcome.OK, 0)


@pytest.mark.promise("instances:exec:streams")
async def test_output_is_streamed_as_it_arrives(instance: Instance) -> None:
    ear = Ear(b"two")
    result = await instance.exec(["sh", "-c", "echo one; echo two >&2; echo three"], on_output=ear)
    assert sorted(ear.output.split()) == [b"one", b"three", b"two"]
    assert (result.stdout, result.stderr) == (b"one\nthree\n", b"two\n")


@pytest.mark.promise("instances:exec:folder")
async def test_a_command_starts_in_the_workspace_or_in_the_given_folder(instance: Instance) -> None:
    await instance.make_directory("deep/er")
    for cwd, output in ((None, b"/home/agent\n"), ("deep/er", b"/home/agent/deep/er\n"), ("/tmp", b"/tmp\n")):
        assert (await instance.exec(["pwd"], cwd=cwd)).stdout == output


@pytest.mark.promise("instances:exec:folder")
async def test_a_missing_working_directory_is_named(instance: Instance) -> None:
    result = await instance.exec(["pwd"], cwd="missing")
    assert (result.exit_code, result.stderr) == (126, b"/home/agent/missing: No such file or directory\n")


@pytest.mark.promise("instances:exec:environment")
async def test_a_command_sees_a_small_clean_environment_and_the_given_variables(
    runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "hidden")
    instance = await runtime.start(InstanceSpec(env={"FROM_SPEC": "a b", "BOTH": "spec"}))
    result = await instance.exec(["env", "-0"], env={"BOTH": "call", "LINES": "1\n2"})
    seen = dict(pair.split("=", 1) for pair in result.stdout.decode().split("\0") if pair)
    assert seen["HOME"] == "/home/agent"
    assert (seen["FROM_SPEC"], seen["BOTH"], seen["LINES"]) == ("a b", "call", "1\n2")
    assert "SECRET_OF_THE_HOST" not in seen
    await instance.stop()


@pytest.mark.promise("instances:exec:environment")
async def test_programs_are_found_on_the_commands_own_path(instance: Instance) -> None:
    await instance.write("tools/greet", b'#!/bin/sh\necho "hello $1"\n', executable=True)
    result = await instance.exec(["greet", "you there"], env={"PATH": "/home/agent/tools:/usr/bin:/bin"})
    assert result.stdout == b"hello you there\n"


@pytest.mark.promise("instances:exec:arguments")
async def test_arguments_arrive_unchanged(instance: Instance) -> None:
    odd = ["", " ", "*", "$HOME", "a\nb", "'\"\\", "ünï ☃", "-n"]
    result = await instance.exec(["python3", "-c", "import sys; print(sys.argv[1:])", *odd])
    assert result.stdout.decode() == f"{odd}\n"


@pytest.mark.promise("instances:exec:arguments")
async def test_a_megabyte_of_arguments_arrives(instance: Instance) -> None:
    result = await instance.exec(["printf", "%s", *["x" * 60_000] * 17])
    assert len(result.stdout) == 17 * 60_000


@pytest.mark.promise("instances:exec:arguments")
@pytest.mark.parametrize(
    ("argv", "env"),
    [
        ([], {}),
        ([""], {}),
        (["a\0b"], {}),
        (["\ud800"], {}),
        (["true"], {"A=B": ""}),
        (["true"], {"A": "\0"}),
    ],
)
async def test_arguments_that_no_process_can_get_are_refused(
    instance: Instance, argv: list[str], env: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"program|process|variable"):
        await instance.exec(argv, env=env)


# -- outcomes ----------------------------------------------------------------------------------------


@pytest.mark.promise("instances:exec:status")
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
    ],
)
async def test_the_status_is_the_commands_own_or_names_the_signal(
    instance: Instance, script: str, code: int
) -> None:
    result = await shell(instance, script)
    assert (result.outcome, result.exit_code) == (Outcome.OK, code)


@pytest.mark.promise("instances:exec:missing")
@pytest.mark.parametrize(
    ("program", "code", "message"),
    [
        ("missing-program", 127, b"missing-program: No such file or directory\n"),
        ("/etc/passwd", 126, b"/etc/passwd: Permission denied\n"),
        ("/tmp", 126, b"/tmp: Permission denied\n"),
    ],
)
async def test_a_program_that_cannot_be_run_is_reported_as_a_shell_would(
    instance: Instance, program: str, code: int, message: bytes
) -> None:
    result = await instance.exec([program])
    assert (result.outcome, result.exit_code, result.stderr) == (Outcome.OK, code, message)


@pytest.mark.promise("instances:exec:leftovers")
@pytest.mark.parametrize(
    "script",
    [
        "sleep 4321 & echo done",
        "setsid sleep 4321 >/dev/null 2>&1 & echo done",
        "(trap '' TERM HUP INT; (sleep 4321; true) &) ; echo done",
    ],
    ids=["a job", "a daemon", "one that ignores signals"],
)
async def test_processes_that_a_command_leaves_running_end_with_it(instance: Instance, script: str) -> None:
    assert (await shell(instance, script)).stdout == b"done\n"
    assert await running(instance, "4321") == 0


@pytest.mark.promise("instances:exec:timeout")
async def test_a_command_that_takes_too_long_is_killed_and_its_output_is_kept(instance: Instance) -> None:
    script = "echo part; sleep 4322 & sleep 4322"
    result = await instance.exec(["bash", "-c", script], timeout=3)
    assert (result.outcome, result.stdout) == (Outcome.TIMEOUT, b"part\n")
    assert await running(instance, "4322") == 0


@pytest.mark.promise("instances:exec:output-limit")
async def test_a_command_that_prints_endlessly_is_stopped(instance: Instance) -> None:
    result = await instance.exec(["yes"])
    assert result.outcome is Outcome.OUTPUT_LIMIT
    limit = instance.spec.limits.output_bytes
    assert len(result.stdout) == limit


@pytest.mark.promise("instances:exec:cancel")
async def test_cancelling_a_command_kills_it(instance: Instance) -> None:
    ear = Ear(b"started")
    script = "echo started; sleep 4323; echo survived > /tmp/after"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(instance.exec, ["bash", "-c", script], on_output=ear))
        await ear.heard.wait()
        tasks.cancel_scope.cancel()
    assert await running(instance, "4323") == 0
    with pytest.raises(FileNotFoundError):
        await instance.stat("/tmp/after")


@pytest.mark.promise("instances:exec:cancel")
async def test_cancelling_the_start_of_a_command_leaves_no_process(instance: Instance) -> None:
    for _ in range(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(instance.exec, ["sleep", "4324"])
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert await running(instance, "4324") == 0


@pytest.mark.promise("instances:exec:many")
async def test_commands_run_concurrently(instance: Instance) -> None:
    await instance.exec(["mkfifo", "here", "there"])
    results: list[bytes] = []

    async def run_script(script: str) -> None:
        results.append((await shell(instance, script)).stdout)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_script, "echo ping > here; cat there")
        tasks.start_soon(run_script, "cat here; echo pong > there")
    assert sorted(results) == [b"ping\n", b"pong\n"]


@pytest.mark.promise("instances:exec:users")
async def test_root_inside_can_do_what_the_sandbox_user_cannot(
    runtime: ProcessRuntime, instance: Instance
) -> None:
    needs_other_users(runtime)
    refused = await shell(instance, "id -u; touch /etc/mine")
    assert (refused.exit_code, b"Permission denied" in refused.stderr) == (1, True)
    result = await instance.exec(["sh", "-c", "id -un; touch /etc/mine && echo made; pwd"], user="root")
    assert result.stdout == b"root\nmade\n/root\n"
    assert (await instance.exec(["id", "-un"], user="agent")).stdout == b"agent\n"


@pytest.mark.promise("instances:exec:users")
async def test_root_inside_has_no_power_outside(runtime: ProcessRuntime, instance: Instance) -> None:
    needs_other_users(runtime)
    script = "touch /usr/mine; mount -t tmpfs none /mnt; chroot / true; cat /etc/shadow | grep -c '\\$'"
    result = await instance.exec(["sh", "-c", script], user="root")
    assert b"Read-only file system" in result.stderr
    assert result.stdout == b"0\n"


@pytest.mark.promise("instances:exec:users")
@pytest.mark.parametrize("user", ["stranger", "nobody", "4711"])
async def test_an_unknown_user_is_named(runtime: ProcessRuntime, instance: Instance, user: str) -> None:
    needs_other_users(runtime)
    result = await instance.exec(["id"], user=user)
    assert result.exit_code == 126
    assert result.stderr.decode() == f"no user {user!r} in the sandbox\n"


@pytest.mark.promise("instances:gone")
async def test_every_call_of_an_ended_instance_reports_its_end(runtime: ProcessRuntime) -> None:
    instance = await runtime.start()
    await instance.stop()
    await instance.stop()
    for ask in (
        partial(instance.run, "bash", "true"),
        partial(instance.run, "python", "1"),
        partial(instance.exec, ["true"]),
        partial(instance.open_stream, ["true"]),
        partial(instance.read, "a"),
        partial(instance.write, "a", b""),
        partial(instance.list),
        partial(instance.usage),
        partial(instance.snapshot),
        partial(instance.fork),
        partial(instance.interrupt, "bash"),
    ):
        with pytest.raises(InstanceGone):
            await ask()


@pytest.mark.promise("instances:gone")
async def test_stopping_an_instance_ends_its_processes(runtime: ProcessRuntime) -> None:
    instance = await runtime.start()
    ears = {"bash": Ear(b"on"), "python": Ear(b"on")}

    async def run(language: str) -> None:
        source = (
            "echo on; sleep 4325"
            if language == "bash"
            else "print('on', flush=True); import time; time.sleep(4325)"
        )
        with pytest.raises(InstanceGone):
            await instance.run("bash" if language == "bash" else "python", source, on_output=ears[language])

    async with anyio.create_task_group() as tasks:
        for language, ear in ears.items():
            tasks.start_soon(run, language)
            await ear.heard.wait()
        await instance.stop()
