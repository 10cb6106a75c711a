"""Any agent is trained on its own calls: rewards, agents, failures, resuming."""

import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from openai import AsyncOpenAI, OpenAI

from agentflow.errors import ConfigurationError, ModelFailure, ModelFailureKind, RunStopped
from agentflow.gateway import AgentSettings, EpisodeLimits, EpisodeOutcome, GatewayClient, GatewaySettings
from agentflow.learner import EvidenceSettings
from agentflow.learner._checkpoints import RolloutStore
from agentflow.models import ModelSettings
from agentflow.sandbox import Sandbox
from agentflow.scoring import Scored
from agentflow.testing import fake_endpoint
from agentflow.trace import Failure, Task
from agentflow.tuner import GatewayRollout, PolicyEndpoint, atune
from agentflow.tuner.judges import make_judge
from tests.agentflow.gateway._registry import EchoModel
from tests.agentflow.tuner._tuning import Address, CountingBackbone, gateway_at, says, some_tasks, tuned

ONCE = GatewaySettings(limits=EpisodeLimits(attempts=1))


class Killed(BaseException):
    """The process ends here."""


async def ask_once(task: Task, policy: PolicyEndpoint) -> str:
    """Play an episode of one call; the answer names the member of the group."""
    await says(policy, task.question)
    return policy.episode.rpartition("/")[2]


def by_member(answer: str, task: Task) -> float:
    """Return rewards that differ within a group."""
    del task
    return 2.5 if answer == "0" else -1.0


def blocking(task: Task, policy: PolicyEndpoint) -> str:
    """Play an episode with the blocking client of OpenAI."""
    with OpenAI(base_url=policy.base_url, api_key=policy.api_key) as client:
        client.chat.completions.create(
            model=policy.model, messages=[{"role": "user", "content": task.question}]
        )
    return policy.episode.rpartition("/")[2]


@pytest.mark.promise("tuner:any-agent")
@pytest.mark.promise("tuner:rewards")
@pytest.mark.parametrize("solve", [ask_once, blocking])
async def test_an_agent_on_the_openai_sdk_is_trained_on_the_tokens_of_its_calls(
    solve: Callable[..., object], tmp_path: Path
) -> None:
    done = await tuned(tmp_path, solve, some_tasks(3), reward=by_member, steps=2, held_out=some_tasks(2))
    assert done.backbone.version == 2
    for rows in done.backbone.steps:
        assert [row.ids.tolist() for row in rows] == [[1, 2, len("What is 0?"), 3]] * 4
        assert [row.trained.tolist() for row in rows] == [[False, False, True, True]] * 4
        assert sorted(round(float(row.advantages[0]), 3) for row in rows) == [-0.707, -0.707, 0.707, 0.707]
    figures = done.figures[-1]
    assert (figures["reward/mean"], figures["staleness/max"], figures["validation/tasks"]) == (0.75, 0, 2)
    assert figures["validation/score"] == -1.0, "any finite reward is a score"


@pytest.mark.promise("tuner:agents")
async def test_each_agent_is_trained_with_its_own_reward_and_frozen_ones_are_not(tmp_path: Path) -> None:
    agents = {
        "wolf": AgentSettings(trained=True),
        "seer": AgentSettings(trained=True),
        "villager": AgentSettings(model=ModelSettings(name="frozen")),
    }

    async def game(task: Task, policy: PolicyEndpoint) -> EpisodeOutcome:
        await says(policy.agent("wolf"), task.question)
        await says(policy.agent("wolf"), "x")
        await says(policy.agent("seer"), "xyz")
        await says(policy.agent("villager"), "abcdefg")
        won = policy.episode.endswith("/0")
        reward = {"wolf": 1.0 if won else -1.0, "seer": -0.5 if won else 0.5, "villager": 9.0}
        return EpisodeOutcome(reward=reward, success=won, metrics={"nights": 3.0})

    done = await tuned(
        tmp_path, game, some_tasks(1), settings=GatewaySettings(agents=agents), tasks_per_step=1
    )
    [rows] = done.backbone.steps
    sampled = Counter((int(row.ids[2]), round(float(row.advantages[0]), 3)) for row in rows)
    assert sampled == {
        (10, 0.707): 1,
        (10, -0.707): 1,
        (1, 0.707): 1,
        (1, -0.707): 1,
        (3, 0.707): 1,
        (3, -0.707): 1,
    }
    figures = done.figures[0]
    assert (figures["groups/count"], figures["episodes/nights"], figures["episodes/success"]) == (2, 3.0, 0.5)


@pytest.mark.promise("tuner:agents")
async def test_an_unknown_agent_ends_the_run_with_those_that_there_are(tmp_path: Path) -> None:
    def solve(task: Task, policy: PolicyEndpoint) -> object:
        del task
        return policy.agent("bear")

    agents = {"wolf": AgentSettings(trained=True), "seer": AgentSettings(trained=True)}
    with pytest.raises(ConfigurationError, match="agent bear: it is not in this run; agents are wolf, seer"):
        await tuned(tmp_path, solve, some_tasks(1), settings=GatewaySettings(agents=agents))


@pytest.mark.promise("tuner:rewards")
async def test_rewards_of_turns_reach_their_calls(tmp_path: Path) -> None:
    async def two_turns(task: Task, policy: PolicyEndpoint) -> EpisodeOutcome:
        await says(policy, task.question)
        await says(policy, "x")
        return EpisodeOutcome(reward=0.0, turn_rewards={"c2": 1.0} if policy.episode.endswith("/0") else {})

    done = await tuned(tmp_path, two_turns, some_tasks(1), tasks_per_step=1)
    [rows] = done.backbone.steps
    assert all(float(row.advantages[0]) != 0 for row in rows)


@pytest.mark.promise("tuner:rewards")
async def test_each_source_of_tasks_has_its_own_metric(tmp_path: Path) -> None:
    tasks = [*some_tasks(1, source="gsm8k"), *some_tasks(1, source="maze")]

    async def solve(task: Task, policy: PolicyEndpoint) -> str:
        await says(policy, task.question)
        return "yes" if policy.episode.endswith("/0") else "no"

    def maze(answer: str, task: Task) -> float:
        del task
        return -3.0 if answer == "no" else 7

    rewards: dict[str, Any] = {"gsm8k": "exact_match", "maze": maze}
    done = await tuned(tmp_path, solve, tasks, reward=rewards)
    assert done.figures[0]["reward/mean"] == (1 + 0 + 7 - 3) / 4
    riddles = some_tasks(1, source="riddle")
    with pytest.raises(ConfigurationError, match="has source 'riddle', and there are judges for maze"):
        await tuned(tmp_path / "2", solve, riddles, reward={"maze": "math"})


@pytest.mark.promise("tuner:sandbox")
async def test_a_reward_inspects_the_sandbox_in_which_the_agent_has_worked(tmp_path: Path) -> None:
    @asynccontextmanager
    async def fresh() -> AsyncGenerator[Sandbox]:
        async with Sandbox(backends=["code"]) as sandbox:
            yield sandbox

    async def solve(task: Task, policy: PolicyEndpoint, sandbox: Sandbox) -> None:
        await says(policy, task.question)
        await sandbox.execute("code:run", {"code": f"score = {policy.episode.rpartition('/')[2]} * 4 - 1.5"})

    async def state(answer: str, task: Task, sandbox: Sandbox) -> float:
        del answer, task
        return float((await sandbox.execute("code:run", {"code": "score"})).data["value"])

    done = await tuned(tmp_path, solve, some_tasks(1), reward=state, sandbox=fresh, tasks_per_step=1)
    assert done.figures[0]["reward/mean"] == 0.5


@pytest.mark.promise("tuner:failures")
@pytest.mark.parametrize(
    ("result", "cause", "why"),
    [
        (ValueError("two\nlines"), "crashed", "ValueError: two lines"),
        (float("nan"), "reward", "nan is not a finite number"),
        ({"wolf": 1.0}, "reward", "there is no agent 'wolf'"),
        (EpisodeOutcome(reward=1.0, turn_rewards={"c9": 1.0}), "reward", "no call 'c9'"),
        (EpisodeOutcome(failure="the grader is away"), "reward", "the grader is away"),
        (object(), "reward", "is no outcome; return a number"),
    ],
)
async def test_an_episode_without_a_usable_reward_is_left_out_and_the_others_are_trained(
    result: object, cause: str, why: str, tmp_path: Path
) -> None:
    async def solve(task: Task, policy: PolicyEndpoint) -> object:
        await says(policy, task.question)
        member = policy.episode.rpartition("/")[2]
        if member != "2":
            return float(member)
        if isinstance(result, Exception):
            raise result
        return result

    done = await tuned(
        tmp_path,
        solve,
        some_tasks(1),
        settings=ONCE,
        tasks_per_step=1,
        episodes_per_task=3,
    )
    assert done.figures[0][f"episodes/failed_{cause}"] == 1
    assert done.figures[0]["episodes/count"] == 2
    batch = RolloutStore(tmp_path / "rollouts").read(1)
    assert batch is not None
    assert why in batch.groups[0].failures[0].message


@pytest.mark.promise("tuner:failures")
async def test_an_episode_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def solve(task: Task, policy: PolicyEndpoint) -> None:
        del task, policy
        await anyio.sleep_forever()

    with pytest.raises(
        RunStopped, match="all 4 episodes failed, 4 of them with time: it did not end in 0 seconds"
    ):
        await tuned(tmp_path, solve, some_tasks(1), settings=ONCE, seconds=0.0)


@pytest.mark.promise("tuner:failures")
async def test_an_episode_that_crashes_is_played_again(tmp_path: Path) -> None:
    tries: Counter[str] = Counter()

    async def solve(task: Task, policy: PolicyEndpoint) -> float:
        tries[policy.episode] += 1
        await says(policy, task.question)
        if tries[policy.episode] == 1:
            raise ConnectionError("for a moment")
        return float(policy.episode[-1])

    done = await tuned(tmp_path, solve, some_tasks(1), tasks_per_step=1)
    assert set(tries.values()) == {2}
    assert done.figures[0]["calls/count"] == 2, "calls of the first attempt are not trained"


@pytest.mark.promise("tuner:failures")
async def test_a_reward_that_always_fails_ends_the_run_with_its_error(tmp_path: Path) -> None:
    def broken(answer: str, task: Task) -> Scored:
        return Scored(0.0, failure=Failure("bad_arguments", f"no grader for {task.id}"))

    with pytest.raises(RunStopped, match="no grader for t0"):
        await tuned(tmp_path, ask_once, some_tasks(1), reward=broken, tasks_per_step=4)


class KilledBackbone(CountingBackbone):
    """A backbone whose process is killed in its second step."""

    def step(self, rows: Any, loss: Any) -> dict[str, float]:  # noqa: ANN401 - as it is
        """Be killed."""
        if self.version == 1:
            raise Killed
        return super().step(rows, loss)


@pytest.mark.promise("tuner:resume")
async def test_a_trainer_killed_between_batch_and_step_makes_the_step_and_plays_no_episode_twice(
    tmp_path: Path,
) -> None:
    played: Counter[str] = Counter()

    async def solve(task: Task, policy: PolicyEndpoint) -> float:
        await says(policy, task.question)
        played[policy.episode] += 1
        return float(policy.episode[-1])

    with pytest.raises(BaseExceptionGroup) as found:
        await tuned(tmp_path, solve, some_tasks(3), backbone=KilledBackbone(), steps=3)
    assert found.group_contains(Killed)
    done = await tuned(tmp_path, solve, some_tasks(3), steps=3)
    assert done.backbone.version == 3
    assert len(played) == 3 * 4
    assert set(played.values()) == {1}


@pytest.mark.promise("tuner:resume")
async def test_episodes_that_ended_before_a_kill_are_trained_after_it(tmp_path: Path) -> None:
    played: Counter[str] = Counter()
    kills = True

    async def solve(task: Task, policy: PolicyEndpoint) -> float:
        await says(policy, task.question)
        if kills and policy.episode == "1/1":
            while sum(played.values()) < 3:
                await anyio.lowlevel.checkpoint()
            raise Killed
        played[policy.episode] += 1
        return float(policy.episode[-1])

    with pytest.raises(BaseExceptionGroup):
        await tuned(tmp_path, solve, some_tasks(3))
    kills = False
    done = await tuned(tmp_path, solve, some_tasks(3))
    assert done.figures[0]["episodes/count"] == 4
    assert played.total() in {4, 5}, "an end without a receipt may be played again"


@pytest.mark.promise("tuner:resume")
async def test_a_finished_run_continues_with_more_steps(tmp_path: Path) -> None:
    for steps in (1, 2):
        done = await tuned(tmp_path, ask_once, some_tasks(3), reward=by_member, steps=steps)
        assert done.backbone.version == steps


@pytest.mark.promise("tuner:any-agent")
async def test_groups_without_a_signal_are_replaced_and_episodes_stream_during_steps(tmp_path: Path) -> None:
    async def solve(task: Task, policy: PolicyEndpoint) -> float:
        await says(policy, task.question)
        return 0.0 if task.id == "t0" else float(policy.episode[-1])

    done = await tuned(tmp_path, solve, some_tasks(3), steps=2, replace_equal=1.0)
    assert [figures["groups/flat_share"] for figures in done.figures] == [0, 0]
    assert sum(figures.get("dropped/equal", 0) for figures in done.figures) >= 1


@pytest.mark.promise("tuner:failures")
async def test_an_engine_that_is_lost_costs_time_only(tmp_path: Path) -> None:
    model = EchoModel()
    model.fails = ModelFailure(ModelFailureKind.UNAVAILABLE, "connection refused")

    async def restarted() -> None:
        model.fails = None

    async def solve(task: Task, policy: PolicyEndpoint) -> float:
        async with AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=0) as client:
            messages: Any = [{"role": "user", "content": task.question}]
            await client.chat.completions.create(model=policy.model, messages=messages)
        return float(policy.episode[-1])

    done = await tuned(tmp_path, solve, some_tasks(1), model=model, settings=ONCE, engine_ready=restarted)
    assert (done.figures[0]["episodes/count"], done.figures[0].get("episodes/failed_model", 0)) == (4, 0)


@pytest.mark.promise("tuner:resume")
async def test_a_folder_of_another_run_is_refused_in_one_line(tmp_path: Path) -> None:
    await tuned(tmp_path, ask_once, some_tasks(2), reward=by_member)
    shutil.rmtree(tmp_path / "rollouts")
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ConfigurationError, match="its folder gateway has the episodes of another run"):
        await tuned(tmp_path, ask_once, some_tasks(2), reward=by_member)


@pytest.mark.promise("tuner:swarm")
async def test_a_reward_can_be_replaced_while_its_group_is_played(tmp_path: Path) -> None:
    async def client(address: Address) -> None:
        async with GatewayClient(*address) as worker:
            begun = [await worker.begin(wait=5) for _ in range(2)]
            first, second = (each for each in begun if each is not None)
            await worker.end(first, EpisodeOutcome(reward=1.0))
            await worker.put_reward(first, 5.0)
            await worker.end(second, EpisodeOutcome(reward=0.0))

    done = await tuned(tmp_path, None, some_tasks(1), clients=client, tasks_per_step=1)
    assert done.figures[0]["reward/mean"] == 2.5


@pytest.mark.promise("tuner:resume")
async def test_calls_that_a_killed_trainer_held_continue_with_the_next_one(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway, GatewayClient(*gateway) as client:
        await client.hold()
        rollout = GatewayRollout(client, make_judge("exact_match"), temperature=1.0)
        async with rollout.running():
            assert not (await client.status()).held


@pytest.mark.promise("training:evidence")
async def test_an_agent_of_our_engine_is_rewarded_for_the_documents_that_it_read(tmp_path: Path) -> None:
    async def solve(task: Task, policy: PolicyEndpoint) -> EpisodeOutcome:
        await says(policy, task.question)
        member = policy.episode.rpartition("/")[2]
        answered = float(member != "2")
        metrics = {"evidence": 0.5, "answered": answered}
        return EpisodeOutcome(answer="", reward=float(member == "1"), metrics=metrics)

    done = await tuned(
        tmp_path,
        solve,
        some_tasks(1),
        held_out=some_tasks(2)[1:],
        evidence=EvidenceSettings(),
        tasks_per_step=1,
        episodes_per_task=3,
    )
    trained = next(figures for figures in done.figures if "reward/mean" in figures)
    # A wrong answer, a right one, and none.
    assert trained["reward/mean"] == pytest.approx((0.05 + 1.5 + 0) / 3)
    assert trained["episodes/answer_score"] == pytest.approx(1 / 3)
    assert trained["episodes/evidence"] == 0.5
    validated = next(figures for figures in done.figures if "validation/score" in figures)
    assert (validated["validation/score"], validated["validation/evidence"]) == (0.0, 0.5)


@pytest.mark.promise("training:evidence")
async def test_our_own_team_tells_a_tuning_what_it_read() -> None:
    question, documents = "When was Needle Light built?", {"documents": ["needle-light"]}
    task = Task(index=0, id="a", question=question, references=("1834",), metadata=documents)
    async with fake_endpoint() as url:
        outcome = await atune(
            "team",
            [task],
            backbone="debug",
            episodes={"trained": ["generator"]},
            engine={"base_url": url, "served_model_name": "any"},
            schedule={"tasks_per_step": 1, "episodes_per_task": 1},
            loss={"kl_coef": 0.0},
            overrides=["tasks.evidence.weight=1"],
        )
    # The planner searched once, which showed five documents; the generator answered with random words.
    assert outcome["figures"]["reward/mean"] == pytest.approx(0.1 * 5 / 9)
