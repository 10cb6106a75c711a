"""End-to-end training: vLLM on the CPU with a tiny model, the four roles, steps, weight updates."""

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from openai import AsyncOpenAI

from agentflow.errors import ConfigurationError
from agentflow.gateway import EpisodeOutcome
from agentflow.journal import Replica, open_replicas
from agentflow.learner import TrainConfig, TrainRun, atrain, try_training
from agentflow.learner.trackers import METRICS, read_figures
from agentflow.scoring import OwnMetric
from agentflow.serving import ModelServer, ServingSettings, keep_registered
from agentflow.serving._control import EngineControl
from agentflow.trace import Task
from agentflow.tuner import PolicyEndpoint, atune
from tests._postgres import PostgresServer
from tests._vllm import PYTHON, as_it_was
from tests.agentflow.learner._training import config_of

pytestmark = pytest.mark.timeout(900)

QUESTIONS = (
    ("When was Needle Light built?", "1834"),
    ("Who was the designer of Needle Light?", "Theda Marrow"),
    ("Who discovered the Lantern Comet?", "Maeve Calloran"),
    ("When was the Lantern Feast first held?", "1707"),
)
STEPS = 2


def tasks(start: int = 0) -> list[Task]:
    """Tasks on the corpus that comes along."""
    return [
        Task(index=number, id=f"q{number}", question=question, references=(answer,))
        for number, (question, answer) in enumerate(QUESTIONS[start : start + 2])
    ]


def planner_of(tokens: int) -> dict[str, Any]:
    """A planner that draws exactly so many: one that knows nothing may end anywhere."""
    return {"max_tokens": tokens, "extra_body": {"ignore_eos": True}}


def sections(server: ModelServer, model: Path, folder: Path, **more: object) -> dict[str, Any]:
    """Settings of a small run on that server."""
    schedule = {
        "steps": STEPS,
        "epochs": None,
        "tasks_per_step": 2,
        "episodes_per_task": 4,
        "save_steps": 1,
    }
    return {
        "policy": {"model": str(model), "dtype": "float32", "device": "cpu", "threads": 1},
        "optimizer": {"learning_rate": 1e-3},
        "engine": {"base_url": server.url, "api_key": server.key, "served_model_name": server.model},
        "episodes": {"max_turns": 2, "planner_model": planner_of(24)},
        "schedule": schedule,
        "trackers": {"use": ["jsonl"]},
        "output_dir": str(folder),
        **more,
    }


class Scores:
    """Return rewards that differ within each task, in any order of episodes, for an untrained model."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.begun = anyio.Event()

    def __call__(self, answer: str, task: Task) -> float:
        del answer
        self.asked[task.id] += 1
        self.begun.set()
        return float(self.asked[task.id] % 2)


@pytest.mark.promise("training:whole")
async def test_episodes_on_a_real_vllm_become_steps_and_the_engine_follows(
    vllm: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as model:
        gave = await atrain(
            None,
            tasks(),
            validation=tasks(2),
            reward=Scores(),
            overrides=["validation.eval_steps=1"],
            **sections(vllm, model, tmp_path),
        )
        async with EngineControl(vllm.address, vllm.key) as control:
            assert await control.version() == str(STEPS)
    assert (gave["steps"], gave["version"]) == (STEPS, STEPS)
    lines = read_figures(tmp_path / METRICS)
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line in lines[1:]:
        assert line["episodes/count"] == 8
        assert line["tokens/trained"] == 8 * 2 * 24, "an unusable step costs a turn, and is trained"
        apart = line["engine/apart_max"]
        assert apart is not None
        assert apart <= 1e-5, "what was sampled has the trainer's probabilities, after an update too"
        assert line["validation/tasks"] == 2
    weights = set(os.listdir(str(gave["policy"])))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= weights
    assert sorted(os.listdir(tmp_path / "rollouts")) == [
        "step_000001.jsonl.gz",
        "step_000001.scores.npz",
        "step_000002.jsonl.gz",
        "step_000002.scores.npz",
    ]


@pytest.mark.promise("training:whole")
async def test_asynchronous_episodes_carry_the_versions_that_sampled_them(
    vllm: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as model:
        said = sections(vllm, model, tmp_path, loss={"name": "cispo"})
        said["schedule"] = {**said["schedule"], "steps": 3, "mode": "async", "max_staleness": 2}
        gave = await atrain(None, tasks(), reward=Scores(), **said)
    assert gave["steps"] == 3
    ages = [line["staleness/max"] for line in read_figures(tmp_path / METRICS)]
    assert all(age is not None and age <= 2 for age in ages)


@pytest.mark.soak
@pytest.mark.promise("replicas:training")
async def test_replicas_follow_a_training_and_both_are_sampled_from(
    vllm: ModelServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    database = postgres.new_database()
    async with as_it_was(vllm) as model:
        settings = ServingSettings(
            model=str(model), name=vllm.model, python=PYTHON, device="cpu", dtype="float32", trains=True
        )
        async with ModelServer(settings) as second, anyio.create_task_group() as serving:
            for server in (vllm, second):
                registered = anyio.Event()
                tell = partial(_set, registered)
                serving.start_soon(partial(keep_registered, server, database, registered=tell))
                await registered.wait()
            said = sections(vllm, model, tmp_path)
            said["engine"] = {"base_url": database, "served_model_name": vllm.model}
            gave = await atrain(None, tasks(), reward=Scores(), **said)
            answered: list[float] = []
            for server in (vllm, second):
                async with EngineControl(server.address, server.key) as control:
                    assert await control.version() == str(STEPS)
                    answered.append(await _answered(server))
            async with open_replicas(database) as table:
                newest = await table.renew(Replica("http://joins/v1", vllm.model, "key"), first=True)
            assert gave["version"] == STEPS
            assert min(answered) > 0
            assert newest is not None
            assert newest.folder == gave["policy"], "one that joins later gets the last weights"
            serving.cancel_scope.cancel()
    for line in read_figures(tmp_path / METRICS):
        apart = line["engine/apart_max"]
        assert apart is not None
        assert apart <= 1e-5


def _set(event: anyio.Event, url: str) -> None:
    del url
    event.set()


async def _answered(server: ModelServer) -> float:
    """Return the number of requests that a server has answered."""
    headers = {"Authorization": f"Bearer {server.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{server.address}/metrics") as answer,
    ):
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total"))


@pytest.mark.soak
@pytest.mark.promise("training:engine-lost")
async def test_an_engine_that_is_killed_in_the_middle_of_a_step_costs_time_only(
    vllm: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as model:
        scores = Scores()
        said = sections(vllm, model, tmp_path)
        run = TrainRun(config_of(**said), tasks=tasks(), metric=OwnMetric("scores", scores))
        starts = vllm.starts

        async def kill() -> None:
            await scores.begun.wait()
            os.kill(vllm.pid, signal.SIGKILL)

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            await run.run()
        assert vllm.starts == starts + 1
    assert run.position.step == STEPS


@pytest.mark.promise("training:debug")
async def test_rollouts_on_a_running_server_are_shown_with_their_losses(vllm: ModelServer) -> None:
    said: list[str] = []
    config = config_of(
        backbone="debug",
        engine={"base_url": vllm.url, "api_key": vllm.key},
        episodes={"max_turns": 1, "planner_model": planner_of(16)},
    )
    outcome = await TrainRun(
        config, tasks=tasks(), metric=OwnMetric("scores", Scores()), say=said.append
    ).run()
    assert said[0].startswith("task q")
    assert sum(line.startswith("    reward: ") for line in said) == 4
    assert sum("16 tokens to train" in line for line in said) == 4
    assert said[-1].startswith("step 1: flow_grpo is ")
    assert "step/loss" in outcome.figures


@pytest.mark.promise("training:debug")
async def test_rollouts_are_shown_offline_without_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    await TrainRun(config_of(backbone="debug"), say=said.append).run()
    assert [line for line in said if "answer: 1170" in line]
    assert sum(line.startswith("    reward: ") for line in said) == 4
    assert "tokens are unknown" in said[-1]
    assert os.listdir(tmp_path) == []


@pytest.mark.promise("training:validation")
async def test_training_tasks_among_held_out_tasks_are_refused(tmp_path: Path) -> None:
    config = config_of(policy={"model": "m"}, output_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigurationError, match=r"validation\.data_path: q0 is also a training task"):
        await TrainRun(config, tasks=tasks(), validation=tasks()).run()
    assert not (tmp_path / "run").exists()


@pytest.mark.promise("training:config:one-line")
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "policy.model is missing; name the folder of the model to train"),
        ({"policy": {"model": "nowhere/at-all"}}, "data_path: there are no tasks"),
        (
            {"backbone": "debug", "engine": {"base_url": "http://127.0.0.1:9"}},
            "engine.base_url: http://127.0.0.1:9 does not list its models",
        ),
        (
            {"backbone": "debug", "episodes": {"agent": "single"}},
            "engine.base_url: a single agent needs a model",
        ),
        (
            {"policy": {"model": "m"}, "schedule": {"replay": "x"}, "validation": {"data_path": "v"}},
            "schedule.replay: nothing is sampled, so validation is not possible",
        ),
    ],
)
async def test_an_impossible_run_is_an_error_of_one_line_and_leaves_no_files(
    said: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        await TrainRun(config_of(**said)).run()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.promise("tuner:any-agent")
@pytest.mark.promise("tuner:agents")
async def test_agents_on_an_sdk_are_tuned_on_a_real_vllm(vllm: ModelServer, tmp_path: Path) -> None:
    async def debate(task: Task, policy: PolicyEndpoint) -> EpisodeOutcome:
        history: list[Any] = [{"role": "user", "content": task.question}]
        for name in ("pro", "contra"):
            agent = policy.agent(name)
            async with AsyncOpenAI(base_url=agent.base_url, api_key=agent.api_key) as client:
                for _ in range(2):
                    said = await client.chat.completions.create(
                        model=agent.model, messages=history, max_tokens=16
                    )
                    answer = said.choices[0].message.content
                    history += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And?"}]
        return EpisodeOutcome(
            reward={"pro": float(policy.episode[-1]), "contra": -1.0 * int(policy.episode[-1])}
        )

    async with as_it_was(vllm) as model:
        said = sections(vllm, model, tmp_path)
        said["episodes"] = {"temperature": 1.0}
        gave = await atune(
            debate, tasks(), agents={"pro": {"trained": True}, "contra": {"trained": True}}, **said
        )
    assert (gave["steps"], gave["version"]) == (STEPS, STEPS)
    for line in read_figures(tmp_path / METRICS):
        assert (line["episodes/count"], line["groups/count"]) == (16, 4)
        assert line["calls/count"] == 8 * 4
        assert (apart := line["engine/apart_max"]) is not None
        assert apart <= 1e-5, "what was sampled has the trainer's probabilities, after an update too"


@pytest.mark.promise("tuner:team")
async def test_our_own_team_is_tuned_on_the_same_path(vllm: ModelServer, tmp_path: Path) -> None:
    async with as_it_was(vllm) as model:
        said = sections(vllm, model, tmp_path)
        said["schedule"] = {**said["schedule"], "steps": 1, "tasks_per_step": 1}
        gave = await atune("team", tasks(), reward=Scores(), **said)
    assert gave["steps"] == 1
    [line] = read_figures(tmp_path / METRICS)
    assert (line["episodes/count"], line["episodes/calls"]) == (4, 2)
    assert (apart := line["engine/apart_max"]) is not None
    assert apart <= 1e-5


@pytest.mark.promise("cli:check:training")
async def test_a_training_is_tried_small_and_leaves_the_engine_as_it_was(
    vllm: ModelServer, tmp_path: Path
) -> None:
    reported: list[str] = []

    def make(small: TrainConfig) -> TrainRun:
        metric = OwnMetric("scores", Scores())
        return TrainRun(small, tasks=tasks(), validation=tasks(2), metric=metric)

    async with as_it_was(vllm) as model:
        config = config_of(**sections(vllm, model, tmp_path / "run"))
        trial = await try_training(config, make, lambda phase, _: reported.append(phase))
    phases = ["loading", "engine", "rollouts", "step", "publication", "validation", "writing"]
    assert sorted(reported) == sorted(phases)
    assert (trial.episodes, trial.sampled > 0, trial.tasks, trial.held_out) == (1, True, 2, 2)
    assert trial.trainer_bytes > 2**20
    estimate = trial.estimate(config)
    assert estimate is not None
    steps, least, most = estimate
    assert (steps, 0 < least <= most) == (STEPS, True)
    assert os.listdir(tmp_path) == [], "nothing is left"
