"""Failures of episodes are data, and the group continues."""

import asyncio
from collections.abc import Sequence
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from agentflow.errors import ModelFailureKind, RunStopped, StopCause, WorkPostponed, unwrap_group
from agentflow.learner._config import ValidationSettings
from agentflow.learner._group_rollout import GroupRollout, GroupSettings, Validation
from agentflow.learner._groups import EpisodeResult, FailureCause, Group, Sample, TaskDraw
from agentflow.learner._sources import SyncSource, TaskOrder
from agentflow.telemetry import RunTrace
from agentflow.testing import VirtualTimeLoop
from agentflow.trace import Task
from tests.agentflow.learner._training import FakePlayer, playing_of, some_tasks
from tests.agentflow.telemetry._collected import attributes, collected, trace_of

SIZE = 4


def in_virtual_time(playing: GroupRollout) -> Group:
    """Run a group in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(playing.group(TaskDraw(0, some_tasks(1)[0]), SIZE))


class Troubles:
    """Fails in the first episode of a group, as often as given."""

    def __init__(self, error: Exception | None = None, times: int = 1) -> None:
        self._error = error
        self._times = times
        self._first = ""

    async def __call__(self, task: Task, seed: str) -> None:
        del task
        self._first = self._first or seed
        if seed != self._first or not self._times:
            return
        self._times -= 1
        if self._error is None:
            await anyio.sleep_forever()
        else:
            raise self._error


@pytest.mark.promise("tracing:training")
def test_each_try_of_an_episode_is_a_trace_linked_to_the_training_with_its_reward() -> None:
    player = FakePlayer(before=Troubles(ValueError("no"), times=1))
    with collected() as found, RunTrace("training", "key"):
        in_virtual_time(playing_of(player, tries=2))
    *episodes, training = found.all
    assert training.name == "invoke_workflow training"
    assert {span.name for span in episodes} == {"invoke_agent episode"}
    assert len({trace_of(span) for span in episodes}) == SIZE + 1
    assert all([link.context for link in span.links] == [training.context] for span in episodes)
    assert [attributes(span)["error.type"] for span in episodes if not span.events] == ["crashed"]
    assert {event.name for span in episodes for event in span.events} == {"gen_ai.evaluation.result"}


@pytest.mark.promise("training:failures")
def test_an_episode_that_never_ends_is_cancelled_and_counted() -> None:
    group = in_virtual_time(playing_of(FakePlayer(before=Troubles()), seconds=60))
    assert len(group.samples) == SIZE - 1
    assert [failure.kind for failure in group.failures] == [FailureCause.TIME]
    assert group.failures[0].message == "it did not end in 90 seconds"


@pytest.mark.promise("training:failures")
def test_an_episode_that_always_crashes_is_left_out_and_the_group_continues() -> None:
    player = FakePlayer(before=Troubles(ValueError("two\nlines"), times=2))
    group = in_virtual_time(playing_of(player, tries=2))
    assert len(group.samples) == SIZE - 1
    assert [(failure.kind, failure.message) for failure in group.failures] == [
        (FailureCause.CRASHED, "ValueError: two lines")
    ]
    assert len(player.played) == SIZE + 1


@pytest.mark.promise("training:failures")
def test_an_episode_with_a_failing_or_invalid_reward_is_left_out() -> None:
    asked: list[str] = []

    def reward(answer: str, task: Task) -> object:
        del task
        asked.append(answer)
        if len(asked) == 1:
            raise ZeroDivisionError("in the reward")
        return "good" if len(asked) == 2 else 1.0

    group = in_virtual_time(playing_of(FakePlayer(reward=reward)))
    assert [failure.kind for failure in group.failures] == [FailureCause.REWARD] * 2
    assert "ZeroDivisionError: in the reward" in group.failures[0].message
    assert [sample.reward for sample in group.samples] == [1.0, 1.0]


@pytest.mark.promise("training:engine-lost")
def test_an_episode_that_lost_its_engine_is_run_again_once_it_answers() -> None:
    lost = RunStopped(StopCause.MODEL, "16 calls in a row failed")
    back: list[str] = []

    async def ready() -> None:
        await anyio.sleep(30)
        back.append("ready")

    player = FakePlayer(before=Troubles(lost, times=2))
    undisturbed = in_virtual_time(playing_of(FakePlayer()))
    group = in_virtual_time(playing_of(player, tries=3, engine_ready=ready))
    assert back == ["ready", "ready"]
    assert group == undisturbed


@pytest.mark.promise("training:failures")
def test_an_error_that_ends_the_run_is_raised() -> None:
    full = RunStopped(StopCause.BUDGET, "the budget is used up")
    with pytest.raises(ExceptionGroup) as raised:
        in_virtual_time(playing_of(FakePlayer(before=Troubles(full))))
    assert raised.group_contains(RunStopped, match="budget")


@pytest.mark.promise("training:order")
def test_the_order_depends_on_the_seed_and_can_be_resumed() -> None:
    tasks = some_tasks(7)
    draws = TaskOrder(tasks, seed=1, epochs=3).take(100)
    assert [draw.number for draw in draws] == list(range(21))
    for epoch in range(3):
        drawn = [draw.task.id for draw in draws[7 * epoch : 7 * epoch + 7]]
        assert sorted(drawn) == sorted(task.id for task in tasks)
    assert draws[:7] != [*map(TaskDraw, range(7), tasks)]
    again = TaskOrder(tasks, seed=1, epochs=3)
    again.taken = 9
    assert again.take(100) == draws[9:]
    assert again.take(1) == []
    assert TaskOrder(tasks, seed=2).take(21) != draws


@pytest.mark.promise("training:order")
async def test_the_same_seed_gives_the_same_batch_at_any_concurrency() -> None:
    batches = [
        await SyncSource(
            playing_of(FakePlayer(), at_once=at_once),
            TaskOrder(some_tasks(9), seed=3),
            tasks=4,
            size=3,
            replace_equal=0.0,
        ).collect(1, 0)
        for at_once in (1, 2, 64)
    ]
    assert batches[0] is not None
    assert len({sample.id for sample in batches[0].samples}) == 12
    assert batches[0] == batches[1] == batches[2]


def only_odd(task: Task, seed: str) -> str:
    """Always answers tasks with even numbers correctly."""
    return "yes" if task.index % 2 == 0 or int(seed, 16) % 2 else "no"


@pytest.mark.promise("training:groups")
async def test_groups_with_equal_rewards_are_replaced_up_to_the_configured_share() -> None:
    order = partial(TaskOrder, some_tasks(40), seed=3)
    player = FakePlayer(answer=only_odd)
    batch = await SyncSource(playing_of(player), order(), tasks=4, size=8, replace_equal=9.0).collect(1, 0)
    assert batch is not None
    assert len(batch.groups) == 4
    assert not any(group.is_flat for group in batch.groups)
    assert batch.taken == 4 + batch.dropped["equal"]
    few = await SyncSource(playing_of(player), order(), tasks=4, size=8, replace_equal=0.25).collect(1, 0)
    assert few is not None
    assert few.taken == 5
    assert len(few.groups) + few.dropped["equal"] == 5


@pytest.mark.promise("training:groups")
async def test_a_step_with_only_equal_groups_keeps_them() -> None:
    player = FakePlayer(answer=lambda _task, _seed: "no")
    rounds = SyncSource(
        playing_of(player), TaskOrder(some_tasks(9), seed=3), tasks=2, size=2, replace_equal=1.0
    )
    batch = await rounds.collect(1, 0)
    assert batch is not None
    assert (len(batch.groups), batch.dropped) == (4, {})


@pytest.mark.promise("training:no-episodes")
async def test_a_step_without_an_episode_ends_the_run_with_the_reason() -> None:
    async def crash(task: Task, seed: str) -> None:
        raise OSError("no sandbox")

    rounds = SyncSource(
        playing_of(FakePlayer(before=crash), tries=1),
        TaskOrder(some_tasks(2), seed=3),
        tasks=2,
        size=2,
        replace_equal=0,
    )
    with pytest.raises(
        RunStopped, match="step 1: all 4 episodes failed, 4 of them with crashed: OSError: no sandbox"
    ):
        await rounds.collect(1, 0)


def postponed(kind: ModelFailureKind) -> WorkPostponed:
    return WorkPostponed(StopCause.MODEL, f"judge: {kind}", kind=kind)


@pytest.mark.promise("training:outage")
@pytest.mark.parametrize("calls", [0, 1, 7, 11])
async def test_an_outage_ends_the_run_and_the_same_command_gives_the_undisturbed_batch(calls: int) -> None:
    def source(player: FakePlayer) -> SyncSource:
        order = TaskOrder(some_tasks(9), seed=3)
        return SyncSource(playing_of(player, tries=2), order, tasks=4, size=3, replace_equal=0.0)

    answered = 0

    async def fail_later(task: Task, seed: str) -> None:
        nonlocal answered
        del task, seed
        answered += 1
        await anyio.lowlevel.checkpoint()
        if answered > calls:
            raise postponed(ModelFailureKind.UNAVAILABLE)

    with pytest.raises(ExceptionGroup) as raised:
        await source(FakePlayer(before=fail_later)).collect(1, 0)
    stopped = unwrap_group(raised.value)
    assert isinstance(stopped, RunStopped)
    assert not isinstance(stopped, WorkPostponed)
    assert (stopped.cause, stopped.message) == (
        StopCause.MODEL, "judge: unavailable; run the same command to resume",
    )  # fmt: skip
    assert await source(FakePlayer()).collect(1, 0) == await source(FakePlayer()).collect(1, 0)


@pytest.mark.promise("training:failures")
def test_an_episode_whose_model_is_always_too_slow_is_left_out() -> None:
    player = FakePlayer(before=Troubles(postponed(ModelFailureKind.TIMEOUT), times=2))
    group = in_virtual_time(playing_of(player, tries=2))
    assert [failure.kind for failure in group.failures] == [FailureCause.MODEL]
    assert len(group.samples) == SIZE - 1


@pytest.mark.promise("training:broken-reward")
def test_a_reward_that_fails_on_every_answer_ends_the_run() -> None:
    def reward(answer: str, task: Task) -> object:
        raise KeyError(f"{task.id}: {answer}")

    playing = playing_of(FakePlayer(reward=reward))
    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        pytest.raises(ExceptionGroup) as raised,
    ):
        runner.run(playing.group(TaskDraw(0, some_tasks(1)[0]), 8))
    stopped = unwrap_group(raised.value)
    assert isinstance(stopped, RunStopped)
    assert stopped.cause is StopCause.SCORING
    assert "it has failed on all 8 answers so far" in stopped.message


@pytest.mark.promise("training:any-reward")
async def test_a_validation_reports_any_reward_and_counts_successes_where_they_are_known() -> None:
    class Scored(GroupRollout):
        async def one(self, task: Task, place: Sequence[object], **_more: object) -> EpisodeResult:
            return EpisodeResult(
                reward=-1.0 if place[1] == 0 else 2.5,
                success=place[2] == 0,
                details={"moves": float(task.index)},
            )

    settings = ValidationSettings(samples=2)
    validation = Validation(
        Scored(FakePlayer(), GroupSettings(trained=(), temperature=1.0)), some_tasks(2), settings
    )
    figures = await validation.score()
    assert figures["validation/score"] == 0.75
    assert figures["validation/pass@2"] == 1.0, "one of two samples of each task has success"
    assert (figures["validation/moves"], figures["validation/lost"]) == (0.5, 0.0)


@pytest.mark.promise("training:any-reward")
def test_a_group_has_a_signal_if_rewards_of_one_agent_or_turns_differ() -> None:
    def group(*rewards: tuple[str, float, tuple[float, ...]]) -> Group:
        samples = [
            Sample(task=task, id="", reward=reward, calls=(), turn_rewards=turns)
            for task, reward, turns in rewards
        ]
        return Group(number=0, name="g", samples=tuple(samples))

    wolves_won = ("g#wolf", 1.0, ()), ("g#villager", -1.0, ())
    assert group(*wolves_won, *wolves_won).is_flat, "rewards of different agents are not compared"
    assert not group(*wolves_won, ("g#wolf", 0.0, ())).is_flat
    assert not group(("g", 1.0, (0.5,)), ("g", 1.0, ())).is_flat
