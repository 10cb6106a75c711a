"""Parsing of the shell's job listing."""

import os
import signal
import subprocess
import tempfile

from mcp_servers.bash._backend import LIST_JOBS, ShellJob, parse_jobs


def listed(script: str) -> list[ShellJob]:
    # Its output goes to a file, because background jobs would hold a pipe open.
    with tempfile.TemporaryFile() as output:
        shell = subprocess.Popen(
            ["bash", "-c", f"{script}\n{LIST_JOBS}"], stdout=output, start_new_session=True
        )
        try:
            shell.wait()
            output.seek(0)
            return parse_jobs(output.read().decode())
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def test_each_job_has_its_number_process_state_and_command() -> None:
    first, second = listed("sleep 100 &\nsleep 200 &")
    assert (first.number, first.state, first.command) == (1, "Running", "sleep 100")
    assert (second.number, second.state, second.command) == (2, "Running", "sleep 200")
    assert first.pid != second.pid


def test_a_pipeline_is_one_job() -> None:
    (job,) = listed("sleep 100 | cat | cat &")
    assert job.command == "sleep 100 | cat | cat"


def test_a_command_of_several_lines_is_one_job() -> None:
    (job,) = listed("for i in 1 2; do\nsleep 100\ndone &")
    assert job.command == "for i in 1 2; do sleep 100; done"


def test_a_shell_without_jobs_has_none() -> None:
    assert listed("sleep 100 & disown") == []


def test_states_of_several_words_are_kept_whole() -> None:
    (job,) = parse_jobs("[1]+  4711 Stopped (tty input)     cat | wc\n")
    assert (job.state, job.command) == ("Stopped (tty input)", "cat | wc")
