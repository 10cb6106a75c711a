"""One GPU: trees on FlexAttention, a training step, and an engine that takes new weights.

`python benchmarks/gpu.py [--jobs trees,head,step,engine] [--small] [--check]` prints a table with a baseline for each figure, measured
in the same run, and as the last line one JSON object. With `--check` it exits with 1 if a limit is missed.

- `trees`: the error of log-probabilities and gradients of packed rows, as a multiple of the error of the same rows computed one by one;
  the reference has 64 bits.
- `head`: the last layer of a model of 16 bits, forward and backward, on tensor cores, beside the same layer in 32 bits.
- `step`: a complete step of the local backbone on packed rows, beside the same rows each alone.
- `engine`: an update of a running vLLM beside its restart with the same weights, and sleep with wake-up. `--python` names the
  Python of an environment with vLLM for GPUs.

`--small` runs a tiny model on any device, to try the script itself.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch and transformers are typed in part.

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio
import numpy as np
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentflow.learner.compute import log_probs, log_probs_by_row, prepare
from agentflow.learner.compute._attention import linear_of_16_bits
from agentflow.learner.local import LocalBackbone, OptimizerSettings, PolicySettings
from agentflow.learner.losses import LossSettings
from agentflow.learner.packing import Row, pack
from agentflow.serving import EngineControl, ModelServer, Probe, ProbeText, ServingSettings, Weights
from agentflow.testing import tiny_tokenizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JOBS = ("trees", "head", "step", "engine")
NOISE = 1.5
"""The largest error of packed rows, as a multiple of that of the same rows one by one."""
GIB = 2**30
SAMPLED = 128
"""Tokens that a request samples."""


class Workload(NamedTuple):
    """A model, and the tree that it computes."""

    hidden: int
    layers: int
    heads: int
    words: int
    question: int
    """Tokens of the question that all calls share."""
    branches: tuple[int, ...]
    """Children of every call, turn by turn."""
    answer: int
    """Tokens that a call samples."""
    requests: int
    """Requests of the engine at once."""


EXACT = Workload(512, 4, 8, 4096, 256, (2, 3), 64, 0)
"""For the errors: 64 bits are slow."""
LARGE = Workload(2048, 24, 16, 32768, 1024, (2, 2, 2), 256, 256)
"""1.3 billion weights."""
SMALL = Workload(128, 2, 2, 1024, 32, (2, 2), 8, 4)


def model_of(size: Workload, dtype: torch.dtype, seed: int = 0) -> Any:  # noqa: ANN401 - transformers' models have no common type
    """A model with random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=size.words,
        hidden_size=size.hidden,
        intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=max(1, size.heads // 2),
        head_dim=size.hidden // size.heads,
        max_position_embeddings=2**15,
        tie_word_embeddings=False,
    )
    with torch.device(DEVICE):
        model: Any = Qwen3ForCausalLM(config)
    return model.to(dtype)


def folder_of(size: Workload, folder: Path, seed: int = 0) -> Path:
    """The same on disk, with a tokenizer of bytes."""
    model_of(size, torch.bfloat16, seed).save_pretrained(folder)
    tiny_tokenizer(size.words, texts=["a lighthouse on an island, and its keeper"] * 8).save_pretrained(
        folder
    )
    return folder


def grow(size: Workload) -> list[Row]:
    """One row for each call of a tree."""
    chance = np.random.default_rng(0)
    rows: list[Row] = []
    contexts = [chance.integers(0, size.words, size.question)]
    for count in size.branches:
        contexts = [
            np.concatenate((context, chance.integers(0, size.words, size.answer)))
            for context in contexts
            for _ in range(count)
        ]
        rows += [row(ids, size.answer, chance) for ids in contexts]
    return rows


def row(ids: np.ndarray[Any, Any], sampled: int, chance: np.random.Generator) -> Row:
    """A row whose last tokens were sampled."""
    return Row(
        ids=ids.astype(np.int32),
        trained=np.arange(len(ids)) >= len(ids) - sampled,
        behaviour=np.full(sampled, -10.0, np.float32),
        advantages=chance.normal(size=sampled).astype(np.float32),
        weights=np.full(sampled, 1 / 64),
        units=np.zeros(sampled, np.int32),
    )


Compute = Callable[[nn.Module, Sequence[Row]], torch.Tensor]


def packed(model: nn.Module, rows: Sequence[Row]) -> torch.Tensor:
    """Log-probabilities of a tree, in the order of its rows."""
    [tree] = pack(rows)
    return log_probs(model, tree)[torch.from_numpy(tree.rows).argsort()]


def one_by_one(model: nn.Module, rows: Sequence[Row]) -> torch.Tensor:
    """Those of each row alone."""
    return torch.cat([log_probs_by_row(model, [each]) for each in rows])


def gradients(model: nn.Module, compute: Compute, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities, and the gradient of all weights, in 64 bits."""
    model.zero_grad()
    found = compute(model, rows)
    signs = torch.ones_like(found)
    signs[::2] = -1
    (found * signs).sum().backward()
    parts = [weight.grad.flatten().double() for weight in model.parameters() if weight.grad is not None]
    return found.detach().double(), torch.cat(parts)


def trees_job(size: Workload, _: argparse.Namespace) -> dict[str, float]:
    """Errors of packed rows and of rows one by one, against 64 bits."""
    figures: dict[str, float] = {}
    rows = grow(size)
    base = model_of(size, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        model = base.to(dtype)
        exact = model_of(size, torch.float64)
        exact.load_state_dict(model.state_dict())
        for each in (model, exact):
            prepare(each)
        values, slopes = gradients(exact, one_by_one, rows)
        errors: dict[Compute, tuple[float, float]] = {}
        for compute in (packed, one_by_one):
            some, others = gradients(model, compute, rows)
            errors[compute] = (
                float((some - values).square().mean().sqrt()),
                float((others - slopes).norm() / slopes.norm()),
            )
        for place, what in enumerate(("values", "gradient")):
            ours, theirs = errors[packed][place], errors[one_by_one][place]
            figures |= {f"{name}_{what}_error": ours, f"{name}_{what}_noise": ours / theirs}
            print(
                f"{name} {what}: error {ours:.2e} packed, {theirs:.2e} one by one: {ours / theirs:.2f} x (limit {NOISE})"
            )
    return figures


def step_job(size: Workload, _: argparse.Namespace) -> dict[str, float]:
    """Seconds of a complete step, packed and one by one."""
    rows = grow(size)
    loss = LossSettings(kl_coef=0.0)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        policy = PolicySettings(model=str(folder_of(size, Path(folder))), token_budget=1)
        backbone = LocalBackbone(policy, OptimizerSettings())
        weights = sum(weight.numel() for weight in backbone.model.parameters())
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for name, budget in (("packed", 2**16), ("alone", 1)):
            backbone.settings = policy.model_copy(update={"token_budget": budget})
            found: list[float] = []
            # The first step is for compilers and caches.
            for _again in range(4):
                synchronize()
                begun = time.perf_counter()
                backbone.step(rows, loss)
                synchronize()
                found.append(time.perf_counter() - begun)
            figures[f"step_{name}_seconds"] = min(found[1:])
            if DEVICE == "cuda":
                figures[f"step_{name}_gib"] = torch.cuda.max_memory_allocated() / GIB
                torch.cuda.reset_peak_memory_stats()
        backbone.close()
    tokens, unique = sum(len(one.ids) for one in rows), sum(len(one) for one in pack(rows))
    ours, theirs = figures["step_packed_seconds"], figures["step_alone_seconds"]
    figures |= {
        "step_speedup": theirs / ours,
        "step_tokens_per_second": tokens / ours,
        "step_billions": weights / 1e9,
    }
    print(
        f"step of {weights / 1e9:.2f} billion weights on {len(rows)} rows, {tokens} tokens of which {unique} differ: "
        f"{ours:.3f} s packed, {theirs:.3f} s one by one: {theirs / ours:.2f} x; {tokens / ours:,.0f} tokens of rows/s"
    )
    return figures


def head_job(size: Workload, _: argparse.Namespace) -> dict[str, float]:
    """Seconds of a head whose inputs have 16 bits and whose results have 32, with and without tensor cores."""
    torch.manual_seed(0)
    shapes = ((16 * size.question, size.hidden), (size.words, size.hidden))
    inputs, weight = (
        torch.randn(shape, device=DEVICE).bfloat16().float().requires_grad_() for shape in shapes
    )
    seconds: dict[str, float] = {}
    results: dict[str, torch.Tensor] = {}
    layers: dict[str, Callable[..., torch.Tensor]] = {
        "plain": nn.functional.linear,
        "tensor_cores": linear_of_16_bits,
    }
    for name, linear in layers.items():
        found: list[float] = []
        for _again in range(6):
            synchronize()
            begun = time.perf_counter()
            results[name] = linear(inputs, weight, None)
            results[name].sum().backward()
            synchronize()
            found.append(time.perf_counter() - begun)
        seconds[name] = min(found[1:])
    error = float((results["tensor_cores"] - results["plain"]).abs().max() / results["plain"].abs().max())
    ratio = seconds["plain"] / seconds["tensor_cores"]
    print(
        f"head of {size.words} words on {len(inputs)} tokens: {seconds['tensor_cores'] * 1e3:.1f} ms on tensor cores, "
        f"{seconds['plain'] * 1e3:.1f} ms in 32 bits: {ratio:.2f} x; results differ by {error:.1e} of the largest"
    )
    return {"head_seconds": seconds["tensor_cores"], "head_speedup": ratio, "head_error": error}


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def used_gib() -> float:
    """Memory of the device in use by all processes."""
    if DEVICE == "cpu":
        return 0.0
    free, whole = torch.cuda.mem_get_info()
    return (whole - free) / GIB


def engine_job(size: Workload, given: argparse.Namespace) -> dict[str, float]:
    """Updates of a running engine, its sleep, and its restart."""
    return anyio.run(partial(engine, size, given))


async def engine(size: Workload, given: argparse.Namespace) -> dict[str, float]:
    """The same."""
    figures: dict[str, float] = {}
    memory = Path("/dev/shm") if DEVICE == "cuda" else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        folders = [folder_of(size, Path(scratch, str(seed)), seed) for seed in range(2)]
        probes = [probe_of(folder) for folder in folders]
        gib = sum(file.stat().st_size for file in folders[0].glob("*.safetensors")) / GIB
        sleeps = {"enable-sleep-mode": True} if DEVICE == "cuda" else {}
        settings = ServingSettings(
            model=str(folders[0]),
            name="policy",
            python=given.python,
            max_model_len=2048,
            gpu_memory_utilization=0.5,
            trains=True,
            log=given.log,
            options={"enforce-eager": True, "generation-config": "vllm", **sleeps},
        )
        begun = time.perf_counter()
        async with ModelServer(settings) as server:
            figures["engine_start_seconds"] = time.perf_counter() - begun
            print(f"engine: {gib:.2f} GiB of weights, started in {figures['engine_start_seconds']:.1f} s")
            figures["engine_difference"] = (await server.check(probes[0])).largest
            await requests(server, size.requests)
            begun = time.perf_counter()
            tokens = await requests(server, size.requests)
            figures["engine_tokens_per_second"] = tokens / (time.perf_counter() - begun)
            print(
                f"engine: {figures['engine_tokens_per_second']:,.0f} tokens/s of {size.requests} requests at once"
            )
            for number in (1, 0, 1):
                begun = time.perf_counter()
                published = await server.publish(
                    Weights(folder=folders[number], version=str(number)), probes[number]
                )
                figures["update_seconds"] = time.perf_counter() - begun
                figures["update_difference"] = published.agreement.largest if published.agreement else 0.0
                assert not published.restarted
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(requests, server, size.requests)
                begun = time.perf_counter()
                await server.publish(Weights(folder=folders[0], version="busy"), probes[0])
                figures["update_busy_seconds"] = time.perf_counter() - begun
            if sleeps:
                figures |= await sleep(server, probes[0])
            begun = time.perf_counter()
            await server.restart()
            figures["restart_seconds"] = time.perf_counter() - begun
            await server.check(probes[0])
    ratio = figures["restart_seconds"] / figures["update_seconds"]
    figures["update_speedup"] = ratio
    print(
        f"update: {figures['update_seconds']:.2f} s ({gib / figures['update_seconds']:.1f} GiB/s, difference "
        f"{figures['update_difference']:.1e} nats), {figures['update_busy_seconds']:.2f} s under load, "
        f"a restart {figures['restart_seconds']:.1f} s: {ratio:.0f} x"
    )
    return figures


async def sleep(server: ModelServer, probe: Probe) -> dict[str, float]:
    """Seconds and memory of sleep and wake-up; the same weights answer afterwards."""
    figures: dict[str, float] = {}
    async with EngineControl(server.address, server.key) as control:
        before = used_gib()
        begun = time.perf_counter()
        await control.post("/sleep?level=1")
        figures["sleep_seconds"] = time.perf_counter() - begun
        asleep = used_gib()
        begun = time.perf_counter()
        await control.post("/wake_up")
        figures["wake_seconds"] = time.perf_counter() - begun
    figures["sleep_freed_gib"], figures["sleep_kept_gib"] = before - asleep, asleep
    await server.check(probe)
    print(
        f"sleep: {figures['sleep_seconds']:.2f} s, frees {before - asleep:.1f} of {before:.1f} GiB; "
        f"wake-up {figures['wake_seconds']:.2f} s"
    )
    return figures


def probe_of(folder: Path) -> Probe:
    """The trainer's log-probabilities of a short text."""
    backbone = LocalBackbone(PolicySettings(model=str(folder)))
    vocabulary = int(json.loads((folder / "config.json").read_text())["vocab_size"])
    tokens = tuple(index * 7919 % vocabulary for index in range(1, 161))
    ids = np.array(tokens, np.int32)
    [found] = backbone.log_probs([row(ids, len(ids) - 1, np.random.default_rng(0))])
    backbone.close()
    del backbone
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    text = ProbeText(tokens=tokens, begin=1, logprobs=tuple(map(float, found)))
    return Probe(texts=(text,), dtype="bfloat16")


async def requests(server: ModelServer, count: int) -> int:
    """Many requests at once; the number of tokens that they sample."""
    headers = {"Authorization": f"Bearer {server.key}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(headers=headers, connector=connector) as session,
        anyio.create_task_group() as tasks,
    ):

        async def one(number: int) -> None:
            body = {
                "model": server.model,
                "prompt": [number % 300 + place for place in range(64)],
                "max_tokens": SAMPLED,
                "ignore_eos": True,
                "seed": number,
            }
            async with session.post(f"{server.url}/completions", json=body) as answer:
                answer.raise_for_status()
                await answer.read()

        for number in range(count):
            tasks.start_soon(one, number)
    return count * SAMPLED


def main() -> int:
    """Run the jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default=",".join(JOBS), help="which, separated by commas")
    parser.add_argument("--small", action="store_true", help="a tiny model, on any device")
    parser.add_argument("--python", type=Path, help="Python of an environment with vLLM")
    parser.add_argument("--log", type=Path, help="log file of the engine")
    parser.add_argument("--check", action="store_true", help="exit 1 if a limit is missed")
    given = parser.parse_args()
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "a CPU"
    print(f"on {where}, torch {torch.__version__}")
    figures: dict[str, float] = {}
    for job, run, size in (
        ("trees", trees_job, EXACT),
        ("head", head_job, LARGE),
        ("step", step_job, LARGE),
        ("engine", engine_job, LARGE),
    ):
        if job in given.jobs.split(","):
            figures |= run(SMALL if given.small else size, given)
            gc.collect()
    print(json.dumps({name: round(figure, 6) for name, figure in figures.items()}))
    missed = any(figure > NOISE for name, figure in figures.items() if name.endswith("_noise"))
    return 1 if missed and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
