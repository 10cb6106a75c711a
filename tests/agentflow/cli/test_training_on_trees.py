"""`learner:` with tasks of its own in the settings of a synthesis, as somebody writes it."""

import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import yaml
from anyio import to_thread

from agentflow.cli import main
from agentflow.cli._train import training_of
from agentflow.learner.trackers import METRICS, read_figures
from agentflow.serving import ModelServer
from agentflow.serving._control import EngineControl
from agentflow.synthesis import SynthesisConfig
from agentflow.trace import Task
from tests._vllm import as_it_was
from tests.agentflow.cli._programs import run

TASKS = [
    {"question": "When was Needle Light built?", "answer": "1834"},
    {"id": "comet", "question": "Who found it?", "answer": ["Maeve Calloran", "Calloran"]},
]


_asked: Counter[str] = Counter()


def in_turn(answer: str, task: Task) -> float:
    """A reward that differs within a tree: a model that knows nothing earns none, and nothing would be learned."""
    del answer
    _asked[task.id] += 1
    return float(_asked[task.id] % 2)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(task) + "\n" for task in TASKS), encoding="utf-8")
    return file


def config(tasks: Path, **more: object) -> SynthesisConfig:
    learner = {"policy": {"model": "models/planner"}, "tasks": {"data_path": str(tasks)}}
    return SynthesisConfig.model_validate({"learner": learner, **more})


@pytest.mark.promise("supervisor:learner")
def test_settings_changed_in_place_apply_to_training(tasks: Path) -> None:
    given = config(tasks)
    given.generator_model.temperature = 0.3
    given.available_tools.append("rag:search")
    given.resource_init_configs["rag"] = {"index_path": "docs"}
    episodes = training_of(given).episodes
    assert episodes.generator_model.temperature == 0.3
    assert episodes.available_tools == ["rag:search"]
    assert episodes.resource_init_configs == {"rag": {"index_path": "docs"}}
    assert training_of(config(tasks)).episodes.model_fields_set == {"max_turns"}


@pytest.mark.promise("supervisor:learner")
def test_the_tree_settings_of_a_synthesis_apply_to_training(tasks: Path) -> None:
    learner = {
        "policy": {"model": "models/planner"},
        "tasks": {"data_path": str(tasks)},
        "growth": {"depth_threshold": 1},
        "schedule": {"tasks_per_step": 2},
    }
    training = training_of(
        config(
            tasks,
            max_depth=3,
            branching_factor=4,
            sampling_tips="Look twice.",
            available_tools=["rag:search"],
            model_name="frozen",
            output_dir="trained",
            learner=learner,
        )
    )
    assert training.tree is not None
    assert (training.tree.width, training.tree.leaves, training.tree.merge_duplicates) == (4, 4, True)
    assert (training.episodes.max_turns, training.episodes.system_prompt) == (3, "Look twice.")
    assert training.episodes.available_tools == ["rag:search"]
    assert training.episodes.models["generator"].name == "frozen"
    assert training.episodes.models["planner"].name == "policy"
    assert (training.output_dir, training.schedule.tasks_per_step) == ("trained", 2)


@pytest.mark.promise("supervisor:learner")
def test_its_settings_are_shown_as_those_of_the_training(
    tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = (
        f'learner={{policy: {{model: "m"}}, engine: {{api_key: "sesame"}}, tasks: {{data_path: {tasks}}}}}'
    )
    assert main(["synth", "--print-config", learner]) == 0
    said = capsys.readouterr().out
    assert "width: 2" in said
    assert "sesame" not in said


@pytest.mark.timeout(900)
@pytest.mark.promise("supervisor:learner:vllm")
async def test_a_supervisor_grows_trees_on_a_real_vllm_and_trains_their_planner_on_the_leaves(
    vllm: ModelServer, tasks: Path, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as model:
        said = {
            "output_dir": str(tmp_path / "trained"),
            "resource_types": ["rag"],
            "max_depth": 2,
            "depth_threshold": 2,
            "branching_factor": 2,
            "temperature": 1.0,
            "learner": {
                "policy": {"model": str(model), "dtype": "float32", "device": "cpu", "threads": 1},
                "engine": {"base_url": vllm.url, "api_key": vllm.key, "name": vllm.model},
                "schedule": {"steps": 1, "epochs": None, "tasks_per_step": 2, "episodes_per_task": 8},
                "tasks": {"data_path": str(tasks), "metric": f"{__name__}:in_turn"},
                "episodes": {
                    "planner_model": {
                        "structured": "json_schema",
                        "max_text_chars": 16,
                        "max_tokens": 600,
                        "call_seconds": 600,
                    }
                },
                "trackers": {"use": ["jsonl"]},
            },
        }
        (tmp_path / "trees.yaml").write_text(yaml.safe_dump(said), encoding="utf-8")
        words = ("agentflow.supervisor", "--json", "--config", "trees.yaml")
        done = await to_thread.run_sync(
            partial(run, *words, cwd=tmp_path, seconds=600, python=sys.executable)
        )
        assert done.returncode == 0, done.stderr
        async with EngineControl(vllm.address, vllm.key) as control:
            assert await control.version() == "1", done.stderr
    (line,) = (one for one in read_figures(tmp_path / "trained" / METRICS) if one["step"] == 1)
    assert (line["episodes/count"] or 0) >= 4
    assert 0 < (line["step/tree_token_ratio"] or 0) < 1, "leaves of a tree share their beginnings"
