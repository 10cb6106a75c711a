"""Settings of a tuning, and its commands."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import pytest

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.gateway import AgentSettings
from agentflow.learner import POLICY
from agentflow.models import ModelSettings
from agentflow.sandbox import Sandbox
from agentflow.testing import fake_endpoint
from agentflow.trace import Task
from agentflow.tuner import TOKEN_VARIABLE, PolicyEndpoint, atune, load_tune_config, tune_run
from agentflow.tuner._tune import SWARM_FILE, with_client_access
from tests.agentflow.tuner._tuning import WORKER_TOKEN, gateway_at
from tests.behaviour._tree import ROOT

AGENT = """
from urllib.request import Request, urlopen
import json

def solve(task, policy):
    body = {"model": policy.model, "messages": [{"role": "user", "content": task.question}]}
    headers = {"x-api-key": policy.api_key, "Content-Type": "application/json"}
    with urlopen(Request(policy.base_url + "/chat/completions", json.dumps(body).encode(), headers), timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def reward(answer, task):
    return 2.5 if answer.startswith("unknown") else -1.0
"""


@pytest.mark.promise("tuner:settings")
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"agents": {"wolf": {"model_name": "frozen"}}}, "agents: none is trained"),
        ({"agents": {"wolf": {"trained": True, "model_name": "x"}}}, "agents.wolf: it is trained"),
        ({"agents": {"wolf": {"trained": True}, "seer": {}}}, "agents.seer: set model_name, such as frozen"),
        ({"agents": {"wolf": {"train": True}}}, "agents.wolf.train"),
        ({"gateway": {"temperature": 0.5}}, "gateway.temperature: the run sets it"),
        ({"gateway": {"group_size": 4}}, "gateway.group_size: the run sets it"),
        ({"growth": {}}, "branching.leaves: a group has schedule.episodes_per_task episodes, 8; set that"),
        ({"reward": "exact_match", "judge": "math"}, "reward"),
        ({"schedule": {"steps": None, "epochs": None}}, "the run would never end"),
        ({"sovle": "x:y"}, "sovle"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_line(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem) as found:
        load_tune_config(arguments=settings)
    assert "\n" not in str(found.value)


@pytest.mark.promise("tuner:settings")
@pytest.mark.parametrize(
    ("solve", "problem"),
    [("", "solve: there is no agent"), ("nowhere:solve", "solve: "), ("json:__name__", "is not a function")],
)
def test_an_agent_that_is_not_there_is_refused_in_one_line(solve: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        tune_run(load_tune_config(arguments={"solve": solve}))


@pytest.mark.promise("tuner:settings")
@pytest.mark.parametrize("file", sorted((ROOT / "configs/tune").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_example_files_load(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_TOKEN", "a-token-of-more-than-16-letters")
    config = load_tune_config(file)
    models = {
        name: model.model_copy(update={"base_url": "http://127.0.0.1:1/v1"})
        for name, model in config.wanted_models().items()
    }
    gateway = config.gateway_settings(models)
    gateway.check()
    assert gateway.group_size == 8
    assert any(agent.trained for agent in gateway.agents.values())


@pytest.mark.promise("tuner:settings")
def test_the_gateway_gets_the_limits_and_the_models_of_the_run(tmp_path: Path) -> None:
    agents = {"wolf": {"trained": True}, "judge": {"model_name": "frozen", "max_tokens": 5}}
    episodes = {"episode_seconds": 900, "max_retries": 0, "temperature": 0.3}
    given = {"agents": agents, "episodes": episodes, "output_dir": str(tmp_path)}
    config = load_tune_config(arguments=given)
    wanted = config.wanted_models()
    assert {name: (model.name, model.max_tokens) for name, model in wanted.items()} == {
        "agent judge": ("frozen", 5),
        POLICY: (POLICY, None),
    }
    models = {**wanted, POLICY: ModelSettings(name="tiny", base_url="http://127.0.0.1:1/v1")}
    gateway = config.gateway_settings(models)
    assert (gateway.temperature, gateway.limits.attempts, gateway.limits.idle_seconds) == (0.3, 1, 960)
    assert (gateway.upstream.model, gateway.upstream.base_url) == ("tiny", "http://127.0.0.1:1/v1")
    assert gateway.agents == {
        "wolf": AgentSettings(trained=True),
        "judge": AgentSettings(model=models["agent judge"]),
    }
    assert not any(agent.trained for agent in config.gateway_settings(models, tokens=False).agents.values())


@pytest.mark.promise("tuner:swarm")
def test_the_token_of_clients_stays_the_same_when_a_run_resumes(tmp_path: Path) -> None:
    config = load_tune_config(arguments={"output_dir": str(tmp_path / "run")})
    first, second = with_client_access(config).gateway, with_client_access(config).gateway
    assert first.worker_token == second.worker_token
    assert len(first.worker_token.get_secret_value()) == 64
    assert first.port == 18900
    file = tmp_path / "run" / SWARM_FILE
    assert file.stat().st_mode & 0o77 == 0
    file.write_text("{")
    with pytest.raises(ConfigurationError, match="can't be read"):
        with_client_access(config)


@pytest.mark.promise("tuner:debug")
@pytest.mark.promise("tuner:command")
async def test_the_command_shows_episodes_rewards_and_advantages_of_any_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    task = {"id": "a", "question": "Who?", "answer": "nobody"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    async with fake_endpoint() as url:
        words = [
            "tune",
            "--backbone=debug",
            "solve=agent.py:solve",
            "reward=agent.py:reward",
            "tasks.data_path=tasks.jsonl",
            f"engine.base_url={url}",
            "engine.served_model_name=any",
            "loss.kl_coef=0",
            # Does not hold here: breakpoints work.
            "episodes.episode_seconds=0.001",
        ]
        assert await anyio.to_thread.run_sync(partial(main, words)) == 0
    said = capsys.readouterr().out
    assert "task a: Who?" in said
    assert "answer: unknown" in said
    assert "0/1: reward 2.5, advantage +0.000" in said
    assert "step 1: flow_grpo is" in said, "the fake endpoint reports exact tokens"


@pytest.mark.promise("tuner:command")
async def test_watch_prints_the_state_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, WORKER_TOKEN)
    async with gateway_at(tmp_path) as gateway:
        for more in (["--once"], ["--once", "--json"]):
            words = ["swarm", "watch", gateway.url, *more]
            assert await anyio.to_thread.run_sync(partial(main, words)) == 0
    line, record = capsys.readouterr().out.splitlines()
    assert line == "open: version 0; episodes: none; 0 calls, 0 running"
    assert msgspec.json.decode(record)["version"] == 0


@pytest.mark.promise("tuner:command")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["tune"], "solve: there is no agent"),
        (["tune", "solve=x:y", "branching.width=1"], "branching.width: with 1 nothing branches"),
        (["tune", "--backbone=debug", "solve=json:dumps", "tasks.data_path=tasks.jsonl"], "engine.base_url"),
        (["swarm", "serve", "--backbone=debug"], "backbone: debug plays episodes in this process"),
        (["swarm", "watch", "http://127.0.0.1:1"], "token: it is missing"),
    ],
)
def test_the_commands_refuse_what_they_cannot_do_in_one_line(
    words: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "question": "Who?", "answer": "nobody"}\n')
    assert main(words) == 2
    assert problem in (said := capsys.readouterr().err)
    assert said.count("\n") == 1


@pytest.mark.promise("tuner:command")
@pytest.mark.parametrize("command", [["tune"], ["swarm", "serve"]])
def test_the_commands_print_their_settings(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--print-config", "gateway.limits.calls=7"]) == 0
    assert "calls: 7" in capsys.readouterr().out


@pytest.mark.promise("tuner:sandbox")
async def test_an_agent_and_its_reward_share_a_sandbox_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def solve(task: Task, policy: PolicyEndpoint, sandbox: Sandbox) -> None:
        del task
        assert policy.sandbox is sandbox
        await sandbox.execute("code:run", {"code": f"score = {policy.episode[-1]}"})

    async def state(answer: str, task: Task, sandbox: Sandbox) -> float:
        del answer, task
        return float((await sandbox.execute("code:run", {"code": "score"})).data["value"])

    def blocking(task: Task, policy: PolicyEndpoint, sandbox: Sandbox) -> None:
        del task, policy, sandbox

    async with fake_endpoint() as url:
        tune = partial(
            atune,
            tasks=[Task(index=0, id="a", question="Who?")],
            reward=state,
            backbone="debug",
            engine={"base_url": url, "served_model_name": "any"},
            loss={"kl_coef": 0.0},
        )
        outcome = await tune(solve)
        with pytest.raises(ConfigurationError, match="solve: its sandbox is awaited; write async def"):
            await tune(blocking)
    assert outcome["figures"]["reward/mean"] == 0.5
