"""The settings of a rollout: every field is taken, and what can't be used is one line."""

import json
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr

from agentflow.errors import ConfigurationError
from agentflow.learner import TrainConfig
from agentflow.rollouts import BranchingSettings, RolloutConfig, assign, load_rollout_config
from agentflow.runs import RoleModel, render_config

ROOT = Path(__file__).parents[3]

DEFAULTS: dict[str, object] = {
    "data_path": None, "output_dir": None, "model_name": "gpt-4.1-2025-04-14", "api_key": "", "base_url": "",
    "max_retries": 3, "max_workers": 1, "available_tools": [], "system_prompt": "", "system_prompt_file": None,
    "evaluate_results": True, "evaluator_model_name": None, "evaluator_api_key": None, "evaluator_base_url": None,
    "evaluator_temperature": 0.0, "evaluator_max_retries": 3, "evaluator_extra_params": {}, "resource_types": [],
    "resource_init_configs": {}, "sandbox_auto_start": False, "sandbox_config_path": None, "sandbox_timeout": 120,
    "benchmark_name": None, "number_of_tasks": None, "task_ids": None, "parallel": False, "save_results": True,
    "save_trajectories": True, "trajectory_only": False, "save_summary": True,
}  # fmt: skip
"""The documented fields with their documented defaults."""

OTHERWISE: dict[str, object] = {
    "data_path": "mine.jsonl", "imports": ["json"], "benchmark_name": "gpqa", "number_of_tasks": 7, "task_ids": ["a", "b"], "samples": 3, "branching": {"width": 2},
    "agent": "single", "verify": "merged", "max_turns": 4, "max_retries": 1, "max_workers": 5, "parallel": True,
    "abstain": False, "short_prompts": True, "system_prompt": "dig", "system_prompt_file": "prompt.md", "episode_seconds": 9.0, "episode_tokens": 99,
    "episode_cost": 0.5, "memory_chars": 2000, "context_tokens": 5000, "planner_format": "labelled", "max_observation_chars": 700, "analyst_model": {"temperature": 0.5},
    "planner_model": {"temperature": 0.1}, "executor_model": {"temperature": 0.2},
    "verifier_model": {"temperature": 0.3}, "generator_model": {"temperature": 0.4}, "tool_model": {"temperature": 0.6},
    "tool_models": {"python_coder": {"temperature": 0.7}}, "evaluate_results": False,
    "evaluation_metric": "f1_score", "metric_options": {"tolerance": 0.1}, "evaluator_model_name": "judge",
    "evaluator_api_key": "sk-judge", "evaluator_base_url": "http://127.0.0.1:3/v1", "evaluator_temperature": 0.5,
    "evaluator_max_retries": 1, "evaluator_extra_params": {"top_k": 2}, "save_results": False,
    "save_trajectories": False, "trajectory_only": True, "save_summary": False, "output_dir": "mine",
    "available_tools": ["rag_search"], "on_missing_tool": "drop", "resource_types": ["knowledge_base"],
    "resource_init_configs": {"knowledge_base": {"top_k": 3}}, "sandbox_server_url": "http://127.0.0.1:1", "sandbox_token": "sesame",
    "sandbox_auto_start": True, "sandbox_config_path": "sandbox.yaml", "sandbox_timeout": 7.0, "max_sandboxes": 3,
    "model_name": "mine", "api_key": "sk-mine", "base_url": "http://127.0.0.1:2/v1", "api": "ollama", "temperature": 0.5,
    "top_p": 0.4, "max_tokens": 99, "max_text_chars": 40, "seed": 11, "extra_body": {"top_k": 3}, "vision": False, "max_concurrency": 9, "requests_per_minute": 60.0,
    "call_seconds": 8.0, "max_attempts": 2, "response_bytes": 5000, "structured": "text", "tokens": "exact", "prices": {"input": 1.0, "output": 2.0},
    "max_total_tokens": 5, "max_cost": 1.5, "max_seconds": 60.0, "journal": "sqlite:///mine.db", "run_name": "mine", "save_prompts": False, "tracing": False, "host_name": "north", "launch_id": "0af3",
}  # fmt: skip
"""Every field with something that is not its default."""
NEEDS_PRICES = {"episode_cost", "max_cost"}
OUTSIDE = {
    "data_path", "number_of_tasks", "task_ids", "max_workers", "parallel", "save_results", "save_trajectories",
    "trajectory_only", "save_summary", "output_dir", "imports", "sandbox_server_url", "sandbox_token", "sandbox_auto_start", "sandbox_timeout",
    "max_sandboxes", "api_key", "base_url", "api", "max_concurrency", "requests_per_minute", "call_seconds", "max_attempts", "response_bytes", "structured",
    "prices", "max_total_tokens", "max_cost", "max_seconds", "journal", "run_name", "save_prompts", "tracing", "host_name", "launch_id", "evaluator_api_key", "evaluator_base_url",
    "evaluator_max_retries",
}  # fmt: skip
"""Fields that do not affect the content."""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompt.md").write_text("Look twice.")


def shown(config: RolloutConfig, name: str) -> object:
    """A field as a file would say it."""
    own: object = getattr(config, name)
    if isinstance(own, RoleModel | BranchingSettings):
        return own.model_dump(mode="json", exclude_unset=True)
    if name == "tool_models":
        return config.model_dump(mode="json", exclude_unset=True).get(name, {})
    return own.get_secret_value() if isinstance(own, SecretStr) else config.model_dump(mode="json")[name]


def needs(name: str) -> dict[str, object]:
    """Settings that a field requires."""
    if name == "data_path":
        # Without it the tools depend on it.
        return {"available_tools": ["rag_search"]}
    if name == "context_tokens":
        return {"agent": "single"}
    if name == "tool_model":
        return {"available_tools": ["base_generator"]}
    if name == "tool_models":
        return {"available_tools": ["python:coder"]}
    return {"prices": {"input": 1, "output": 1}} if name in NEEDS_PRICES else {}


@pytest.mark.promise("rollout:tools:usual")
def test_tasks_of_ones_own_have_the_usual_tools_and_bundled_ones_the_corpus() -> None:
    usual = ("base_generator", "python_coder", "web_search", "web_wikipedia", "web_read")
    corpus = ("rag_search", "rag_get")
    for given, tools in (
        ({"model_name": "m", "data_path": "own.csv"}, usual),
        ({"planner_model": {"model_name": "m"}, "agent": "team", "data_path": "own.csv"}, usual),
        ({"model_name": "m", "data_path": "own.csv", "agent": "single"}, usual),
        ({"model_name": "m", "data_path": "own.csv", "sandbox_server_url": "http://h"}, usual[2:]),
        ({"model_name": "m", "benchmark_name": "bamboogle"}, corpus),
        ({"model_name": "offline", "data_path": "own.csv"}, corpus),
        ({"data_path": "own.csv"}, corpus),
    ):
        assert RolloutConfig.model_validate(given).default_tools == tools, given
    assert TrainConfig().rules_for("training").default_tools == corpus


@pytest.mark.promise("rollout:config:documented")
def test_every_documented_field_has_its_documented_default() -> None:
    config = RolloutConfig()
    assert {name: shown(config, name) for name in DEFAULTS} == DEFAULTS
    assert (config.turns, RolloutConfig(agent="single").turns) == (10, 100)


@pytest.mark.promise("rollout:config:fields")
def test_the_table_of_this_test_names_every_field() -> None:
    assert OTHERWISE.keys() == RolloutConfig.model_fields.keys()


@pytest.mark.promise("rollout:config:fields")
@pytest.mark.parametrize("name", OTHERWISE)
def test_every_field_is_taken_from_every_source(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {**needs(name), name: OTHERWISE[name]}
    text = {field: value if isinstance(value, str) else json.dumps(value) for field, value in said.items()}
    Path("config.json").write_text(json.dumps(said))
    Path("config.yaml").write_text(yaml.safe_dump(said))
    loaded = [
        load_rollout_config("config.json"),
        load_rollout_config("config.yaml"),
        load_rollout_config(overrides=[f"{field}={value}" for field, value in text.items()]),
        load_rollout_config(arguments=said),
    ]
    for field, value in text.items():
        monkeypatch.setenv(f"AGENTFLOW_{field.upper()}", value)
    loaded.append(load_rollout_config())
    assert [shown(config, name) for config in loaded] == [OTHERWISE[name]] * 5


@pytest.mark.promise("rollout:config:one-line")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_turn: 3", "max_turn is unknown; did you mean max_turns?"),
        ("planner_model: {temprature: 1}", "planner_model.temprature is unknown; did you mean temperature?"),
        ("max_workers: 0", "max_workers: input should be greater than or equal to 1"),
        ("agent: crowd", "agent: there is no 'crowd'; choose team, single or module:function"),
        ("{agent: single, verify: merged}", "verify: a single agent has no such role"),
        ("{agent: single, short_prompts: true}", "short_prompts: a single agent has no such role"),
        ("{agent: single, planner_format: labelled}", "planner_format: a single agent has no such role"),
        (
            "{planner_format: labelled, verify: merged}",
            "planner_format: labelled steps have no decision to stop",
        ),
        (
            "{planner_format: labelled, short_prompts: true}",
            "short_prompts: planner_format=labelled has a prompt of its own",
        ),
        ("planner_format: xml", "planner_format"),
        ("context_tokens: 5000", "context_tokens: a team has a memory instead; set memory_chars"),
        ("{agent: single, context_tokens: 9}", "context_tokens"),
        ("{agent: single, planner_model: {seed: 1}}", "planner_model: a single agent has no such role"),
        (
            "{verify: merged, verifier_model: {seed: 1}}",
            "verifier_model: with verify=merged the planner verifies",
        ),
        ("{parallel: false, max_workers: 4}", "parallel: contradicts max_workers=4"),
        ("{parallel: true, max_workers: 1}", "parallel: contradicts max_workers=1"),
        ("{system_prompt: a, system_prompt_file: b}", "system_prompt_file: system_prompt is set, too"),
        ("{trajectory_only: true, save_results: false}", "trajectory_only: results are not saved"),
        ("{evaluate_results: false, evaluation_metric: math}", "evaluation_metric: nothing is scored"),
        ("{evaluate_results: false, evaluator_temperature: 1}", "evaluator_temperature: nothing is scored"),
        ("tool_model: {seed: 1}", "tool_model: no tool uses a model; name one of base_generator"),
        (
            "tool_models: {rag_search: {seed: 1}}",
            "tool_models: rag_search: it uses no model; use base_generator",
        ),
        (
            "{available_tools: [base_generator], tool_models: {python_coder: {seed: 1}}}",
            "tool_models: python_coder: available_tools does not name it",
        ),
        (
            "{available_tools: [python_coder], sandbox_server_url: 'http://h'}",
            "available_tools: python_coder runs in this process",
        ),
        ("task_ids: []", "task_ids: names no task"),
        ("max_cost: 1", "prices: a budget of money needs them"),
    ],
)
def test_an_invalid_setting_gives_one_line(text: str, message: str) -> None:
    Path("config.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        load_rollout_config("config.yaml")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("rollout:config:one-line")
def test_an_unreadable_prompt_gives_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"system_prompt_file: nowhere.* can't be read"):
        _ = RolloutConfig(system_prompt_file="nowhere.md").instructions


@pytest.mark.promise("rollout:config:identity")
@pytest.mark.parametrize("name", OTHERWISE)
def test_the_identity_has_only_settings_that_affect_the_content(name: str) -> None:
    base = {"model_name": "big", "api_key": "sk", **needs(name)}
    before = RolloutConfig.model_validate(base).identity()
    after = RolloutConfig.model_validate({**base, name: OTHERWISE[name]}).identity()
    assert (after == before) is (name in OUTSIDE)


@pytest.mark.promise("rollout:config:models")
def test_each_role_has_its_own_model_and_the_judge_that_of_the_evaluator() -> None:
    config = RolloutConfig.model_validate({
        "model_name": "big", "temperature": 0.7, "planner_model": {"model_name": "trained", "temperature": 1.0},
        "analyst_model": {"temperature": 0.0}, "evaluator_model_name": "judge", "evaluator_max_retries": 5,
    })  # fmt: skip
    models = {role: (model.name, model.temperature) for role, model in config.models.items()}
    assert models == {
        "analyst": ("trained", 0.0), "planner": ("trained", 1.0), "executor": ("big", 0.7),
        "verifier": ("big", 0.7), "generator": ("big", 0.7), "judge": ("judge", 0.0),
    }  # fmt: skip
    assert config.models["judge"].max_attempts == 6
    alone = RolloutConfig(agent="single", model_name="big", evaluate_results=False)
    assert list(alone.models) == ["agent"]


@pytest.mark.promise("rollout:config:models")
def test_a_key_is_not_sent_to_another_endpoint() -> None:
    config = RolloutConfig(api_key=SecretStr("sk"), evaluator_base_url="http://127.0.0.1:9")
    assert config.models["judge"].api_key.get_secret_value() == ""


@pytest.mark.promise("rollout:config:models")
def test_the_api_of_one_endpoint_does_not_apply_to_another() -> None:
    config = RolloutConfig(
        base_url="http://127.0.0.1:8", api="ollama", evaluator_base_url="http://127.0.0.1:9"
    )
    assert (config.models["planner"].api, config.models["judge"].api) == ("ollama", "auto")


@pytest.mark.promise("rollout:config:print")
def test_printed_settings_contain_no_secret_and_can_be_loaded_again() -> None:
    config = RolloutConfig.model_validate({"model_name": "big", "planner_model": {"seed": 3}, "max_turns": 2})
    Path("printed.yaml").write_text(render_config(config))
    assert load_rollout_config("printed.yaml").model_dump() == config.model_dump()
    secret = RolloutConfig(api_key=SecretStr("sk-1-hidden"), evaluator_api_key=SecretStr("sk-2-hidden"))
    assert "hidden" not in render_config(secret)


@pytest.mark.promise("rollout:config:examples")
@pytest.mark.parametrize("path", sorted((ROOT / "configs/rollout").iterdir()), ids=lambda path: path.name)
def test_the_bundled_examples_load(path: Path) -> None:
    config = load_rollout_config(path)
    assert config.data_path or config.benchmark_name


@pytest.mark.promise("rollout:abstain")
@pytest.mark.parametrize(
    ("benchmark", "setting", "expected"),
    [
        ("hotpotqa", None, True), ("gpqa", None, False), ("gpqa", True, True), ("hotpotqa", False, False), ("gpqa", {"GPQA": True}, True),
        ("hotpotqa", {"gpqa": True}, True), ("aime24", {"AIME 2024": True, "hotpotqa": False}, True),
    ],
)  # fmt: skip
def test_an_answer_may_be_left_empty_as_the_benchmark_or_the_setting_says(
    benchmark: str, setting: bool | dict[str, bool] | None, expected: bool
) -> None:
    config = RolloutConfig(benchmark_name=benchmark, abstain=setting)
    assignment = assign(config)
    assert assignment.abstain is expected
    assert ("abstain" in config.identity()) is (setting is not None)


@pytest.mark.promise("rollout:abstain")
def test_an_unknown_benchmark_is_refused_and_a_single_agent_has_no_such_setting() -> None:
    with pytest.raises(ConfigurationError, match="did you mean gpqa"):
        assign(RolloutConfig(benchmark_name="gpqa", abstain={"gpqq": True}))
    with pytest.raises(ValueError, match="abstain: a single agent has no such role"):
        RolloutConfig(agent="single", model_name="m", abstain=False)
