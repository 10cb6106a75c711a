"""Progress of a training by phase, and advice when rewards give no signal."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from agentflow.cli._train import training_view
from agentflow.learner import Batch, EpisodeResult, Group, Sample
from agentflow.learner._groups import ReplacedGroup, class_of, signal_figures
from agentflow.learner._loop import SignalWatch
from agentflow.learner._progress import TrainProgress
from agentflow.runs import Phase
from agentflow.trace import Task
from tests.agentflow.tuner._tuning import ask_text, some_tasks, tuned


class _FakeSeconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def result_of(tokens: int) -> EpisodeResult:
    """An episode that sampled so many tokens."""
    sample = Sample(task="t", id="t/0", reward=1.0, calls=(), details={"sampled_tokens": float(tokens)})
    return EpisodeResult(samples=(sample,))


@pytest.mark.promise("training:progress")
def test_each_phase_has_its_seconds_and_rollouts_their_episodes_and_tokens() -> None:
    clock = _FakeSeconds()
    progress = TrainProgress(4, clock)
    with progress.during(Phase.ROLLOUTS, 8):
        clock.now += 10
        progress.add_result(result_of(30))
        progress.add_result(result_of(50))
        status = progress.status()
        assert (status.phase, status.phase_seconds) == (Phase.ROLLOUTS, 10)
        assert (status.phase_episodes, status.phase_total, status.tokens_per_second) == (2, 8, 8)
    with progress.during(Phase.STEP):
        clock.now += 3
    with progress.during(Phase.PUBLICATION):
        clock.now += 2
        shown = text_of(progress)
        assert "rollouts" in shown
        assert "10.0 s last time" in shown
        assert "2.0 s" in shown
        assert "8.0 tokens/s" in shown
    figures = progress.take_seconds()
    assert figures == {
        "seconds/rollout": 10,
        "seconds/step": 3,
        "seconds/publish": 2,
        "episodes/sampled_per_second": 8,
    }
    with progress.during(Phase.VALIDATION, 5):
        clock.now += 1
        assert progress.status().phase_episodes == 0
    assert progress.take_seconds()["seconds/validation"] == 1
    assert progress.status().durations["step"] == 3


@pytest.mark.promise("training:progress")
def test_a_phase_that_fails_is_the_one_in_which_the_run_ended() -> None:
    progress = TrainProgress(4, _FakeSeconds())
    with pytest.raises(OSError, match="full"), progress.during(Phase.STEP):
        raise OSError("full")
    assert progress.phase is Phase.STEP
    progress.phase = Phase.STOPPED
    assert Phase.STEP not in progress.durations


def text_of(progress: TrainProgress) -> str:
    """Progress as a terminal shows it."""
    console = Console(width=100)
    with console.capture() as captured:
        console.print(training_view(progress.status()))
    return captured.get()


@pytest.mark.promise("training:progress")
async def test_the_figures_of_a_step_have_the_seconds_of_its_phases_and_accuracy_by_class(
    tmp_path: Path,
) -> None:
    tasks = [*some_tasks(1, **{"class": "even"}), *some_tasks(2, **{"class": "odd"})[1:]]
    done = await tuned(tmp_path, ask_text, tasks, reward=is_even, held_out=tasks, steps=1)
    began, step = done.figures
    assert began.keys() >= {"seconds/validation", "validation/class/even", "validation/class/odd"}
    assert step.keys() >= {"seconds/rollout", "seconds/step", "seconds/publish", "seconds/validation"}
    assert (step["reward/class/even"], step["reward/class/odd"]) == (1, 0)
    assert (step["validation/class/even"], step["validation/class/odd"]) == (1, 0)
    assert step["groups/no_signal"] == 1


def is_even(answer: str, task: Task) -> float:
    """1 for an even task."""
    del answer
    return float(task.metadata["class"] == "even")


def batch_of(step: int, groups: Mapping[str, tuple[float, float]], *replaced: ReplacedGroup) -> Batch:
    """The batch of a step: a group of two rewards for each class."""
    return Batch(
        step=step,
        version=step,
        taken=step,
        groups=tuple(
            Group(
                number=number,
                name=name,
                task_class=name,
                samples=tuple(
                    Sample(task=name, id=f"{name}/{member}", reward=reward, calls=())
                    for member, reward in enumerate(rewards)
                ),
            )
            for number, (name, rewards) in enumerate(groups.items())
        ),
        replaced=replaced,
    )


@pytest.mark.promise("training:signal")
@pytest.mark.parametrize(("reward", "advice"), [(0.0, "easier tasks"), (1.0, "harder tasks")])
def test_groups_without_signal_for_five_steps_are_reported_once_with_advice(
    reward: float, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    watch = SignalWatch()
    for step in range(4):
        watch.add(batch_of(step, {"": (reward, reward)}))
    watch.add(batch_of(4, {"": (0.0, 1.0)}))
    assert not caplog.records
    for step in range(5, 20):
        watch.add(batch_of(step, {"": (reward, reward)}))
    assert caplog.text.count("most groups give no signal") == 1
    assert advice in caplog.text
    assert "schedule.replace_equal" in caplog.text


@pytest.mark.promise("training:signal")
def test_a_class_that_dies_out_while_others_learn_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = SignalWatch()
    for step in range(10):
        watch.add(batch_of(step, {"maths": (0.0, 1.0), "solved": (1.0, 1.0), "tools": (0.0, 0.0)}))
    assert caplog.text.count("a class of tasks gives no signal") == 1
    assert "tools" in caplog.text
    watch = SignalWatch()
    caplog.clear()
    for step in range(10):
        watch.add(batch_of(step, {"maths": (0.0, 1.0)}, ReplacedGroup("tools", 0.0)))
    assert "tools" in caplog.text, "groups that were replaced count, too"


@pytest.mark.promise("training:signal")
def test_classes_have_figures_if_there_are_a_few() -> None:
    figures = signal_figures(batch_of(1, {"a": (0.0, 1.0), "b": (1.0, 1.0)}, ReplacedGroup("b", 0.0)))
    assert figures == {"groups/no_signal": 2 / 3, "reward/class/a": 0.5, "reward/class/b": 0.5}
    many = {str(number): (0.0, 1.0) for number in range(21)}
    assert signal_figures(batch_of(1, many)) == {"groups/no_signal": 0}
    assert signal_figures(batch_of(1, {})) == {}
    named = Task(index=0, id="t", question="?", metadata={"class": "a/b\n\x1b[1m" + "c" * 99, "source": "x"})
    assert class_of(named) == "a_b_1m" + "c" * 34
    assert class_of(Task(index=0, id="t", question="?", metadata={"source": "gsm8k"})) == "gsm8k"
    assert class_of(Task(index=0, id="t", question="?", metadata={"class": ["x"]})) == ""
