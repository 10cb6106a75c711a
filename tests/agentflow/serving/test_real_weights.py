"""Weight updates of a real pretrained model: no false alarm, no missed fault, in float32 and bfloat16."""

import shutil
from pathlib import Path

import pytest

from agentflow.serving import (
    LoadReport,
    ModelServer,
    Probe,
    ProbeText,
    Published,
    Publisher,
    Weights,
    WeightsFailure,
)
from agentflow.serving._control import EngineControl
from agentflow.serving._publishing import load_folder
from tests._real_model import real_model
from tests._vllm import as_it_was, real_server
from tests.agentflow.serving._trainer import Trainer

pytestmark = pytest.mark.timeout(900)

STALE = "stale.txt"
"""File in a folder of weights with a part of the names of tensors that `_faulty_loader.py` does not load."""
TINY, SMALL, LARGE = 1e-8, 1e-6, 1e-3
"""Sizes of a step of every weight; no log-probability shows the first."""
PROMPT = (1, 4093, 198, 16843, 527, 260, 5345, 30, 2, 198, 1, 520, 9531, 198)
"""A question in the template of SmolLM2."""
SAMPLED = 200


class Updates:
    """A trainer, and the texts that the engine sampled."""

    def __init__(self, folder: Path, dtype: str, sampled: tuple[int, ...]) -> None:
        self.trainer = Trainer(folder, dtype)
        self._text = PROMPT + sampled
        self._dtype = dtype

    def probe(self, before: tuple[float, ...] = ()) -> Probe:
        """The sampled tokens, with the trainer's log-probabilities now and before."""
        begin = len(PROMPT)
        values = self.trainer.logprobs(self._text)[begin - 1 :]
        text = ProbeText(tokens=self._text, begin=begin, logprobs=values, before=before)
        return Probe(texts=(text,), dtype=self._dtype)


async def updates_of(server: ModelServer, folder: Path, dtype: str) -> Updates:
    """Let the engine sample a text, and give it to a trainer with the same weights."""
    async with EngineControl(server.address, server.key) as control:
        drawn = await control.draw(server.model, PROMPT, SAMPLED)
    return Updates(folder, dtype, drawn.tokens)


async def check_all(server: ModelServer, folder: Path, dtype: str, tmp_path: Path) -> dict[str, Published]:
    """Publish steps of two sizes, and every fault at the small one."""
    updates = await updates_of(server, folder, dtype)
    fills_cache = False

    async def load(control: EngineControl, weights: Weights, before: Weights | None) -> LoadReport | None:
        if fills_cache:
            await control.resume()
            prompt = updates.probe().texts[0].tokens[:72]
            await control.draw(server.model, prompt, 1, salt="probe of weights")
            await control.pause(clear_cache=False)
        return await load_folder(control, weights, before)

    trainer, others = updates.trainer, Publisher(server.url, server.key, load=load)
    found: dict[str, Published] = {}

    # Right updates.
    found["unchanged"] = await others.publish(trainer.export(tmp_path / "0", "0"), updates.probe())
    for name, size in (("tiny", TINY), ("small", SMALL), ("large", LARGE)):
        before = updates.probe().texts[0].logprobs
        trainer.step(seed=1, size=size)
        found[name] = await others.publish(trainer.export(tmp_path / name, name), updates.probe(before))

    # A layer that is left stale, and a head.
    for part in ("layers.7.mlp.up_proj.", "embed_tokens."):
        trainer.step(seed=2, size=SMALL if dtype == "float32" else LARGE)
        weights = trainer.export(tmp_path / part, part)
        (weights.folder / STALE).write_text(part)
        with pytest.raises(
            WeightsFailure, match=rf"did not take model\.{part.replace('.', chr(92) + '.')}weight;"
        ):
            await others.publish(weights, updates.probe())
        (weights.folder / STALE).unlink()
        await others.publish(weights, updates.probe())

    # A cache that was filled before, and not cleared.
    fills_cache = True
    trainer.step(seed=3, size=SMALL)
    with pytest.raises(WeightsFailure, match="continues from a cache of other weights, of 64 tokens"):
        await others.publish(trainer.export(tmp_path / "cache", "cache"), updates.probe())
    fills_cache = False

    # A trainer with other weights than those it published.
    weights = trainer.export(tmp_path / "other", "other")
    trainer.step(seed=4, size=0.02)
    with pytest.raises(WeightsFailure, match=r"differ by .* nats"):
        await others.publish(weights, updates.probe())
    return found


@pytest.mark.promise("weights:real")
@pytest.mark.promise("weights:stale")
async def test_updates_of_a_real_model_raise_no_alarm_and_faults_are_found_at_any_step_size(
    smollm2: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(smollm2) as folder:
        found = await check_all(smollm2, folder, "float32", tmp_path)
    for published in found.values():
        assert published.agreement is not None
        assert abs(published.agreement.mean) < 1e-4
        assert published.loaded is not None
        assert published.loaded.verified == published.loaded.tensors == 272
        assert not published.restarted
    assert found["tiny"].is_nearer is None, "not decidable"
    assert (found["small"].is_nearer, found["large"].is_nearer) == (True, True)


@pytest.mark.soak
@pytest.mark.promise("weights:real")
async def test_updates_in_bfloat16_raise_no_alarm_and_faults_are_found(tmp_path: Path) -> None:
    with real_server("bfloat16") as server:
        found = await check_all(server, real_model(), "bfloat16", tmp_path)
    assert all(not published.restarted for published in found.values())


@pytest.mark.soak
@pytest.mark.promise("weights:real")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_an_update_in_place_equals_a_fresh_start_bit_by_bit(dtype: str, tmp_path: Path) -> None:
    trainer = Trainer(real_model(), dtype)
    trainer.step(seed=1, size=0.002)
    weights = trainer.export(tmp_path / "new", "new")
    for file in real_model().glob("*token*"):
        shutil.copy(file, weights.folder)
    answers: list[tuple[object, ...]] = []
    for model, update in ((real_model(), True), (weights.folder, False)):
        with real_server(dtype, model) as server:
            if update:
                # Twice: the second one replaces packed copies that an update made.
                await server.publish(Weights(folder=real_model(), version="again"))
                await server.publish(weights)
            async with EngineControl(server.address, server.key) as control:
                answers.append(
                    (
                        await control.draw(server.model, PROMPT, 32, greedy=True),
                        await control.score(server.model, PROMPT),
                    )
                )
    assert answers[0] == answers[1]
