"""Weight updates of a running server: a real vLLM on the CPU, and a trainer with the same model."""

import os
import signal
from pathlib import Path

import aiohttp
import anyio
import msgspec
import pytest
from msgspec import Struct

from agentflow.errors import ConfigurationError, ModelFailure, RunStopped
from agentflow.models import Accounts, Call, Message, Sampling, TextPart, make_model
from agentflow.serving import (
    TOLERANCES,
    ModelServer,
    Published,
    Publisher,
    Weights,
    WeightsFailure,
)
from agentflow.serving._control import EngineControl
from agentflow.serving._weights import tolerance_of
from tests._vllm import as_it_was, settings_of
from tests.agentflow.serving._trainer import Trainer, arbitrary_tokens

pytestmark = pytest.mark.timeout(900)

NEAR = 1e-5
LONG = 2_000


class Logprob(Struct):
    logprob: float


class Logprobs(Struct):
    content: list[Logprob]


class Span(Struct):
    version: str
    start: int
    end: int


class Choice(Struct):
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    weight_versions: list[Span] | None = None


class Chunk(Struct):
    """Part of the engine's answer."""

    choices: list[Choice]


class Drawn(Struct):
    """Tokens sampled by an engine."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: list[tuple[str, int, int]]


class LongRequest:
    """A request that runs while weights change."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self.prompt = arbitrary_tokens(2_000, 300)
        self.begun = anyio.Event()
        self.drawn = Drawn((), (), [])

    async def run(self) -> None:
        body = {
            "token_ids": self.prompt,
            "sampling_params": {"temperature": 1.0, "max_tokens": LONG, "logprobs": 0, "ignore_eos": True},
            "stream": True,
        }
        headers = {"Authorization": f"Bearer {self._server.key}"}
        tokens: list[int] = []
        logprobs: list[float] = []
        spans: list[tuple[str, int, int]] = []
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{self._server.address}/inference/v1/generate", json=body) as answer,
        ):
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                for choice in msgspec.json.decode(line.removeprefix(b"data: "), type=Chunk).choices:
                    tokens += choice.token_ids or []
                    logprobs += [one.logprob for one in choice.logprobs.content] if choice.logprobs else []
                    spans += [(span.version, span.start, span.end) for span in choice.weight_versions or []]
                self.begun.set()
        self.drawn = Drawn(tuple(tokens), tuple(logprobs), spans)

    def off(self, trainer: Trainer, start: int, end: int) -> float:
        """Return the largest difference of some tokens from the trainer's log-probabilities."""
        said = trainer.logprobs((*self.prompt, *self.drawn.tokens))[len(self.prompt) - 1 :]
        return max(abs(said[place] - self.drawn.logprobs[place]) for place in range(start, end))


@pytest.mark.promise("weights:agree")
async def test_engine_and_trainer_agree_before_and_after_new_weights(
    vllm: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as folder, EngineControl(vllm.address, vllm.key) as control:
        trainer = Trainer(folder)
        assert (await vllm.check(trainer.probe())).largest <= NEAR
        trainer.step(seed=1)
        published = await vllm.publish(trainer.export(tmp_path, "1"), trainer.probe())
        assert published.agreement is not None
        assert published.agreement.largest <= NEAR
        assert published.loaded is not None
        assert published.loaded.verified == published.loaded.tensors
        assert not published.restarted
        assert (await control.version(), await control.is_paused()) == ("1", False)
        assert vllm.weights == Weights(folder=tmp_path, version="1")


@pytest.mark.promise("weights:in_flight")
async def test_a_request_during_a_weight_update_continues_with_the_new_weights(
    vllm: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as folder:
        before, after = Trainer(folder), Trainer(folder)
        after.step(seed=2)
        number = 1
        while True:
            number += 1
            version = str(number)
            weights, request = after.export(tmp_path / version, version), LongRequest(vllm)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(request.run)
                await request.begun.wait()
                await vllm.publish(weights)
            if len(request.drawn.spans) == 2:
                break
            # This process was so slow that the request ended before the engine was paused: try again, back to the
            # weights before.
            assert [(start, end) for _, start, end in request.drawn.spans] == [(0, LONG)]
            before, after = after, before
        (_, start, cut), (new, again, end) = request.drawn.spans
        assert (start, again, new, end) == (0, cut, version, LONG)
        assert len(request.drawn.tokens) == len(request.drawn.logprobs) == LONG
        assert request.off(before, 0, cut) <= NEAR
        assert request.off(after, cut, LONG) <= NEAR


@pytest.mark.promise("weights:stale")
async def test_a_stale_cache_is_detected(vllm: ModelServer, tmp_path: Path) -> None:
    async with as_it_was(vllm) as folder, EngineControl(vllm.address, vllm.key) as control:
        trainer = Trainer(folder)
        await vllm.check(trainer.probe())
        trainer.step(seed=3)
        await control.reload(str(trainer.export(tmp_path, "3").folder))
        with pytest.raises(
            WeightsFailure, match=r"^tiny continues from a cache of other weights, off by \d\S* nats$"
        ):
            await vllm.check(trainer.probe())
        published = await vllm.publish(trainer.export(tmp_path, "3"), trainer.probe())
        assert published.agreement is not None
        assert published.agreement.largest <= NEAR


@pytest.mark.promise("weights:agree")
async def test_improbable_tokens_are_no_disagreement(vllm: ModelServer, tmp_path: Path) -> None:
    async with as_it_was(vllm) as folder:
        trainer = Trainer(folder)
        trainer.sharpen()
        probe = trainer.probe()
        assert min(probe.texts[0].logprobs) < -20
        published = await vllm.publish(trainer.export(tmp_path, "sharp"), probe)
        assert not published.restarted


@pytest.mark.promise("weights:whole")
async def test_an_engine_with_weights_of_another_publisher_is_paused_if_the_new_ones_disagree(
    vllm: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as folder, EngineControl(vllm.address, vllm.key) as control:
        trainer = Trainer(folder)
        trainer.step(seed=5)
        await vllm.publish(trainer.export(tmp_path / "5", "5"))
        trainer.step(seed=6)
        probe, others = trainer.probe(), Publisher(vllm.url, vllm.key)
        trainer.step(seed=7)
        weights = trainer.export(tmp_path / "7", "7")
        with pytest.raises(
            WeightsFailure,
            match=r"are not the new ones; it is paused, because it had 5 from another publisher",
        ):
            await others.publish(weights, probe)
        assert await control.is_paused()


@pytest.mark.promise("weights:whole")
async def test_a_cancelled_update_leaves_the_old_weights(vllm: ModelServer, tmp_path: Path) -> None:
    async with as_it_was(vllm) as folder, EngineControl(vllm.address, vllm.key) as control:
        old, new = Trainer(folder), Trainer(folder)
        new.step(seed=4)
        weights = new.export(tmp_path, "4")

        async def load(control: EngineControl, weights: Weights, _before: Weights | None) -> None:
            await control.reload(str(weights.folder))
            scope.cancel()
            await anyio.sleep_forever()

        with anyio.CancelScope() as scope:
            await Publisher(vllm.url, vllm.key, load=load).publish(weights)
        assert scope.cancelled_caught
        assert (await control.version(), await control.is_paused()) == ("default", False)
        assert (await vllm.check(old.probe())).largest <= NEAR


@pytest.mark.promise("weights:whole")
async def test_incomplete_or_foreign_weights_are_refused_before_any_change(
    vllm: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as folder:
        trainer = Trainer(folder)
        with pytest.raises(ConfigurationError, match=r"no config\.json with"):
            await vllm.publish(Weights(folder=tmp_path, version="5"))
        weights = trainer.export(tmp_path, "5")
        file = tmp_path / "model.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        with pytest.raises(ConfigurationError, match="it is incomplete; export the model again"):
            await vllm.publish(weights)
        file.write_bytes(b"torn")
        with pytest.raises(ConfigurationError, match="it can't be read"):
            await vllm.publish(weights)
        trainer.grow()
        with pytest.raises(ConfigurationError, match=r"the engine's is .*; publish the same model"):
            await vllm.publish(trainer.export(tmp_path, "5"))
        assert (await vllm.check(Trainer(folder).probe())).largest <= NEAR


@pytest.mark.promise("serving:restarts")
@pytest.mark.promise("weights:restarts")
async def test_a_killed_server_restarts_with_the_newest_weights_and_accepts_others(
    vllm: ModelServer, tmp_path: Path
) -> None:
    url = vllm.url
    async with as_it_was(vllm) as folder, make_model(settings_of(vllm, max_attempts=1), Accounts()) as model:
        trainer = Trainer(folder)
        trainer.step(seed=5)
        probe = trainer.probe()
        await vllm.publish(trainer.export(tmp_path / "5", "5"), probe)
        trainer.step(seed=6)
        published: list[Published] = []
        after_the_start: list[float] = []
        ended: list[ModelFailure | RunStopped] = []

        async def ask() -> None:
            text = (Message("user", (TextPart("Hello."),)),)
            try:
                await model.complete(
                    Call(role="planner", messages=text, reply=str, sampling=Sampling(max_tokens=LONG))
                )
            except (ModelFailure, RunStopped) as failure:
                ended.append(failure)

        async def load(control: EngineControl, weights: Weights, _before: Weights | None) -> None:
            if not after_the_start and vllm.starts == starts:
                os.kill(vllm.pid, signal.SIGKILL)
            else:
                assert await control.version() == "5"
                await control.resume()
                after_the_start.append((await Publisher(vllm.url, vllm.key).check(probe)).largest)
                await control.pause()
            await control.reload(str(weights.folder))

        starts = vllm.starts
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            publisher = Publisher(vllm.url, vllm.key, load=load, keeper=vllm)
            published.append(await publisher.publish(trainer.export(tmp_path / "6", "6"), trainer.probe()))
        assert published[0].agreement is not None
        assert max(published[0].agreement.largest, *after_the_start) <= NEAR
        assert (vllm.starts, vllm.url) == (starts + 1, url)
        assert len(ended) == 1


@pytest.mark.promise("weights:whole")
async def test_weights_that_lack_a_layer_are_refused_before_any_change(
    vllm: ModelServer, tmp_path: Path
) -> None:
    async with as_it_was(vllm) as folder:
        trainer = Trainer(folder)
        trainer.step(seed=5)
        weights = trainer.export(tmp_path, "5", without="model.layers.1.mlp.down_proj.weight")
        with pytest.raises(ConfigurationError, match=r"layers\.1\.mlp\.down_proj\.weight is missing; export"):
            await vllm.publish(weights)
        assert (await vllm.check(Trainer(folder).probe())).largest <= NEAR


def test_differences_before_an_update_widen_the_tolerance_of_16_bits_only() -> None:
    assert tolerance_of("float32", "bfloat16", noise=0.15).rms == pytest.approx(0.45)
    assert tolerance_of("float32", "bfloat16", noise=0.01) == TOLERANCES["bfloat16"]
    assert tolerance_of("float32", "float32", noise=0.15) == TOLERANCES["float32"]
