"""`learner:` in the settings of a synthesis: its mistakes, each in one line, and its settings."""

from pathlib import Path

import pytest
import yaml

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.learner import ROUNDS
from agentflow.synthesis import SynthesisConfig, SynthesisPipeline
from tests.behaviour._tree import ROOT

LEARNER: dict[str, object] = {"policy": {"model": "m"}, "schedule": {"steps": 2}}


@pytest.mark.promise("supervisor:flywheel:refused")
@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"learner": LEARNER, "number_of_seed": 3},
            "rounds: 3 seeds are too few for 3 rounds and held_out=0.25",
        ),
        ({"learner": LEARNER, "held_out": 0}, "rounds: 12 seeds are too few for 3 rounds and held_out=0"),
        (
            {"learner": LEARNER | {"schedule": {"epochs": 1}}},
            "learner.schedule: a round needs a fixed number of steps",
        ),
        (
            {"learner": LEARNER | {"schedule": {"steps": 2, "mode": "async"}}},
            "learner.schedule: a round needs a fixed number of steps",
        ),
        (
            {"learner": LEARNER | {"episodes": {"agent": "single"}}},
            "learner.episodes: the planner of a team grows the trees",
        ),
        (
            {"learner": LEARNER, "tasks": "terminal"},
            "tasks: with learner, pairs are trained on; set tasks=questions",
        ),
        ({"learner": LEARNER | {"episodes": 3}}, "learner.episodes: not a mapping"),
        ({"learner": LEARNER | {"schedule": {"step": 3}}}, "schedule.step is unknown; did you mean steps?"),
    ],
)
def test_settings_that_cannot_be_used_give_one_line_and_begin_nothing(
    settings: dict[str, object],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flywheel.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["synth", "flywheel.yaml"]) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]
    assert not Path("synthesis_results").exists()


@pytest.mark.promise("supervisor:flywheel:refused")
def test_damaged_rounds_and_wrong_choices_of_resume_give_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flywheel.yaml").write_text(
        yaml.safe_dump({"learner": LEARNER, "output_dir": "out"}), encoding="utf-8"
    )
    assert main(["synth", "flywheel.yaml", "--resume", "always"]) == 2
    assert "resume: out contains no run to resume" in capsys.readouterr().err
    Path("out/held-out").mkdir(parents=True)
    assert main(["synth", "flywheel.yaml", "--resume", "never"]) == 2
    assert "resume: out already contains a run" in capsys.readouterr().err
    Path("out", ROUNDS).write_text("[", encoding="utf-8")
    assert main(["synth", "flywheel.yaml"]) == 2
    assert "rounds.json: can't be read" in capsys.readouterr().err


@pytest.mark.promise("supervisor:flywheel:refused")
def test_a_pipeline_refuses_settings_of_rounds() -> None:
    with pytest.raises(ConfigurationError, match=r"^learner: such settings run in rounds"):
        SynthesisPipeline(config=SynthesisConfig.model_validate({"learner": LEARNER})).run()


@pytest.mark.promise("supervisor:flywheel")
def test_the_documented_settings_divide_their_steps_among_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", "--print-config", str(ROOT / "configs/supervisor/flywheel.yaml")]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["rounds"], shown["difficulty"]["window"]) == (3, [0.25, 0.75])
    assert shown["learner"]["schedule"]["steps"]
    assert shown["learner"]["episodes"]["short_prompts"]
