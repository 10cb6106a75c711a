"""Shell sessions: persistent state, ends of runs, and robustness against any command."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import RuntimeFailure
from runtimes import Instance, Outcome, RunResult
from runtimes.process import ProcessRuntime
from runtimes.process._control_socket import ShellControlSocket
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


async def bash(instance: Instance, source: str) -> RunResult:
    return await instance.run("bash", source, timeout=60)


async def output_of(instance: Instance, source: str) -> str:
    result = await bash(instance, source)
    assert (result.outcome, result.stderr) == (Outcome.OK, ""), result
    return result.stdout


# -- persistent state ---------------------------------------------------------------------------------


@pytest.mark.promise("instances:bash:state")
async def test_a_session_keeps_the_state_of_a_shell(instance: Instance) -> None:
    await output_of(
        instance,
        "x=1; export y=2; declare -a list=(a 'b c'); declare -A map=([k]=v); readonly z=3; declare -i n=4\n"
        "double() { echo $(($1 * 2)); }; alias hey='echo hey'; shopt -s expand_aliases nullglob; set -o pipefail\n"
        "mkdir -p deep; cd deep; umask 027; set -- one 'two three'; trap 'echo got' USR1; ulimit -n 500",
    )
    assert await output_of(instance, "echo $x ${list[1]} ${map[k]} $z; n+=1; echo $n; env | grep ^y=") == (
        "1 b c v 3\n5\ny=2\n"
    )
    assert await output_of(instance, "double 21; hey; echo *.none; false | true || echo pipefail") == (
        "42\nhey\n\npipefail\n"
    )
    assert await output_of(instance, 'pwd; umask; echo $# "$2"; kill -USR1 $$; ulimit -n') == (
        "/home/agent/deep\n0027\n2 two three\ngot\n500\n"
    )


@pytest.mark.promise("instances:bash:state")
async def test_the_status_of_the_last_command_is_available_to_the_next(instance: Instance) -> None:
    for source, code in (("(exit 9)", 9), ("return 7", 7), ("missing_program", 127), ("true", 0)):
        assert (await bash(instance, source)).exit_code == code
        assert await output_of(instance, "echo $?") == f"{code}\n"


@pytest.mark.promise("instances:bash:state")
async def test_the_working_directory_is_reported_even_if_it_was_removed(instance: Instance) -> None:
    result = await bash(instance, "mkdir gone; cd gone; rmdir ../gone")
    assert (result.exit_code, result.cwd) == (0, "/home/agent/gone")
    assert (await bash(instance, "cd && pwd")).stdout == "/home/agent\n"


@pytest.mark.promise("instances:bash:state")
async def test_declarations_are_global_as_in_a_terminal(instance: Instance) -> None:
    await output_of(instance, "f() { local hidden=1; declare -g shown=2; }; declare plain=3; f")
    assert await output_of(instance, "echo ${hidden-none} $shown $plain") == "none 2 3\n"


# -- source text ------------------------------------------------------------------------------------------


@pytest.mark.promise("instances:bash:source")
@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("cat <<EOF\nsum $((1 + 1))\nEOF", "sum 2\n"),
        ("cat <<'EOF'\n$HOME `x`\nEOF\necho after", "$HOME `x`\nafter\n"),
        ("for i in 1 2\ndo\n  echo $i\ndone # comment", "1\n2\n"),
        ("case x in\n  x) echo yes ;;\nesac", "yes\n"),
        ("echo one \\\n  two", "one two\n"),
        ("# only a comment", ""),
        ("", ""),
        ("  \n\n ", ""),
        ("echo 'é ☃ 中'", "é ☃ 中\n"),
        ('echo "a\n\tb"', "a\n\tb\n"),
        ("{ echo a; (echo b); } | cat", "a\nb\n"),
        ("echo $BASH_SUBSHELL $-", "0 hBc\n"),
    ],
)
async def test_source_text_can_be_any_script(instance: Instance, source: str, output: str) -> None:
    assert await output_of(instance, source) == output


@pytest.mark.promise("instances:bash:source")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_characters="\0'", exclude_categories=["Cs"]), max_size=300))
async def test_any_text_can_be_quoted(instance: Instance, text: str) -> None:
    assert await output_of(instance, f"printf %s '{text}'") == text


@pytest.mark.promise("instances:bash:source")
async def test_a_very_long_command_runs(instance: Instance) -> None:
    assert await output_of(instance, f"x='{'a' * 300_000}'\necho ${{#x}}") == "300000\n"


@pytest.mark.promise("instances:bash:source")
async def test_a_nul_character_in_a_command_is_refused(instance: Instance) -> None:
    for source in ("echo a\0b", "echo \ud800"):
        with pytest.raises(ValueError, match=r"NUL|surrogates"):
            await bash(instance, source)
    assert await output_of(instance, "echo fine") == "fine\n"


@pytest.mark.promise("instances:bash:source")
@pytest.mark.parametrize(
    "source", ["if then", "echo 'open", "for x in", "fi", "echo $(", "echo ${x", "f() {"]
)
async def test_a_syntax_error_fails_and_keeps_the_session(instance: Instance, source: str) -> None:
    await output_of(instance, "kept=1")
    result = await bash(instance, source)
    assert (result.outcome, result.state_lost) == (Outcome.OK, False)
    assert result.exit_code in (1, 2)
    assert "line" in result.stderr
    assert await output_of(instance, "echo $kept") == "1\n"


@pytest.mark.promise("instances:bash:output")
async def test_any_bytes_are_returned_as_text(instance: Instance) -> None:
    result = await bash(instance, "printf 'a\\0b\\377\\n'; printf 'e\\376' >&2")
    assert (result.stdout, result.stderr) == ("a\0b\ufffd\n", "e\ufffd")


@pytest.mark.promise("instances:bash:output")
async def test_a_run_reads_no_input_unless_allowed(instance: Instance) -> None:
    assert (await bash(instance, "cat; read x; echo \"read $? '$x'\"")).stdout == "read 1 ''\n"


@pytest.mark.promise("instances:bash:output")
async def test_tracing_shows_the_commands_of_the_user_only(instance: Instance) -> None:
    assert (await bash(instance, "set -x; echo hi")).stderr.strip("+ \n") == "echo hi"
    assert (await bash(instance, "echo there")).stderr.strip("+ \n") == "echo there"
    assert (await bash(instance, "set +x")).stderr.strip("+ \n") == "set +x"
    assert await output_of(instance, "echo quiet; set -v") == "quiet\n"
    assert "agentflow" not in (await bash(instance, "echo $?")).stderr
    assert (await bash(instance, "set +v")).exit_code == 0
    await output_of(instance, "trap 'echo failed' ERR")
    assert set((await bash(instance, "false")).stdout.split()) == {"failed"}
    assert await output_of(instance, "echo $?") == "1\n"


# -- ends -------------------------------------------------------------------------------------------------


@pytest.mark.promise("instances:bash:ended")
@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("echo said; exit 3", 3),
        ("echo said; set -e; false; echo no", 1),
        ("echo said; set -u; echo $nope; echo no", 127),
        ("echo said; exec true", 0),
        ("exec echo said", 0),
        ("echo said; kill -9 $$", 137),
        ("echo said; unset -f __agentflow_turn", 0),
    ],
)
async def test_the_end_of_a_shell_is_reported_with_its_status_and_a_fresh_one_follows(
    instance: Instance, source: str, code: int
) -> None:
    await output_of(instance, "kept=1; echo kept > file")
    result = await bash(instance, source)
    assert (result.exit_code, result.stdout, result.state_lost) == (code, "said\n", True)
    assert await output_of(instance, "echo ${kept-fresh}; cat file") == "fresh\nkept\n"


@pytest.mark.promise("instances:bash:ended")
async def test_a_program_that_replaces_the_shell_runs_to_its_end(instance: Instance) -> None:
    result = await bash(instance, "exec bash -c 'sleep 0.2; echo later; exit 4'")
    assert (result.stdout, result.exit_code, result.state_lost) == ("later\n", 4, True)


@pytest.mark.promise("instances:bash:ended")
async def test_exit_traps_run(instance: Instance) -> None:
    await output_of(instance, "trap 'echo bye' EXIT")
    result = await bash(instance, "exit 5")
    assert (result.stdout, result.exit_code) == ("bye\n", 5)


@pytest.mark.promise("instances:bash:rude")
@pytest.mark.parametrize(
    "source",
    [
        "break",
        "continue",
        "continue 2",
        "return",
        "exec 197>&-",
        "exec 3>&1 4</dev/null",
        "read() { return 1; }; printf() { echo evil; }; declare() { :; }; exit() { :; }; test() { :; }",
        "__agentflow_word=dump __agentflow_command='exit 9'",
        "IFS=x; POSIXLY_CORRECT=1; GLOBIGNORE='*'",
        "PATH=/nowhere; hash -r",
        "set -o posix; shopt -s extdebug failglob nocasematch extglob dotglob",
        "set -f; set -C; set -a; set -o functrace -o errtrace",
        "trap 'false' DEBUG; trap 'false' ERR; trap 'false' RETURN",
        "trap '' INT TERM HUP CHLD PIPE",
        "trap - RTMAX",
        "alias eval=false printf=false case=false; shopt -s expand_aliases",
        "exec 0</dev/null",
        "disown -a; coproc cat",
        "PS4='$(echo evil)'; PROMPT_COMMAND='echo evil'; TMOUT=1",
        "LC_ALL=xx_XX; LANG=C; BASH_ENV=/dev/zero; ENV=/dev/zero",
        "cd /; unset PWD OLDPWD HOME",
        "FUNCNEST=2; BASH_COMPAT=4.2",
    ],
)
async def test_a_session_survives_commands_that_change_it(instance: Instance, source: str) -> None:
    await output_of(instance, "kept=1")
    await bash(instance, source)
    result = await bash(instance, 'builtin echo "kept $kept"')
    assert (result.outcome, result.state_lost, result.exit_code) == (Outcome.OK, False, 0), result
    assert "kept 1\n" in result.stdout


@pytest.mark.promise("instances:bash:rude")
async def test_a_command_that_arrives_in_pieces_is_complete_at_any_read_timeout(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    await output_of(instance, "TMOUT=0.1")
    send = ShellControlSocket.send

    def hesitate(control: ShellControlSocket, data: bytes) -> None:
        send(control, data[:2])
        asyncio.get_running_loop().call_later(0.5, send, control, data[2:])

    monkeypatch.setattr(ShellControlSocket, "send", hesitate)
    assert await output_of(instance, "echo whole") == "whole\n"


@pytest.mark.promise("instances:bash:rude")
@pytest.mark.parametrize("source", ["exec 1>&-", "exec >log 2>&1"])
async def test_a_shell_can_redirect_its_output(instance: Instance, source: str) -> None:
    await bash(instance, f"exec 5>&1 6>&2; {source}")
    assert (await bash(instance, "echo lost")).stdout == ""
    assert await output_of(instance, "exec 1>&5 2>&6; echo back") == "back\n"


FIND_CONTROL = "for fd in /proc/$$/fd/*; do [[ -S $fd ]] && control=${fd##*/}; done; "
"""Set `control` to the descriptor at which the shell keeps its control socket during a run."""


@pytest.mark.promise("instances:control:unasked")
@pytest.mark.parametrize(
    "flood",
    [
        r"printf '2\0000\0/\0%.0s' {1..60000} >&$control",
        r"{ until [[ -e go ]]; do :; done; printf '0\0000\0/\0%.0s' {1..60000}; } >&$control &",
        r"head -c 40000000 /dev/zero | tr '\0' x >&$control",
    ],
    ids=["during the run", "after the run", "one endless reply"],
)
async def test_a_shell_that_keeps_replying_unasked_is_ended(instance: Instance, flood: str) -> None:
    await bash(instance, "kept=1; " + FIND_CONTROL + flood)
    await instance.write("go", b"")
    with anyio.fail_after(60):
        while (await instance.usage()).processes:
            continue
    again = await bash(instance, "echo kept=$kept")
    assert (again.outcome, again.stdout, again.exit_code) == (Outcome.OK, "kept=\n", 0)


@pytest.mark.promise("instances:control:unasked")
async def test_the_end_of_a_shell_that_replied_unasked_is_explained(instance: Instance) -> None:
    first = await bash(instance, FIND_CONTROL + r"printf '2\0000\0/\0%.0s' {1..99} >&$control; sleep 987")
    assert (first.outcome, first.state_lost) == (Outcome.ENDED, True)
    assert "replies that nobody had asked for" in first.detail
    assert (await bash(instance, "echo again")).stdout == "again\n"


@pytest.mark.promise("instances:control:unasked")
async def test_a_few_replies_to_other_requests_are_dropped(instance: Instance) -> None:
    forged = r"printf '1\0000\0/x\0%.0s' {1..20} >&$control; printf '99\0007\0/y\0' >&$control; kept=1"
    first = await bash(instance, FIND_CONTROL + forged)
    assert (first.exit_code, first.state_lost) == (0, False)
    again = await bash(instance, "echo kept=$kept; (exit 3)")
    assert (again.stdout, again.exit_code, again.state_lost) == ("kept=1\n", 3, False)


# -- jobs, input, ends of runs ------------------------------------------------------------------------------


@pytest.mark.promise("instances:bash:jobs")
async def test_a_job_continues_after_its_run_and_its_output_arrives_with_the_next(instance: Instance) -> None:
    await output_of(instance, "mkfifo go done; { cat go; echo from the job; echo > done; } & echo started")
    assert await output_of(instance, "jobs -r | wc -l") == "1\n"
    assert (
        await output_of(instance, "echo now > go; cat done; wait; echo end") == "now\nfrom the job\n\nend\n"
    )


@pytest.mark.promise("instances:bash:jobs")
async def test_ending_a_run_keeps_the_jobs_of_earlier_runs(instance: Instance) -> None:
    await output_of(instance, "sleep 8765 & old=$!; sleep 0.1")
    result = await instance.run("bash", "sleep 8766 & sleep 8766", timeout=1)
    assert (result.outcome, result.state_lost) == (Outcome.TIMEOUT, False)
    left = "kill -0 $old && echo old; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[8]766'"
    assert (await bash(instance, left)).stdout == "old\n0\n"


@pytest.mark.promise("instances:bash:input")
async def test_a_run_gets_input_while_it_runs(instance: Instance) -> None:
    ears = [Ear(b"name?"), Ear(b"age?")]
    results: list[RunResult] = []

    def sink(name: str, data: bytes) -> None:
        for ear in ears:
            ear("stdout", data)

    async def run() -> None:
        source = "echo name?; read name; echo age?; read age; echo $name is $age"
        results.append(await instance.run("bash", source, on_output=sink, stdin_open=True))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for ear, answer in zip(ears, (b"Ada\n", b"36\n"), strict=True):
            await ear.heard.wait()
            await instance.send_input("bash", answer)
    assert results[0].stdout == "name?\nage?\nAda is 36\n"


@pytest.mark.promise("instances:bash:input")
async def test_input_reaches_its_own_run_only(instance: Instance) -> None:
    with pytest.raises(RuntimeFailure, match="takes input"):
        await instance.send_input("bash", b"early\n")
    ear = Ear(b"on")
    async with anyio.create_task_group() as tasks:
        source = "echo on; read line; echo $line"
        tasks.start_soon(partial(instance.run, "bash", source, on_output=ear, stdin_open=True))
        await ear.heard.wait()
        await instance.send_input("bash", b"taken\nleft over\n")
    for language in ("bash", "python"):
        with pytest.raises(RuntimeFailure, match="takes input"):
            await instance.send_input("bash" if language == "bash" else "python", b"late\n")
    result = await instance.run("bash", "read -t 0.1 line; echo \"'$line'\"", stdin_open=True)
    assert result.stdout == "''\n"


@pytest.mark.promise("instances:bash:input")
async def test_input_beyond_the_pipe_capacity_is_refused(instance: Instance) -> None:
    ear = Ear(b"on")
    async with anyio.create_task_group() as tasks:
        source = "echo on; sleep 100"
        tasks.start_soon(partial(instance.run, "bash", source, on_output=ear, stdin_open=True))
        await ear.heard.wait()
        with pytest.raises(RuntimeFailure, match="does not read"):
            await instance.send_input("bash", bytes(10_000_000))
        assert await instance.interrupt("bash")


@pytest.mark.promise("instances:bash:interrupt")
@pytest.mark.parametrize(
    "source",
    [
        "echo on; sleep 100; touch reached",
        "echo on; while :; do :; done; touch reached",
        "f() { echo on; (sleep 100); touch reached; }; f; touch reached",
        "echo on; sleep 100 | cat; touch reached",
        "trap '' INT TERM HUP; echo on; sleep 100; touch reached",
        "echo on; cat; touch reached",
        "echo on; x=$(sleep 100); touch reached",
        "f() { echo on; sleep 100; touch reached; }; g() { f; touch reached; }; g; touch reached",
        "f() { echo on; sleep 100; }; while :; do f; done; touch reached",
        "set -o posix; echo on; read x < <(sleep 100); touch reached",
    ],
)
async def test_an_interrupt_ends_the_whole_run_and_keeps_the_session(instance: Instance, source: str) -> None:
    assert not await instance.interrupt("bash")
    await output_of(instance, "kept=1")
    ear, results = Ear(b"on"), list[RunResult]()

    async def run() -> None:
        results.append(await instance.run("bash", source, on_output=ear, stdin_open=True))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await ear.heard.wait()
        assert await instance.interrupt("bash")
    result = results[0]
    assert (result.outcome, result.stdout, result.state_lost) == (Outcome.INTERRUPTED, "on\n", False)
    assert await output_of(instance, "echo $kept; [[ -e reached ]] || echo stopped") == "1\nstopped\n"


@pytest.mark.promise("instances:bash:cancel")
async def test_cancelling_a_run_ends_it_with_the_processes_it_started(instance: Instance) -> None:
    ear = Ear(b"on")
    source = "kept=1; setsid sleep 8767 & echo on; sleep 8767; kept=2"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(instance.run, "bash", source, on_output=ear))
        await ear.heard.wait()
        tasks.cancel_scope.cancel()
    # A cancelled run does not wait for the end of its processes.
    gone = "while cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q '[8]767'; do :; done; echo $kept"
    assert (await bash(instance, gone)).stdout == "1\n"


@pytest.mark.promise("instances:bash:output")
async def test_each_of_many_shells_has_its_own_streams(runtime: ProcessRuntime) -> None:
    instances = [await runtime.start() for _ in range(24)]

    async def talk(instance: Instance) -> None:
        result = await bash(instance, "echo out; echo err >&2")
        assert (result.outcome, result.stdout, result.stderr) == (Outcome.OK, "out\n", "err\n")

    # Queued requests for interpreters hold descriptors, which shifts the numbers that the shells get.
    async with anyio.create_task_group() as tasks:
        for instance in instances:
            tasks.start_soon(instance.run, "python", "1")
            tasks.start_soon(talk, instance)
    for instance in instances:
        await instance.stop()
