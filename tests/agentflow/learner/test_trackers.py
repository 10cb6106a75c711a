"""Figures of steps: each recorded once, also by a resumed run."""

import json
import logging
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from pydantic import ValidationError

from agentflow.errors import ConfigurationError
from agentflow.learner.trackers import (
    METRICS,
    Trackers,
    TrackerSettings,
    open_trackers,
    read_figures,
)
from tests.agentflow.learner._tracker_files import tensorboard_points, wandb_steps

JSONL = TrackerSettings(use=("jsonl",))


def _log(folder: Path, steps: range, *, after: int = -1, worth: float = 0.0) -> None:
    trackers = open_trackers(JSONL, folder, after)
    for step in steps:
        trackers.log(step, {"reward/mean": worth + step})
    trackers.close()


def test_every_step_is_a_line(tmp_path: Path) -> None:
    _log(tmp_path, range(3))
    assert read_figures(tmp_path / METRICS) == [{"step": step, "reward/mean": step} for step in range(3)]


@pytest.mark.promise("trackers:once")
def test_a_resumed_run_has_every_step_once(tmp_path: Path) -> None:
    _log(tmp_path, range(6))
    _log(tmp_path, range(4, 8), after=3, worth=100)
    found = read_figures(tmp_path / METRICS)
    assert [figures["step"] for figures in found] == list(range(8))
    assert [figures["reward/mean"] for figures in found] == [0, 1, 2, 3, 104, 105, 106, 107]
    aside = read_figures(tmp_path / "metrics.set-aside.jsonl")
    assert aside == [{"step": 4, "reward/mean": 4}, {"step": 5, "reward/mean": 5}]


def test_a_line_truncated_by_a_crash_does_not_damage_the_next(tmp_path: Path) -> None:
    _log(tmp_path, range(2))
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 2, "rew')
    assert len(read_figures(tmp_path / METRICS)) == 2
    _log(tmp_path, range(2, 4), after=1)
    assert [figures["step"] for figures in read_figures(tmp_path / METRICS)] == [0, 1, 2, 3]


def test_non_finite_numbers_are_null(tmp_path: Path) -> None:
    trackers = open_trackers(JSONL, tmp_path)
    trackers.log(0, {"loss": float("nan"), "clip": float("inf"), "reward": 1.5})
    trackers.close()
    assert json.loads((tmp_path / METRICS).read_text()) == {
        "step": 0,
        "loss": None,
        "clip": None,
        "reward": 1.5,
    }


@pytest.mark.promise("trackers:failures")
def test_a_full_disk_leaves_whole_lines_and_costs_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trackers = open_trackers(JSONL, tmp_path)
    trackers.log(0, {"reward": 1.0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.WARNING, "agentflow.train"):
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / METRICS).stat().st_size + 10, before[1]))
        try:
            trackers.log(1, {"reward": 2.0})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    trackers.log(2, {"reward": 3.0})
    trackers.close()
    assert [figures["step"] for figures in read_figures(tmp_path / METRICS)] == [0, 2]
    assert (tmp_path / METRICS).read_text().count("\n") == 2
    (told,) = caplog.records
    assert "a tracker failed" in str(told.msg)
    assert "only 10 of" in str(told.msg)


def test_a_failing_tracker_is_logged_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def log(self, step: int, figures: Mapping[str, float]) -> None:
            raise OSError(f"no step {step}")

        def close(self) -> None:
            raise OSError("no end")

    class Kept:
        steps: list[int] = []  # noqa: RUF012 - one list for one test

        def log(self, step: int, figures: Mapping[str, float]) -> None:
            self.steps.append(step)

        def close(self) -> None:
            self.steps.append(-1)

    trackers = Trackers({"broken": Broken(), "kept": Kept()})
    with caplog.at_level(logging.WARNING, "agentflow.train"):
        trackers.log(0, {})
        trackers.log(1, {})
        trackers.close()
    assert Kept.steps == [0, 1, -1]
    assert [str(record.msg).count("a tracker failed") for record in caplog.records] == [1, 1, 1]


@pytest.mark.parametrize("again", [3, 2, 0])
def test_a_repeated_step_is_refused(tmp_path: Path, again: int) -> None:
    trackers = open_trackers(JSONL, tmp_path, 1)
    trackers.log(3, {})
    with pytest.raises(ValueError, match=f"step {again} comes after step 3"):
        trackers.log(again, {})
    trackers.close()


def test_the_console_shows_what_matters_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = TrackerSettings(use=("console",), console_figures=("reward/*", "loss/value"))
    trackers = open_trackers(settings, tmp_path)
    with caplog.at_level(logging.INFO, "agentflow.train"):
        trackers.log(4, {"loss/value": 0.123456, "reward/mean": 0.5, "tokens/trained": 1e6})
    trackers.close()
    (line,) = caplog.records
    event = cast("dict[str, object]", line.msg)
    assert set(event) >= {"event", "step"}
    shown = {name: event[name] for name in ("event", "step", "reward/mean", "loss/value")}
    assert shown == {"event": "step", "step": 4, "reward/mean": 0.5, "loss/value": 0.1235}
    assert "tokens/trained" not in event


@pytest.mark.promise("trackers:once")
def test_tensorboard_draws_each_step_once(tmp_path: Path) -> None:
    settings = TrackerSettings(use=("tensorboard",))
    for steps, after, worth in ((range(6), -1, 0.0), (range(4, 8), 3, 100.0)):
        trackers = open_trackers(settings, tmp_path, after)
        for step in steps:
            trackers.log(step, {"reward/mean": worth + step})
        trackers.close()
    points = tensorboard_points(tmp_path / "tensorboard", "reward/mean")
    assert points == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 104), (5, 105), (6, 106), (7, 107)]


@pytest.mark.promise("trackers:once")
def test_wandb_keeps_a_run_offline_and_resumes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for kind in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(tmp_path / kind))
    settings = TrackerSettings(use=("wandb",), project="tests")
    found: list[list[tuple[int, float]]] = []
    ids: set[str] = set()
    for steps, after in ((range(4), -1), (range(2, 6), 1)):
        trackers = open_trackers(settings, tmp_path, after)
        try:
            for step in steps:
                trackers.log(step, {"reward/mean": after + step})
            trackers.close()
        finally:
            wandb.teardown()  # Its own process has written everything once it has ended.
        # wandb names folders by the second: the next one shall not be the same.
        kept = (tmp_path / "wandb").rename(tmp_path / f"kept {after}")
        found.append(wandb_steps(kept))
        ids |= {path.stem for path in kept.glob("offline-run-*/run-*.wandb")}
    assert found == [[(0, -1), (1, 0), (2, 1), (3, 2)], [(4, 5), (5, 6)]]
    assert len(ids) == 1


def test_a_refused_login_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    for kind in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(tmp_path / kind))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    try:
        with pytest.raises(ConfigurationError, match=r"^trackers.use: wandb can't begin: No API key"):
            open_trackers(TrackerSettings(use=("wandb",), online=True), tmp_path)
    finally:
        wandb.teardown()


def test_trackio_gets_each_step_once_and_prints_nothing_to_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[tuple[str, int, dict[str, float]]] = []

    class Run:
        def log(self, metrics: dict[str, float], step: int) -> None:
            sent.append((resumed[-1], step, metrics))

        def finish(self) -> None:
            print("* Run finished.")  # noqa: T201 - as the library does

    def init(*, project: str, name: str, resume: str, embed: bool) -> Run:
        assert (project, name, embed) == ("tests", tmp_path.name, False)
        print("* Trackio project initialized")  # noqa: T201 - as the library does
        resumed.append(resume)
        return Run()

    resumed: list[str] = []
    stand_in = ModuleType("trackio")
    vars(stand_in)["init"] = init
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    settings = TrackerSettings(use=("trackio",), project="tests")
    for steps, after in ((range(3), -1), (range(1, 5), 0), (range(1), -1)):
        trackers = open_trackers(settings, tmp_path, after)
        for step in steps:
            trackers.log(step, {"reward/mean": float(step)})
        trackers.close()
    assert resumed == ["never", "allow", "never"]
    assert [(how, step) for how, step, _ in sent] == [
        ("never", 0), ("never", 1), ("never", 2), ("allow", 3), ("allow", 4), ("never", 0),
    ]  # fmt: skip
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["mlflow", "swanlab", "trackio", "wandb", "tensorboard"])
def test_a_tracker_whose_package_is_missing_is_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "torch.utils.tensorboard.writer" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, package, None)
    settings = TrackerSettings.model_validate({"use": ["jsonl", name]})
    with pytest.raises(ConfigurationError) as problem:
        open_trackers(settings, tmp_path)
    lack = "needs the extra train: " if name == "tensorboard" else f"is not installed; pip install {name}, "
    assert str(problem.value).startswith(f"trackers.use: {name} {lack}")
    assert "\n" not in str(problem.value)


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ValidationError, match="'tensorboard', 'mlflow', 'swanlab', 'trackio' or 'wandb'"):
        TrackerSettings.model_validate({"use": ["paper"]})
