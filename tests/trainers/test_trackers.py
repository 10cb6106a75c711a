"""Trackers that need packages of their own: the real ones, without their services."""

from pathlib import Path

import pytest

from tests.trainers._environments import drive

pytestmark = [
    pytest.mark.soak,
    pytest.mark.promise("trackers:once"),
    pytest.mark.promise("trackers:services"),
]


def test_mlflow_keeps_a_resumed_run_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A port that nothing listens to: the run must not use it.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = drive("trackers", "tracked_steps.py", "mlflow", tmp_path / "run", scratch=tmp_path)
    assert found["points"] == [["FINISHED", [[step, step / 2] for step in range(6)]]]
    assert found["refused"].startswith("trackers.use: mlflow can't begin: API request to http://127.0.0.1:9")
    assert "\n" not in found["refused"]


def test_swanlab_keeps_a_resumed_run_under_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "root"))
    found = drive("trackers", "tracked_steps.py", "swanlab", tmp_path / "run", scratch=tmp_path)
    (first, points), (second, more) = found["points"]
    assert first == second
    assert points + more == [[step, step / 2] for step in range(6)]
    assert found["refused"].startswith("trackers.use: swanlab can't begin: ")
    assert "no API key" in found["refused"]
