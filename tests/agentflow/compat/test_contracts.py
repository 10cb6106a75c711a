"""The snippets that other systems print run unchanged after `import agentflow.compat`."""

import inspect
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.errors import ConfigurationError
from agentflow.synthesis import SynthesisConfig, TreeRecord, load_config, load_seeds, synthesize
from tests._core import core_python
from tests.agentflow.compat._printed import printed
from tests.agentflow.compat.conftest import Workplace
from tests.behaviour._tree import ROOT

SYNTHESIS = printed("data_synthesis")
SOLVER = printed("flow_grpo")


def run(text: str, **names: object) -> dict[str, Any]:
    """Run a snippet after the import; return its names."""
    space: dict[str, Any] = {"__name__": "__main__", **names}
    exec(compile(f"import agentflow.compat\n{text}", "snippet", "exec"), space)
    return space


def records(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make trees small: the printed sizes are those of real models."""
    for name, value in {
        "MAX_DEPTH": "1",
        "MIN_DEPTH": "1",
        "BRANCHING_FACTOR": "1",
        "MIN_REASONING_STEPS": "1",
    }.items():
        monkeypatch.setenv(f"AGENTFLOW_{name}", value)


@pytest.mark.usefixtures("small")
@pytest.mark.promise("compat:snippets")
def test_a_synthesis_of_the_web_runs_as_printed(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "key")
    monkeypatch.setenv("AGENTFLOW_BRANCHING_FACTOR", "2")
    run(SYNTHESIS["synthesize"].text)
    trees = records("synthesis_results/web/trees.jsonl")
    assert len(trees) == 3
    searches: list[dict[str, Any]] = [
        node
        for tree in trees
        for node in tree["nodes"]
        if node["action"] and node["action"]["tool"] == "web_search"
    ]
    assert any("Ada built it in 1841." in node["observation"] for node in searches)


@pytest.mark.promise("compat:snippets")
def test_a_rollout_and_a_question_run_as_printed(
    workplace: Workplace, printed_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "serving bash, browser, code, files, rag, web at http://0.0.0.0:18890/mcp" in printed_server
    results = run(SYNTHESIS["rollout"].text)["results"]
    assert results["summary"]["metric"] == "f1_score"
    assert len(results["results"]) == 6
    result = run(SYNTHESIS["quick_rollout"].text)["result"]
    assert result["success"]
    assert capsys.readouterr().out.strip() == result["answer"]


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("small", "printed_server")
@pytest.mark.promise("compat:snippets")
def test_snippets_run_without_extras_or_say_in_one_line_which_one_to_add(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT_DIR", "core_results")
    monkeypatch.setenv("SERPER_API_KEY", "key")
    for names, said in ((("rollout", "quick_rollout"), None), (("synthesize",), "agentflow extras add web;")):
        text = "\n".join(["import agentflow.compat", *(SYNTHESIS[name].text for name in names)])
        command = [core_python(), "-W", "error", "-c", text]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        if said is None:
            assert done.returncode == 0, done.stderr
        else:
            assert said in done.stderr.splitlines()[-1]


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("small", "printed_server")
@pytest.mark.promise("compat:snippets")
def test_a_synthesis_runs_as_printed_with_each_kind_of_seeds(workplace: Workplace) -> None:
    run(SYNTHESIS["module_synthesize"].text)
    first = records("output/synthesis_results/trees.jsonl")
    assert [tree["seed_data"] for tree in first] == [seed["content"] for seed in records("seeds.jsonl")]
    run(SYNTHESIS["module_seeds"].text, synthesize=synthesize)
    run(SYNTHESIS["workflow"].text)
    # Repeated seeds are grown once; one with other arguments is another seed.
    assert [tree["seed_data"] for tree in records("output/synthesis_results/trees.jsonl")] == [
        *(seed["content"] for seed in records("seeds.jsonl")),
        "Research the top 10 countries by GDP in 2024",
        "Analyze a company's financial reports",
        *("Research topic A", "Research topic B", "Research topic A"),
    ]
    run(SYNTHESIS["pipeline"].text)
    assert records("my_output/trees.jsonl")


@pytest.mark.timeout(300)
@pytest.mark.promise("compat:snippets")
def test_a_desktop_is_used_as_printed(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    run(SYNTHESIS["sandbox"].text)
    shown = capsys.readouterr().out
    assert "Image(image/png, " in shown
    assert "\\x" not in shown


@pytest.mark.promise("compat:snippets")
def test_a_question_is_solved_as_printed(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    output = run(SOLVER["solver"].text)["output"]
    assert output["step_count"] > 0
    assert isinstance(output["direct_output"], str)
    assert output["direct_output"]
    assert capsys.readouterr().out.strip() == output["direct_output"]


@pytest.mark.promise("compat:settings")
@pytest.mark.parametrize("name", [name for name in SYNTHESIS if name.endswith(".json")])
def test_printed_settings_load_with_every_value(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = json.loads(SYNTHESIS[name].text)
    path = tmp_path / name
    path.write_text(SYNTHESIS[name].text)
    config = load_config(path)
    taken = json.loads(config.model_dump_json())
    assert config.api_key.get_secret_value() == given.pop("api_key", "")
    assert {key: taken[key] for key in given} == given


@pytest.mark.promise("compat:settings")
@pytest.mark.parametrize("name", [name for name in SYNTHESIS if name.endswith(".jsonl")])
def test_printed_seeds_load(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(SYNTHESIS[name].text)
    assert load_seeds(str(path)) == [json.loads(line) for line in SYNTHESIS[name].text.splitlines()]
    with pytest.raises(ConfigurationError, match=r"missing\.jsonl"):
        load_seeds(str(tmp_path / "missing.jsonl"))


@pytest.mark.promise("compat:settings")
def test_printed_signatures_accept_the_same_calls() -> None:
    for name, own in {"synthesize": synthesize, "load_config": load_config, "load_seeds": load_seeds}.items():
        text = SYNTHESIS[f"signature_{name}"].text.strip()
        space: dict[str, Any] = {}
        exec(f"from typing import *\nSynthesisConfig = object\n{text}: ...", space)
        ours = inspect.signature(own).parameters
        for parameter in inspect.signature(space[name]).parameters.values():
            assert ours[parameter.name].kind in (parameter.kind, parameter.POSITIONAL_OR_KEYWORD)
            assert ours[parameter.name].default in (parameter.default, None)


@pytest.mark.usefixtures("small", "printed_server")
@pytest.mark.promise("compat:files")
def test_output_files_have_the_printed_fields(workplace: Workplace) -> None:
    trajectory = json.loads(SYNTHESIS["trajectory"].text)
    nodes = msgspec.convert(trajectory, TreeRecord).tree.nodes
    actions = [
        None if node.action is None else {"tool": node.action.tool, "args": node.action.arguments}
        for node in nodes
    ]
    assert actions == [node["action"] for node in trajectory["nodes"]]
    run(SYNTHESIS["module_synthesize"].text)
    for written in records("output/synthesis_results/trajectories.jsonl"):
        assert trajectory.keys() <= written.keys()
        for node in written["nodes"]:
            assert trajectory["nodes"][0].keys() <= node.keys()
            assert node["action"] is None or {"tool", "args"} == node["action"].keys()
    pair = json.loads(SYNTHESIS["pair"].text)
    for written in records("output/synthesis_results/synthesized_qa.jsonl"):
        assert pair.keys() <= written.keys()
        assert all("step" in step for step in written["reasoning_steps"])


def test_a_setting_of_the_tables_is_a_field() -> None:
    assert SynthesisConfig.model_fields.keys() >= json.loads(SYNTHESIS["config.json"].text).keys()


@pytest.mark.promise("cli:core")
def test_a_question_is_solved_as_printed_on_a_core_installation(workplace: Workplace) -> None:
    # The other printed snippets need tools of a server, which has more extras.
    run = subprocess.run(
        [core_python(), "-W", "error", "-c", f"import agentflow.compat\n{SOLVER['solver'].text}"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()
