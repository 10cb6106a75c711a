"""Runs whose model makes mistakes: with failed calls, repeated observations, wrong answers and exact tokens."""

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from agentflow.cli import main
from agentflow.learner import Batch, Group, Sample
from agentflow.learner._checkpoints import RolloutStore
from agentflow.testing import fake_endpoint
from agentflow.trace import Tokens
from tests.agentflow.exports._trees import QUESTIONS, SEEDS

TOOLS = "available_tools=[rag_search,rag_get,bash_run]"
RIGHT = [f"unknown {number}" for number in range(5)]
"""Half of the answers of the fake endpoint."""


@asynccontextmanager
async def sampling_endpoint() -> AsyncGenerator[str]:
    """Serve a model that samples: the fake endpoint, with another seed in each request for tokens."""
    seeds = count()

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        if request.path.endswith("/generate"):
            asked = msgspec.json.decode(body, type=dict[str, Any])
            asked["sampling_params"]["seed"] = next(seeds)
            body = msgspec.json.encode(asked)
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{address}{request.path}", data=body, headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    async with fake_endpoint(tool_turns=2) as url, aiohttp.ClientSession() as session:
        address = url.removesuffix("/v1")
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()


def synthesise_with_mistakes(folder: Path) -> Path:
    """Run a small synthesis; return its output directory."""
    seeds, output = folder / "seeds.jsonl", folder / "synthesis"
    _write(seeds, ({"content": seed} for seed in SEEDS))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_endpoint()) as url:
        settings = (f"base_url={url}", "model_name=fake", "control=false", "max_depth=3", TOOLS)
        assert main(["synth", f"seeds_file={seeds}", f"output_dir={output}", *settings]) == 0
    return output


def roll_out_with_mistakes(folder: Path) -> Path:
    """Run a small rollout of a single agent, whose answers are right half the time; return its output directory."""
    tasks, output = folder / "tasks.jsonl", folder / "rollout"
    _write(tasks, ({**task, "answer": RIGHT} for task in QUESTIONS))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(sampling_endpoint()) as url:
        settings = (f"base_url={url}", "model_name=fake", "agent=single", "tokens=exact", "samples=8", TOOLS)
        assert main(["rollout", "--data", str(tasks), f"output_dir={output}", *settings]) == 0
    return output


def store_training(folder: Path) -> Path:
    """Store a step of a training on trees: two right paths share a call, a third one is wrong; return its output directory."""
    shared = _tokens((1, 2), (3, 4))
    paths = {
        "a": (shared, _tokens((1, 2, 3, 4, 5), (6,))),
        "b": (shared, _tokens((1, 2, 3, 4, 7), (8, 9))),
        "c": (shared, _tokens((1, 2, 3, 4, 7), (10,))),
    }
    samples = tuple(
        Sample(task="t@0", id=f"t@0/0/node_{name}", reward=float(name != "c"), calls=calls)
        for name, calls in paths.items()
    )
    output = folder / "training"
    group = Group(number=0, name="t@0", samples=samples)
    RolloutStore(output / "rollouts").write(Batch(step=1, version=0, taken=1, groups=(group,)))
    (output / "settings.yaml").write_text("loss: {}\n", encoding="utf-8")
    return output


def _tokens(prompt: tuple[int, ...], sampled: tuple[int, ...]) -> Tokens:
    return Tokens(prompt=prompt, sampled=sampled, logprobs=(-0.5,) * len(sampled), version="0")


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
