"""Files written for AgentJet load unchanged: settings, workflow classes, judges and tasks of the same form as its examples."""

import json
import logging
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from anyio.from_thread import start_blocking_portal

import agentflow.compat as compat
from agentflow.errors import ConfigurationError
from agentflow.learner import load_train_config
from agentflow.readers import EnvironmentState, EnvironmentType, read_tasks, serve_environments
from agentflow.testing import fake_endpoint
from agentflow.tuner import PolicyEndpoint, load_tune_config
from agentflow.tuner.agentjet import workflow_agent
from agentflow.tuner.agentjet._settings import KEYS
from tests.agentflow.compat.test_guides import rows

SETTINGS = """
ajet:
  project_name: sums
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file:
      training: {file_path: train.jsonl}
      validation: {file_path: held_out.jsonl}
  task_judge:
    judge_protocol: judges->LengthJudge
  model: {path: Qwen/Qwen2.5-7B}
  rollout:
    user_workflow: flows.py->HttpFlow
    temperature: 1.0
    num_repeat: 2
    agent_madness_reward: 0.0
    colour: blue
    multi_turn: {max_steps: 5}
  debug: {debug_first_n_tasks: 1}
  trainer_common: {total_training_steps: 7, logger: console}
trinity: {synchronizer: {sync_method: nccl}}
maze: {size: 4}
hydra: {searchpath: ["file://ajet/default_config"]}
defaults: [verl_default, ajet_default, _self_]
"""
FLOWS = '''
import json
from urllib.request import Request, urlopen

from ajet import AjetTuner, Workflow, WorkflowOutput, WorkflowTask


class HttpFlow(Workflow):
    """Any model name, blocking calls, settings by attribute."""

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        access = tuner.as_oai_baseurl_apikey()
        body = {"model": "whatever", "messages": workflow_task.task.init_messages}
        headers = {"Authorization": f"Bearer {access.api_key}", "Content-Type": "application/json"}
        with urlopen(Request(f"{access.base_url}/chat/completions", json.dumps(body).encode(), headers)) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
        steps = tuner.config.ajet.rollout.multi_turn.max_steps * tuner.config.maze.size
        return WorkflowOutput(reward=None, metadata={"final_answer": text, "steps": steps})


class SdkFlow(Workflow):
    """The client of OpenAI's SDK, without a model, and a reward of its own."""

    async def execute(self, workflow_task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        said = await client.chat.completions.create(messages=[{"role": "user", "content": workflow_task.task.main_query}])
        assert said.choices[0].message.content
        return WorkflowOutput(reward=0.25, is_success=False, log_metrics={"cost": [1.0, 3.0], "tool": {"calls": 2}})


class TargetFlow(Workflow):
    """Only wolves are trained."""

    trainable_targets: list | None = ["wolf"]

    async def execute(self, workflow_task, tuner):
        assert tuner.as_oai_baseurl_apikey("a", target_tag="wolf").api_key
        assert tuner.as_agentscope_model("b", "seer", debug_model="own") == "own"
        tuner.as_oai_baseurl_apikey("c", target_tag="seer")


class ListFlow(Workflow):
    async def execute(self, workflow_task, tuner):
        return WorkflowOutput(reward=[1.0, 2.0])


class NothingFlow(Workflow):
    async def execute(self, workflow_task, tuner):
        return None


class WorldFlow(Workflow):
    async def execute(self, workflow_task, tuner):
        env = workflow_task.gym_env
        text, reward, done, info = env.step(action={"content": [{"type": "text", "text": "go"}], "role": "assistant"})
        return WorkflowOutput(metadata={"final_answer": f"{workflow_task.task.main_query}|{text}"})
'''
JUDGES = """
from ajet.task_judge.base_judge import BaseJudge
from ajet.task_rollout.dashscope_llm_bridge import create_external_llm_fn
from ajet.workflow import WorkflowOutput, WorkflowTask


class LengthJudge(BaseJudge):
    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple:
        assert workflow_task.task.metadata["answer"] == "2"
        create_external_llm_fn(self.config.ajet.task_judge.alien_llm_model, 10)
        return workflow_output.metadata["steps"] / 10, True
"""
TASKS = {"train": "What is 1 + 1?", "held_out": "What is 0 + 2?"}


def endpoint(url: str) -> PolicyEndpoint:
    return PolicyEndpoint(base_url=url, api_key="key", model="fake", keys={"": "key"})


POLICY = endpoint("http://127.0.0.1:9/v1")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with files for AgentJet; its modules are forgotten afterwards."""
    (tmp_path / "flow.yaml").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "flows.py").write_text(FLOWS, encoding="utf-8")
    (tmp_path / "judges.py").write_text(JUDGES, encoding="utf-8")
    # AgentJet's own package, which would be imported in its checkout.
    (tmp_path / "ajet").mkdir()
    (tmp_path / "ajet/__init__.py").write_text("import a_library_for_gpus", encoding="utf-8")
    for name, question in TASKS.items():
        row = {"main_query": question, "task_id": name, "metadata": {"answer": "2"}}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in ("flows", "judges") or name.partition(".")[0] == "ajet":
            del sys.modules[name]


@contextmanager
def engine() -> Generator[str]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_endpoint()) as url:
        yield url


@pytest.mark.usefixtures("checkout")
@pytest.mark.promise("compat:agentjet:runs")
def test_a_workflow_with_its_judge_plays_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    with engine() as url:
        words = ["--conf", "flow.yaml", "--backbone=debug", f"engine.base_url={url}", "loss.kl_coef=0"]
        assert compat.ajet([*words, "--json"]) == 0
        (task,) = read_tasks("agentflow.tuner.agentjet:jsonl_tasks?path=train.jsonl")
        sdk = workflow_agent("flows.py->SdkFlow")(task, endpoint(url))
    assert (sdk.reward, sdk.success, sdk.metrics) == (0.25, False, {"cost": 2.0, "tool/calls": 2.0})
    figures = json.loads(capsys.readouterr().out)["outcome"]["figures"]
    assert figures["reward/mean"] == 2.0


@pytest.mark.promise("compat:agentjet:settings")
def test_keys_become_settings_and_others_are_named_in_a_line_each(
    checkout: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        config = load_tune_config("flow.yaml", ["schedule.save_steps=3"])
    assert [record.getMessage() for record in caplog.records] == [
        "flow.yaml: trinity: settings of a backbone are not read; write those that apply in trinity.options",
        "flow.yaml: maze: is kept for the workflow, as config.maze",
        "flow.yaml: ajet.rollout.agent_madness_reward: has no effect: no answer is penalised for its form",
        "flow.yaml: ajet.rollout.colour: is no key of AgentJet, and is kept for the workflow",
    ]
    assert config.policy is not None
    assert (config.backbone, config.policy.model, config.output_dir) == (
        "verl", "Qwen/Qwen2.5-7B", "saved_experiments/flow",
    )  # fmt: skip
    schedule = config.schedule
    assert (schedule.episodes_per_task, schedule.tasks_per_step, schedule.steps) == (2, 32, 7)
    assert (schedule.save_steps, config.loss.kl_coef, config.engine.server.max_model_len) == (3, 0.002, 18000)
    assert config.tasks.reader is not None
    (task,) = read_tasks(config.tasks.reader)
    assert (task.id, task.question, task.references) == ("train", "What is 1 + 1?", ("2",))
    debug = load_tune_config("flow.yaml", ["backbone=debug"])
    assert (debug.engine.base_url, debug.schedule.tasks_per_step) == ("http://127.0.0.1:18000/v1", 1)


@pytest.mark.usefixtures("checkout")
@pytest.mark.promise("compat:agentjet:settings")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"task_reader": {"type": "tracing"}}, "task_reader.type: tracing is not read from AgentJet's file; set tasks.reader"),
        ({"model": {"path": None}, "rollout": 3}, "rollout: is no mapping; write names with values"),
        ({"trainer_common": {"algorithm": {"adv_estimator": "gae"}}}, "loss: there is no loss 'gae'; known are "),
    ],
)  # fmt: skip
def test_what_can_t_be_converted_is_one_line(change: dict[str, Any], problem: str) -> None:
    content = yaml.safe_load(SETTINGS)
    content["ajet"] |= change
    Path("other.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ConfigurationError) as raised:
        load_tune_config("other.yaml")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigurationError, match=r"a file of AgentJet; run ajet --conf flow\.yaml"):
        load_train_config("flow.yaml")


@pytest.mark.usefixtures("checkout")
@pytest.mark.promise("compat:agentjet:runs")
def test_targets_outcomes_and_classes_are_checked() -> None:
    sys.modules["ajet"] = sys.modules["agentflow.tuner.agentjet"]
    (task,) = read_tasks("agentflow.tuner.agentjet:jsonl_tasks?path=train.jsonl")
    with pytest.raises(ConfigurationError, match="c: seer is not in trainable_targets"):
        workflow_agent("flows.py->TargetFlow")(task, POLICY)
    assert (
        workflow_agent("flows.py->ListFlow")(task, POLICY).failure
        == "the reward is a list; return one number"
    )
    assert "returned NoneType" in workflow_agent("flows.py->NothingFlow")(task, POLICY).failure
    with pytest.raises(
        ConfigurationError, match=r"rollout\.user_workflow: flows\.py:Missing: flows\.py has no Missing"
    ):
        workflow_agent("flows.py->Missing")
    with pytest.raises(ConfigurationError, match=r"flows\.py->json is no class with execute"):
        workflow_agent("flows.py->json")


class Echo:
    """Environment that repeats what it is told, worth 1.5."""

    def __init__(self, task: str) -> None:
        self._task = task

    def start(self) -> EnvironmentState:
        return EnvironmentState(messages=({"role": "user", "content": f"Do {self._task}."},))

    def step(self, action: Mapping[str, Any]) -> EnvironmentState:
        return EnvironmentState(messages=({"role": "user", "content": f"you said {action['content']}"},))

    def info(self) -> object:
        return None

    def evaluate(self) -> float:
        return 1.5

    def close(self) -> None:
        pass


@pytest.mark.usefixtures("checkout")
@pytest.mark.promise("compat:agentjet:runs")
def test_an_environment_service_is_stepped_and_judged() -> None:
    sys.modules["ajet"] = sys.modules["agentflow.tuner.agentjet"]
    world = EnvironmentType(tasks=lambda split: ["it"], make=Echo)
    judge = "ajet.task_judge.env_service_as_judge->EnvServiceJudge"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve_environments({"echo": world})) as url,
    ):
        service = {"type": "env_service", "env_service": {"env_url": url, "env_type": "echo"}}
        content = {"ajet": {"task_reader": service, "task_judge": {"judge_protocol": judge}}}
        (task,) = read_tasks(f"environment:{url}?env_type=echo")
        outcome = workflow_agent("flows.py->WorldFlow", content)(task, POLICY)
    assert (outcome.reward, outcome.success, outcome.answer) == (1.5, True, "Do it.|you said go")


@pytest.mark.promise("compat:agentjet:settings")
def test_the_guide_has_every_key_that_becomes_a_setting() -> None:
    guide = {
        row.printed.strip("`"): row.here.strip("`")
        for row in rows("tuner")
        if row.heading == "AgentJet's files"
    }
    assert guide == {key: rule.setting for key, rule in KEYS.items() if rule.setting}
