"""`report.html` of every kind of run, and the live view of an active run."""

import json
import re
import signal
from html import unescape
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from agentflow.cli import main
from agentflow.dashboard import REPORT_PAGE, write_report
from agentflow.errors import RunStopped
from agentflow.inspection import open_runs
from agentflow.learner import (
    Batch,
    FlywheelResult,
    FlywheelRound,
    Group,
    Sample,
    TrainRun,
    load_train_config,
)
from agentflow.learner._checkpoints import RolloutStore
from agentflow.learner._rounds import write_rounds
from agentflow.rollouts import RolloutRun
from agentflow.synthesis import PAIRS
from agentflow.trace import Task
from tests.agentflow.cli._programs import running, until_it_says
from tests.agentflow.dashboard._access import opener_of
from tests.agentflow.learner._models import save_tiny_model
from tests.agentflow.learner.test_token_page import samples, write_run
from tests.agentflow.rollouts import _rollouts as rollouts
from tests.agentflow.synthesis._runs import until
from tests.system._supervised import endpoint

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e When was Needle Light built?"


def numbers(page: str) -> dict[str, str]:
    """Return the rows of two cells in a report, and check that it holds nothing but its own markup."""
    assert not re.search(r"<(script|img|iframe|a|link|object)\b", page)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", page)
    assert "default-src 'none'" in page
    rows = re.findall(r"<tr><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td></tr>", page)
    return {unescape(name): unescape(value) for name, value in rows}


@pytest.mark.promise("view:report")
async def test_the_report_of_a_rollout_has_the_numbers_of_its_summary_also_after_a_stop(
    tmp_path: Path,
) -> None:
    tasks = [
        Task(index=0, id="hostile", question=HOSTILE, references=(HOSTILE,)),
        *rollouts.some_tasks(4)[1:],
    ]
    config = rollouts.config_for(tmp_path / "stopped", max_workers=1)
    run = RolloutRun(config)

    async def stop() -> None:
        await until(lambda: run.status().done)
        run.stop("a test")

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        with pytest.raises(RunStopped):
            await run.run(rollouts.assigned(config, tasks))
    stopped = (tmp_path / "stopped" / REPORT_PAGE).read_text(encoding="utf-8")
    done = json.loads((tmp_path / "stopped" / "summary.json").read_bytes())["tasks"]
    assert 1 <= done < 4
    assert (numbers(stopped)["seeds"], numbers(stopped)["finished"]) == ("4", str(done))
    assert "rollout · stopped" in stopped
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in stopped

    _, summary = await rollouts.run_to_the_end(config, tasks)
    whole = (tmp_path / "stopped" / REPORT_PAGE).read_text(encoding="utf-8")
    assert "rollout · done" in whole
    assert (numbers(whole)["seeds"], numbers(whole)["finished"]) == ("4", str(summary.tasks))
    with open_runs(tmp_path / "stopped") as runs:
        used = runs.runs()[0].usage["planner"]
    cells = (used.calls, used.prompt_tokens, used.completion_tokens)
    assert "".join(f"<td class=n>{cell}</td>" for cell in cells) in whole


@pytest.mark.promise("view:report")
def test_every_rollout_of_an_evaluation_has_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [{"id": str(number), "question": HOSTILE, "answer": "183"} for number in range(2)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = ["eval", "aime24", "--data", "own.jsonl", "--json", "max_turns=1"]
    assert main(words) == 0
    (row,) = json.loads(capsys.readouterr().out)
    page = (Path(row["output_dir"]) / REPORT_PAGE).read_text(encoding="utf-8")
    assert numbers(page)["finished"] == str(row["summary"]["tasks"]) == "2"


def _of_tiny_model(sample: Sample) -> Sample:
    """Return the sample with tokens that the tiny model has."""
    calls = (
        replace(call, prompt=tuple(t % 60 for t in call.prompt), sampled=tuple(t % 60 for t in call.sampled))
        for call in sample.calls
    )
    return replace(sample, calls=tuple(calls))


@pytest.mark.promise("view:report")
async def test_the_report_of_a_training_has_its_figures_and_failures(tmp_path: Path) -> None:
    group = Group(number=0, name="t@0", samples=tuple(map(_of_tiny_model, samples()[:4])))
    RolloutStore(tmp_path / "stored").write(Batch(step=1, version=0, taken=1, groups=(group,)))
    save_tiny_model(tmp_path / "tiny")
    given = {
        "policy": {"model": str(tmp_path / "tiny")},
        "loss": {"kl_coef": 0.0},
        "schedule": {"replay": str(tmp_path / "stored"), "steps": 1},
        "output_dir": str(tmp_path / "training"),
    }
    outcome = await TrainRun(load_train_config(arguments=given)).run()
    page = (tmp_path / "training" / REPORT_PAGE).read_text(encoding="utf-8")
    assert numbers(page)["training steps"] == str(outcome.steps)
    with open_runs(tmp_path / "training") as runs:
        summary = runs.runs()[0]
        (line,) = runs.run(summary.id).metrics()
    assert (summary.state, summary.steps) == ("done", outcome.steps)
    assert f"training · {summary.state}" in page
    shown = [(name, value) for name, value in list(line.figures.items())[:24] if value is not None]
    assert shown and all(f"{name}: {value:.4g} " in page for name, value in shown)


@pytest.mark.promise("view:report")
def test_the_report_of_a_tuning_counts_what_was_left_out_and_escapes_its_figures(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "tuning")
    (folder / "gateway").mkdir()
    lines = [
        {"step": step, "reward/mean": 0.25 * step, HOSTILE: 1.0, "episodes/failed_time": 2, "usage/calls": 3,
         "usage/prompt_tokens": 40, "usage/completion_tokens": 5, "usage/cost": 0.5}
        for step in (1, 2)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    page = write_report(folder).read_text(encoding="utf-8")
    found = numbers(page)
    assert (found["training steps"], found["time"], found["cost"]) == ("2", "4", "1.0000")
    assert "tuning · stopped" in page
    assert "reward/mean: 0.5 " in page
    assert "<td class=n>6</td><td class=n>80</td><td class=n>10</td>" in page


@pytest.mark.promise("supervisor:flywheel:page")
def test_the_report_of_rounds_lists_them_and_the_steps_that_used_each_pair(tmp_path: Path) -> None:
    write_run(tmp_path / "training")
    finished = FlywheelRound(
        number=1,
        version=0,
        seeds=4,
        pairs=4,
        shared=1,
        rates={"t": 0.5, "u": 0.75, "<b>": 1.0},
        chosen=("t", "u"),
        steps=3,
        next_version=3,
        held_out=0.625,
        gain=(0.125, -0.05, 0.3),
    )
    write_rounds(tmp_path, FlywheelResult(held_out_pairs=8, baseline=0.5, rounds=(finished,)))
    lines = [{"qa_id": id, "question": f"What is {id}?"} for id in finished.rates]
    (tmp_path / "round-1").mkdir()
    (tmp_path / "round-1" / PAIRS).write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    numbers(page)
    assert "Version 0 at 8 held-out pairs: 50.0%." in page
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    gain = ["62.5%", "+12.5", "-5.0 to +30.0"]
    assert ["1", "version 0", "4", "4", "2", "3", *gain] in cells
    assert [row for row in cells if len(row) == 5 and row[0] in ("t", "u", "&lt;b&gt;")] == [
        ["t", "What is t?", "50%", "yes", "3"],
        ["u", "What is u?", "75%", "yes", "3"],
        ["&lt;b&gt;", "What is &lt;b&gt;?", "100%", "no", ""],
    ]


@pytest.mark.promise("view:open")
def test_the_active_run_of_a_supervisor_opens_in_a_browser_and_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    small = ("max_depth=2", "depth_threshold=1", "number_of_seed=2", f"output_dir={folder}")
    with (
        endpoint(hold_after=0) as at,
        running("agentflow.supervisor", *at.words, *small, cwd=tmp_path) as process,
    ):
        until_it_says(process, "control server")
        words = ("ctl", "open", "--dir", str(folder), "--no-open", "--json")
        with running("agentflow.cli", *words, cwd=tmp_path) as viewer:
            assert viewer.stdout is not None
            known = json.loads(viewer.stdout.readline())
            assert known["link"].startswith(f"{known['url']}/r/")
            with opener_of(known["link"]).open(f"{known['url']}/api/runs") as answer:
                (run,) = json.load(answer)
            assert (run["kind"], run["state"], run["folder"]) == ("synthesis", "running", str(folder))
            viewer.send_signal(signal.SIGINT)
            assert viewer.wait() == 0
        assert process.poll() is None
        at.release()
        process.communicate(timeout=60)
    page = (folder / REPORT_PAGE).read_text(encoding="utf-8")
    assert numbers(page)["finished"] == "2"
