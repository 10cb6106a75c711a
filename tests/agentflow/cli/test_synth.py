"""`agentflow synth` and `python -m agentflow.supervisor`, as somebody starts them."""

import json
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from agentflow.cli import main, synth
from agentflow.synthesis import TREES
from tests.agentflow.cli._programs import finish, run_here, running, until_it_says
from tests.system._supervised import Endpoint, endpoint

PROGRAM = "agentflow.supervisor"
SMALL = ("max_depth=3", "depth_threshold=2", "number_of_seed=3", "control=false")


@pytest.fixture
def at() -> Iterator[Endpoint]:
    """An endpoint that answers nothing yet: there is time for signals."""
    with endpoint(hold_after=0) as held:
        yield held


@contextmanager
def growing(folder: Path, at: Endpoint) -> Generator[Popen[str]]:
    """A program whose trees have begun to grow."""
    with running(PROGRAM, *at.words, *SMALL, cwd=folder) as process:
        until_it_says(process, "started")
        until_it_says(process, "growing")
        at.wait_for(calls=1)
        yield process


def stops(process: Popen[str], at: Endpoint) -> None:
    """Wait until it is to stop, and let it have what it waits for."""
    until_it_says(process, "stopping")
    at.release()


@pytest.mark.promise("supervisor:signals")
def test_ctrl_c_stops_it_cleanly_and_the_same_command_resumes(at: Endpoint, tmp_path: Path) -> None:
    with growing(tmp_path, at) as process:
        process.send_signal(signal.SIGINT)
        stops(process, at)
        status, _, err = finish(process)
    assert status == 130
    assert "stopped: received SIGINT; run the same command again to resume" in err
    assert "Traceback" not in err
    assert (tmp_path / "synthesis_results" / TREES).exists()
    after = run_here(*at.words, *SMALL, cwd=tmp_path, command=synth)
    assert after.returncode == 0, after.stderr
    assert len((tmp_path / "synthesis_results" / TREES).read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.promise("supervisor:signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_that_end_programs_stop_it_cleanly_too(
    number: signal.Signals, at: Endpoint, tmp_path: Path
) -> None:
    with growing(tmp_path, at) as process:
        process.send_signal(number)
        stops(process, at)
        status, _, err = finish(process)
    assert status == 130
    assert f"stopped: received {number.name}" in err


@pytest.mark.promise("supervisor:signals")
def test_a_second_signal_does_not_wait_for_calls_in_flight(at: Endpoint, tmp_path: Path) -> None:
    with growing(tmp_path, at) as process:
        process.send_signal(signal.SIGINT)
        until_it_says(process, "stopping")
        process.send_signal(signal.SIGINT)
        status, _, err = finish(process)
    assert status == 130
    assert "Traceback" not in err


@pytest.mark.promise("supervisor:closed-pipe")
def test_it_stops_when_the_reader_of_its_output_closes_the_pipe(at: Endpoint, tmp_path: Path) -> None:
    with growing(tmp_path, at) as process:
        assert process.stdout is not None
        process.stdout.close()
        stops(process, at)
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait(60) == 130
    assert "stopped: its output was closed" in err
    assert "Traceback" not in err


@pytest.mark.promise("supervisor:print-config")
def test_print_config_shows_the_resolved_settings_without_secrets_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["synth", "--print-config", "max_depth=4", "api_key=sesame"]) == 0
    shown = capsys.readouterr().out
    assert "max_depth: 4\n" in shown
    assert "sesame" not in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("supervisor:refused")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["max_dept=4"], "max_dept is unknown; did you mean max_depth?"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["model_name=gpt-4.1"], "OPENAI_API_KEY"),
        (["available_tools=[browse_url]", "seeds_file=seeds.jsonl"], "seeds.jsonl"),
        (["number_of_seed=0"], "number_of_seed"),
        (["--resume", "always"], "no run 'synthesis'"),
    ],
)
def test_invalid_settings_are_refused_in_one_line_with_status_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["synth", *arguments]) == 2
    complaint = [line for line in capsys.readouterr().err.splitlines() if line.startswith("agentflow")]
    assert len(complaint) == 1
    assert said in complaint[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("supervisor:early-end")
def test_a_run_that_ends_early_says_why_and_has_its_own_status(at: Endpoint, tmp_path: Path) -> None:
    at.release()
    ended = run_here(*at.words, "max_total_tokens=3000", *SMALL, "--json", cwd=tmp_path, command=synth)
    assert ended.returncode == 3, ended.stderr
    said = json.loads(ended.stdout)
    assert said["stopped"]["cause"] == "budget"
    assert "agentflow: the budget of 3,000 tokens is used up" in ended.stderr
