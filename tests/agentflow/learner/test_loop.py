"""The training loop: the same seed gives the same weights, whatever happens on the way."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.learner import EpisodeTokens, RunTokens
from agentflow.learner._checkpoints import CheckpointError, RolloutStore
from agentflow.learner._loop import Loop
from agentflow.learner._policy import OptimizerSettings
from agentflow.learner._sources import ReplaySource
from agentflow.learner.local import LocalBackbone
from agentflow.learner.losses import LossSettings
from agentflow.learner.packing import Row
from agentflow.trace import Task
from tests.agentflow.learner._models import save_tiny_model
from tests.agentflow.learner._training import (
    FakePlayer,
    a_backbone,
    a_loop,
    policy_settings,
    weights_of,
)
from tests.agentflow.telemetry._collected import attributes, collected

pytestmark = pytest.mark.timeout(300)

STEPS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return save_tiny_model(tmp_path_factory.mktemp("model"))


class Straight:
    """Five steps in one go: their weights, their folder."""

    weights: dict[str, bytes]
    folder: Path
    figures: list[dict[str, float]]
    steps: list[tuple[object, object]]


@pytest.fixture(scope="module")
async def straight(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Five steps in one go."""
    done = Straight()
    done.folder, done.figures = tmp_path_factory.mktemp("straight"), []
    done.steps = []

    def report(_step: int, told: Mapping[str, float]) -> None:
        done.figures.append(dict(told))

    backbone = a_backbone(model)
    with collected() as found:
        await a_loop(done.folder, backbone, report=report).run()
    for span in found.all:
        given = attributes(span)
        assert span.name == f"train_step {given['agentflow.step']}"
        done.steps.append((given["agentflow.step"], given["agentflow.reward"]))
    done.weights = weights_of(backbone)
    return done


@pytest.mark.promise("tracing:training")
async def test_each_step_is_a_span_with_its_mean_reward(straight: Straight) -> None:
    assert straight.steps == [
        (number, figures["reward/mean"]) for number, figures in enumerate(straight.figures, 1)
    ]


async def weights_after(loop: Loop, backbone: LocalBackbone) -> dict[str, bytes]:
    await loop.run()
    return weights_of(backbone)


@pytest.mark.promise("training:reproducible")
async def test_two_runs_of_five_steps_have_the_same_weights_to_the_bit(
    straight: Straight, model: Path, tmp_path: Path
) -> None:
    backbone = a_backbone(model)
    began = weights_of(backbone)
    again = await weights_after(a_loop(tmp_path, backbone), backbone)
    assert again == straight.weights
    assert again != began
    assert [figures["version"] for figures in straight.figures] == [1, 2, 3, 4, 5]
    files = [
        [path.read_bytes() for path in sorted((folder / "rollouts").iterdir())]
        for folder in (straight.folder, tmp_path)
    ]
    assert files[0] == files[1]


@pytest.mark.promise("training:reproducible")
@pytest.mark.promise("tracing:resume")
async def test_a_resumed_run_has_the_same_weights_and_emits_no_step_twice(
    straight: Straight, model: Path, tmp_path: Path
) -> None:
    with collected() as found:
        first = a_backbone(model)
        await a_loop(tmp_path, first, steps=2).run()
        second = a_backbone(model)
        loop = a_loop(tmp_path, second)
        assert loop.position.step == 2
        assert await weights_after(loop, second) == straight.weights
    assert [attributes(span)["agentflow.step"] for span in found.all] == [1, 2, 3, 4, 5]


@pytest.mark.promise("training:reproducible")
@pytest.mark.promise("training:stop")
async def test_steps_after_the_checkpoint_are_repeated_from_stored_rollouts(
    straight: Straight, model: Path, tmp_path: Path
) -> None:
    async def dies(task: Task, seed: str) -> None:
        if len(player.played) > 4 * 12:
            raise RunStopped(StopCause.BUDGET, "killed")

    player = FakePlayer(before=dies)
    first = a_backbone(model)
    with pytest.raises(ExceptionGroup):
        await a_loop(tmp_path, first, player=player, save_steps=3).run()
    fresh = FakePlayer()
    second = a_backbone(model)
    loop = a_loop(tmp_path, second, player=fresh)
    assert loop.position.step == 3
    assert await weights_after(loop, second) == straight.weights
    assert len(fresh.played) == 12


@pytest.mark.promise("training:reproducible")
async def test_a_replay_gives_the_same_weights_without_sampling(
    straight: Straight, model: Path, tmp_path: Path
) -> None:
    backbone = a_backbone(model)
    replay = ReplaySource(RolloutStore(straight.folder / "rollouts"))
    loop = a_loop(tmp_path, backbone, source=replay, steps=99)
    assert await weights_after(loop, backbone) == straight.weights
    assert loop.position.step == STEPS


@pytest.mark.promise("training:stored")
async def test_rollouts_of_another_run_are_refused(straight: Straight, model: Path) -> None:
    backbone = a_backbone(model)
    backbone.load(straight.folder / "checkpoints" / "step-00000005")
    loop = a_loop(straight.folder, backbone, steps=9)
    loop.position.step = 1
    with pytest.raises(
        ConfigurationError, match=r"step_000002.* was sampled by version 1, but the weights are version 5"
    ):
        await loop.run()


@pytest.mark.promise("training:flat")
@pytest.mark.promise("training:any-reward")
async def test_without_any_advantage_the_weights_do_not_change(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = a_backbone(model)
    began = weights_of(backbone)
    player = FakePlayer(answer=lambda _task, _seed: "no")
    loop = a_loop(tmp_path, backbone, player=player, steps=2, loss=LossSettings())
    assert await weights_after(loop, backbone) == began
    assert caplog.text.count("all rewards of the step are 0; check the reward function") == 2
    assert (loop.position.step, loop.last["version"], loop.last["groups/flat_share"]) == (2, 0, 1)


class FullDisk(LocalBackbone):
    """A policy whose disk is full for some checkpoints."""

    full = 1

    def save(self, folder: Path, position: Any) -> Path:  # noqa: ANN401 - as it is
        if self.full:
            self.full -= 1
            raise CheckpointError(f"{folder} can't be written: No space left on device; free some space")
        return super().save(folder, position)


@pytest.mark.promise("training:checkpoints")
async def test_a_full_disk_loses_a_checkpoint_and_no_step(
    straight: Straight, model: Path, tmp_path: Path
) -> None:
    small = a_backbone(model)
    backbone = FullDisk(small.settings, small.optimizer_settings)
    told: dict[int, dict[str, float]] = {}

    def report(step: int, figures: Mapping[str, float]) -> None:
        told[step] = dict(figures)

    loop = a_loop(tmp_path, backbone, save_steps=2, report=report)
    assert await weights_after(loop, backbone) == straight.weights
    assert (told[2]["checkpoint/failed"], told[4]["checkpoint/failed"]) == (1, 0)


@pytest.mark.promise("training:checkpoints")
async def test_a_failed_last_checkpoint_ends_the_run_which_can_resume(
    straight: Straight, model: Path, tmp_path: Path
) -> None:
    small = a_backbone(model)
    backbone = FullDisk(small.settings, small.optimizer_settings)
    with pytest.raises(
        RunStopped, match="No space left on device; free some space, then run the same command to resume"
    ):
        await a_loop(tmp_path, backbone).run()
    again = a_backbone(model)
    player = FakePlayer()
    assert await weights_after(a_loop(tmp_path, again, player=player), again) == straight.weights
    assert player.played == []


@pytest.mark.promise("training:stop")
async def test_a_stopped_run_keeps_its_step_and_resumes(
    straight: Straight, model: Path, tmp_path: Path
) -> None:
    first = a_backbone(model)

    def stop(step: int, _figures: object) -> None:
        if step == 2:
            loop.stop("somebody asked")

    loop = a_loop(tmp_path, first, report=stop)
    with pytest.raises(
        RunStopped, match="stopped after step 2: somebody asked; run the same command to resume"
    ):
        await loop.run()
    second = a_backbone(model)
    loop = a_loop(tmp_path, second)
    assert loop.position.step == 2
    assert await weights_after(loop, second) == straight.weights


@pytest.mark.promise("training:validation")
async def test_validation_comes_first_then_every_so_often_and_last(model: Path, tmp_path: Path) -> None:
    told: dict[int, float] = {}

    async def validate() -> dict[str, float]:
        return {"validation/score": float(backbone.version)}

    def report(step: int, figures: Any) -> None:  # noqa: ANN401 - figures
        if "validation/score" in figures:
            told[step] = figures["validation/score"]

    backbone = a_backbone(model)
    await a_loop(tmp_path, backbone, validate=validate, eval_steps=2, report=report).run()
    assert told == {0: 0, 2: 2, 4: 4, 5: 5}


@pytest.mark.promise("training:reproducible")
async def test_a_batch_can_be_several_optimizer_steps(model: Path, tmp_path: Path) -> None:
    backbone = a_backbone(model)
    loop = a_loop(tmp_path, backbone, steps=1, steps_per_batch=3)
    await loop.run()
    assert (loop.position.step, backbone.version) == (1, 3)


class WatchedBackbone(LocalBackbone):
    """A backbone that remembers what each step was given, and the log-probabilities that it had just before."""

    def __init__(self, model: Path) -> None:
        super().__init__(policy_settings(model), OptimizerSettings(learning_rate=1e-2))
        self.given: list[tuple[Row, list[float]]] = []

    def step(self, rows: Sequence[Row], loss: LossSettings) -> dict[str, float]:
        self.given += zip(rows, [values.tolist() for values in self.log_probs(rows)], strict=True)
        return super().step(rows, loss)


@pytest.mark.promise("tokens:trainer")
@pytest.mark.parametrize("parts", [1, 2])
async def test_the_stored_log_probabilities_and_derived_advantages_are_those_that_the_trainer_used(
    parts: int, model: Path, tmp_path: Path
) -> None:
    backbone = WatchedBackbone(model)
    loss = LossSettings(filter_groups=True)
    await a_loop(tmp_path, backbone, steps=2, steps_per_batch=parts, loss=loss).run()
    (tmp_path / "settings.yaml").write_text(
        f"loss: {loss.model_dump_json()}\nschedule: {{steps_per_batch: {parts}}}\n"
    )
    used = {
        (bytes(row.ids), bytes(row.trained), float(row.advantages[0]), tuple(log_probs))
        for row, log_probs in backbone.given
    }
    episodes = [each for each in RunTokens(tmp_path).episodes() if each.scores]
    stored = {
        (*_row_of(episode, call), scores.advantage, tuple(scores.log_probs.tolist()))
        for episode in episodes
        for call, scores in episode.scores.items()
    }
    assert len(used) > 10 and stored == used
    for episode in episodes:
        derived = {call: episode.advantage_of(call) for call in range(len(episode.sample.calls))}
        assert episode.scores.keys() == {call for call, advantage in derived.items() if advantage is not None}
        for call, scores in episode.scores.items():
            assert np.float32(derived[call]) == np.float32(scores.advantage)
        shown = [piece for _, row in episode.rows() for piece in row if piece.kind == "trained"]
        assert [value for piece in shown for value in piece.trainer_logprobs] == [
            value for scores in episode.scores.values() for value in scores.log_probs.tolist()
        ]


def _row_of(episode: EpisodeTokens, call: int) -> tuple[bytes, bytes]:
    tokens = episode.sample.calls[call]
    ids = np.array(tokens.prompt + tokens.sampled, np.int32)
    return bytes(ids), bytes(np.arange(len(ids)) >= len(tokens.prompt))


@pytest.mark.promise("tokens:trainer")
async def test_what_the_trainer_used_can_be_left_out_and_its_loss_stops_no_step(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_loop(tmp_path / "none", a_backbone(model), steps=1, save_log_probs=False).run()
    assert [path.name for path in (tmp_path / "none" / "rollouts").iterdir()] == ["step_000001.jsonl.gz"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RolloutStore, "write_scores", full)
    loop = a_loop(tmp_path / "full", a_backbone(model), steps=1)
    await loop.run()
    assert loop.position.step == 1
    assert RolloutStore(tmp_path / "full" / "rollouts").read_scores(1) == {}


@pytest.mark.promise("tokens:trainer")
@pytest.mark.parametrize("body", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_damaged_scores_are_an_error_of_one_line(body: bytes, tmp_path: Path) -> None:
    (tmp_path / "step_000001.scores.npz").write_bytes(body)
    with pytest.raises(
        ConfigurationError, match=r"step_000001\.scores\.npz: can't be read: .*; remove it"
    ) as caught:
        RolloutStore(tmp_path).read_scores(1)
    assert "\n" not in str(caught.value)
