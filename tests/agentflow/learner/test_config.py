"""The settings of a training run."""

from pathlib import Path

import anyio.lowlevel
import pytest

from agentflow.errors import ConfigurationError
from agentflow.learner import load_train_config
from agentflow.learner._engine import PolicyEngine
from agentflow.runs import render_config
from agentflow.serving import Published
from agentflow.settings import RenamedSettingWarning
from tests.behaviour._tree import ROOT

EXAMPLES = sorted((ROOT / "configs/train").glob("*.yaml"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory without settings."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.promise("training:config:one-line")
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("schedule.step=3", "schedule.step is unknown; did you mean steps?"),
        ("episodes.max_turn=3", "episodes.max_turn is unknown; did you mean max_turns?"),
        ("policy.modle=x", "policy.modle is unknown; did you mean model?"),
        ("loss.name=grop", "loss: there is no loss 'grop'; known are"),
        ("loss.clip=1", "loss.clip is unknown; did you mean"),
        ("backbone=remote", "backbone: input should be 'local', 'verl', 'trinity' or 'debug'"),
        ("engine.server.devic=cpu", "engine.server.devic is unknown; did you mean device?"),
        ("episodes.samples=4", "samples: training does not use it; set schedule.episodes_per_task instead"),
        ("episodes.data_path=x", "data_path: training does not use it; set tasks.data_path instead"),
        ("episodes.save_summary=false", "save_summary: training does not use it; leave it out"),
        ("episodes.evaluate_results=false", "evaluate_results: training needs a reward"),
        ("episodes.trained=[scribe]", "trained: there is no role scribe; choose from analyst, planner"),
        (
            "episodes.planner_model.model_name=x",
            "planner_model: planner is trained, so its model is the policy",
        ),
        ("schedule.max_staleness=2", "schedule.max_staleness: mode=sync has no stale episodes"),
        ("schedule.epochs=null", "schedule.steps: the run would never end"),
        ("trackers.use=[paper]", "trackers.use.0: input should be 'console', 'jsonl'"),
    ],
)
def test_an_invalid_setting_is_an_error_of_one_line(word: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_train_config(overrides=["policy.model=m", word])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("training:config:one-line")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["engine.base_url=postgresql://u@h/d", "engine.server.device=cpu"],
            "engine.server: no server is started because base_url names replicas",
        ),
        (
            ["backbone=verl", "policy.model=m", "policy.processes=2"],
            "policy.processes: backbone=verl starts its own processes",
        ),
        (["branching.search=beam", "branching.guide=a:b"], "branching.search: training needs the answers"),
        (["branching.roles=[cook]"], "branching.roles: there is no role cook"),
        (["loss.credit=siblings"], "loss.credit: siblings compares episodes that share their beginnings"),
        (["growth.depth=2"], "depth is unknown"),
        (
            ["tasks.data_path=a", "validation.data_path=a"],
            "validation.data_path: these are the training tasks",
        ),
        (
            [
                "episodes.trained=[planner, generator]",
                "episodes.planner_model.temperature=0.5",
                "episodes.generator_model.temperature=1",
            ],
            "trained: these roles have different temperatures",
        ),
    ],
)
def test_contradictory_settings_are_an_error_of_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_train_config(overrides=words)


@pytest.mark.promise("training:config:models")
def test_trained_roles_use_the_policy_and_others_the_offline_engine() -> None:
    rules = load_train_config().episodes
    assert {role: model.name for role, model in rules.models.items()} == {
        "planner": "policy",
        **dict.fromkeys(("analyst", "executor", "verifier", "generator", "judge"), "offline"),
    }
    planner = rules.models["planner"]
    assert (planner.temperature, planner.structured, planner.max_attempts) == (0.7, "text", 1)


@pytest.mark.promise("training:config:models")
def test_each_role_may_have_a_frozen_copy_the_policy_or_any_model() -> None:
    rules = load_train_config(
        overrides=[
            "episodes.trained=[planner, generator]",
            "episodes.temperature=0.9",
            "episodes.executor_model.model_name=frozen",
            "episodes.verifier_model.model_name=gpt-4o-mini",
            "episodes.analyst_model.model_name=policy",
            "episodes.planner_model.structured=known",
        ]
    ).episodes
    assert {role: model.name for role, model in rules.models.items()} == {
        "planner": "policy",
        "generator": "policy",
        "analyst": "policy",
        "executor": "frozen",
        "verifier": "gpt-4o-mini",
        "judge": "offline",
    }
    assert rules.temperature_in_training == 0.9
    assert rules.models["planner"].structured == "known"
    assert load_train_config(overrides=["episodes.agent=single"]).episodes.trained_roles == ("agent",)


@pytest.mark.promise("training:config:examples")
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_examples_load_and_hold_no_secret_when_they_are_printed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ENGINE_KEY"):
        monkeypatch.setenv(name, "sesame")
    config = load_train_config(path)
    assert config.tasks.data_path
    assert "sesame" not in render_config(config)


@pytest.mark.promise("training:config:examples")
def test_one_example_has_the_published_hyper_parameters() -> None:
    config = load_train_config(ROOT / "configs/train/qwen2.5-7b_8gpu.yaml")
    loss, schedule, episodes = config.loss, config.schedule, config.episodes
    assert (loss.name, loss.clip_ratio_low, loss.clip_ratio_high, loss.kl_coef) == (
        "flow_grpo",
        0.2,
        0.2,
        0.001,
    )
    assert (loss.loss_agg_mode, loss.divide_by_std) == ("turn-mean", True)
    assert (schedule.tasks_per_step, schedule.episodes_per_task, schedule.mode) == (32, 8, "sync")
    assert (episodes.max_turns, config.validation.max_turns) == (3, 10)
    assert (episodes.temperature_in_training, episodes.planner_model.max_tokens) == (0.7, 2048)
    assert config.optimizer.learning_rate == 1e-6
    assert config.policy is not None
    assert config.policy.model == "Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.promise("training:config:models")
def test_the_policy_samples_its_unmodified_distribution_with_exact_tokens() -> None:
    async def never(*_: object) -> Published:
        raise AssertionError("nothing is published here")

    rules = load_train_config(overrides=["episodes.executor_model.model_name=frozen"]).episodes
    engine = PolicyEngine(
        {"name": "p", "base_url": "http://p/v1"}, {"name": "f"}, never, anyio.lowlevel.checkpoint, 1
    )
    models = engine.models(rules.models)
    policy = models["planner"]
    assert (policy.name, policy.base_url, policy.tokens, policy.top_p) == ("p", "http://p/v1", "exact", 1.0)
    assert policy.extra_body == {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert (models["executor"].name, models["executor"].tokens) == ("f", False)
    assert models["verifier"].name == "offline"


@pytest.mark.promise("settings:renamed_keys")
def test_old_keys_load_as_the_new_ones_with_one_warning_each() -> None:
    old = [
        "optimiser.rate=1e-5",
        "optimiser.clip=0.5",
        "loss.clip_high=0.3",
        "loss.kl=0.01",
        "schedule.checkpoint_every=3",
        "validation.every=4",
        "engine.name=served",
        "engine.server.memory_share=0.5",
    ]
    with pytest.warns(RenamedSettingWarning) as warned:
        config = load_train_config(overrides=["policy.model=m", *old])
    assert (config.optimizer.learning_rate, config.optimizer.max_grad_norm) == (1e-5, 0.5)
    assert (config.loss.clip_ratio_high, config.loss.kl_coef) == (0.3, 0.01)
    assert (config.schedule.save_steps, config.validation.eval_steps) == (3, 4)
    assert (config.engine.served_model_name, config.engine.server.gpu_memory_utilization) == ("served", 0.5)
    messages = [str(warning.message) for warning in warned]
    assert len([message for message in messages if "loss.kl is now called loss.kl_coef" in message]) == 1
