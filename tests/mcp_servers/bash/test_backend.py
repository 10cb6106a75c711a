"""The bash tools, on the real process runtime."""

from typing import cast

import anyio
import pytest

from mcp_servers import ResourceLink
from tests.mcp_servers.live import Live


@pytest.mark.promise("bash:state:kept")
async def test_the_shell_keeps_its_state_from_call_to_call(live: Live) -> None:
    await live.bash("mkdir sub; cd sub; x='a b'; f() { echo \"<$1>\"; }; shopt -s nullglob")
    data = await live.data("bash_run", command='f "$x"; pwd; echo *.nothing')
    assert data["stdout"] == "<a b>\n/home/agent/sub\n\n"
    assert data["cwd"] == "/home/agent/sub"


@pytest.mark.promise("bash:failure:exit-code")
async def test_a_failing_command_is_not_a_failed_call(live: Live) -> None:
    data = await live.data("bash_run", command="echo out; echo err >&2; (exit 3)")
    assert (data["stdout"], data["stderr"], data["exit_code"]) == ("out\n", "err\n", 3)
    assert (await live.data("bash_run", command="if"))["exit_code"] == 2
    assert (await live.data("bash_run", command="nowhere"))["exit_code"] == 127


@pytest.mark.promise("bash:timeout:partial")
async def test_a_command_that_times_out_is_killed_and_its_output_is_returned(live: Live) -> None:
    result = await live.call("bash_run", command="echo begun; sleep 1000", timeout=3)
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert result.data["stdout"] == "begun\n"
    assert await live.bash("pgrep -c sleep || true") == "0\n"


async def test_the_call_s_own_time_limit_applies_and_its_output_is_returned(live: Live) -> None:
    arguments = {"session": live.session, "command": "echo begun; sleep 1000"}
    result = await live.table.call("bash_run", arguments, timeout=5)
    assert result.error is not None
    assert result.error.kind == "timeout"
    assert result.data["stdout"] == "begun\n"


@pytest.mark.promise("bash:output:kept-whole")
async def test_long_output_is_truncated_in_the_middle_and_kept_whole(live: Live) -> None:
    result = await live.call("bash_run", command="seq 100000")
    stdout = str(result.data["stdout"])
    assert stdout.startswith("1\n2\n")
    assert stdout.endswith("99999\n100000\n")
    assert "characters left out; the whole is at agentflow://" in stdout
    assert len(stdout) < 31_000
    (link,) = result.parts
    assert isinstance(link, ResourceLink)
    kept = live.table.sessions.resource(link.uri, "local")
    assert kept is not None
    assert kept.data.count(b"\n") == 100_000


@pytest.mark.promise("bash:output:limit")
async def test_a_hundred_megabytes_of_output_are_stopped_and_the_server_continues(live: Live) -> None:
    result = await live.call("bash_run", command="head -c 100000000 /dev/zero | tr '\\0' x")
    assert result.error is not None
    assert result.error.kind == "output_limit"
    assert str(result.data["stdout"]).startswith("xxx")
    assert await live.bash("echo on") == "on\n"


@pytest.mark.promise("bash:output:invalid-text")
async def test_output_that_is_not_utf_8_is_replaced(live: Live) -> None:
    assert await live.bash(r"printf 'a\xff\xfeb \xc3\xa4\n'") == "a��b ä\n"


@pytest.mark.promise("bash:progress")
async def test_output_is_reported_as_it_arrives(live: Live) -> None:
    reports: list[tuple[float, str | None]] = []
    arguments = {"session": live.session, "command": "echo one; echo two >&2; sleep 0.2; echo thrée"}
    await live.table.call(
        "bash_run", arguments, progress=lambda done, total, message: reports.append((done, message))
    )
    output = "".join(message or "" for _, message in reports)
    assert all(line in output for line in ("one\n", "two\n", "thrée\n"))
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})


@pytest.mark.promise("bash:input")
async def test_a_running_command_gets_input_and_interrupts_from_other_calls(live: Live) -> None:
    begun = anyio.Event()
    command = "echo ready; read line; echo got $line; while :; do read line || sleep 0.1; done"

    async def run() -> None:
        arguments = {"session": live.session, "command": command, "stdin_open": True}
        result = await live.table.call("bash_run", arguments, progress=heard)
        assert result.ok, result
        assert result.data["stdout"] == "ready\ngot it ä\n"
        assert result.data["note"] == "Interrupted."

    def heard(done: float, total: float | None, message: str | None) -> None:
        begun.set() if "ready" in (message or "") else answered.set()

    answered = anyio.Event()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await begun.wait()
            assert await live.data("bash_input", text="it ä\n") == {"bytes": 6}
            await answered.wait()
            assert await live.data("bash_interrupt") == {"interrupted": True}
    assert await live.data("bash_interrupt") == {"interrupted": False}


async def test_standard_input_is_empty_unless_it_is_kept_open(live: Live) -> None:
    assert await live.bash("cat; echo done") == "done\n"


async def test_input_without_a_command_that_reads_it_is_not_found(live: Live) -> None:
    kind, message = await live.failure("bash_input", text="x")
    assert kind == "not_found"
    assert "start one with bash_run and stdin_open" in message
    await live.bash("true")
    assert (await live.failure("bash_input", text="x"))[0] == "not_found"


@pytest.mark.promise("bash:jobs")
async def test_background_jobs_are_listed_and_can_be_ended(live: Live) -> None:
    assert await live.data("bash_jobs") == {"jobs": []}
    await live.bash("sleep 1000 >/dev/null 2>&1 & sleep 2000 | cat >/dev/null 2>&1 &")
    first, second = await jobs(live)
    assert (first["number"], first["state"], second["number"]) == (1, "Running", 2)
    assert "sleep 2000" in str(second["command"])
    await live.bash("kill %1; wait %1 || true")
    assert [job["number"] for job in await jobs(live) if job["state"] == "Running"] == [2]


async def jobs(live: Live) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", (await live.data("bash_jobs"))["jobs"])


@pytest.mark.promise("bash:workspace:shared")
async def test_shell_code_and_files_share_one_workspace(live: Live) -> None:
    await live.bash("echo 'from bash' > a.txt")
    assert await live.python("open('a.txt').read()") == "'from bash\\n'"
    await live.data("files_write", path="b.txt", content="from files ä\n")
    assert await live.bash("cat b.txt") == "from files ä\n"
    await live.python("open('c.txt', 'w').write('from code')")
    assert (await live.data("files_read", path="c.txt"))["content"] == "from code"


@pytest.mark.promise("bash:fork")
async def test_a_fork_includes_the_shell_and_is_independent(live: Live) -> None:
    await live.bash("x=1; mkdir d; cd d; f() { echo f$x; }; echo base > file")
    fork = await live.fork()
    await fork.bash("x=2; echo changed > file; cd ..")
    assert await live.bash("f; cat file; pwd") == "f1\nbase\n/home/agent/d\n"
    assert await fork.bash("f; cat d/file; pwd") == "f2\nchanged\n/home/agent\n"
    await live.data("session_end")
    assert await fork.bash("f") == "f2\n"


@pytest.mark.promise("bash:ended")
async def test_a_shell_that_ends_is_replaced_by_a_new_one(live: Live) -> None:
    await live.bash("x=1; echo kept > file")
    data = await live.data("bash_run", command="echo bye; exit 3")
    assert (data["stdout"], data["state_lost"]) == ("bye\n", True)
    assert data["exit_code"] in (3, None)
    assert "new one" in str(data["note"])
    assert await live.bash("echo [$x]; cat file") == "[]\nkept\n"


async def test_settings_of_a_session_are_checked_and_used(live: Live) -> None:
    started = await live.table.call("session_start", {"settings": {"bash": {"output_characters": 100}}})
    short = Live(live.table, str(started.data["session"]))
    assert "characters left out" in await short.bash("seq 1000")
    wrong = await live.table.call("session_start", {"settings": {"bash": {"outputs": 1}}})
    assert wrong.error is not None
    assert wrong.error.kind == "bad_arguments"
    assert "outputs" in wrong.error.message
    assert "output_characters" in wrong.error.message


async def test_large_input_waits_until_it_is_read(live: Live) -> None:
    begun = anyio.Event()
    command = "echo go; sleep 0.3; head -c 500000 | wc -c"

    def heard(done: float, total: float | None, message: str | None) -> None:
        begun.set()

    async def run() -> None:
        arguments = {"session": live.session, "command": command, "stdin_open": True}
        result = await live.table.call("bash_run", arguments, progress=heard)
        assert result.data["stdout"] == "go\n500000\n"

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await begun.wait()
            assert await live.data("bash_input", text="x" * 500_000) == {"bytes": 500_000}


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800"])
async def test_a_command_that_cannot_be_passed_to_a_shell_is_refused(live: Live, command: str) -> None:
    assert (await live.failure("bash_run", command=command))[0] == "bad_arguments"
    assert await live.bash("echo on") == "on\n"
