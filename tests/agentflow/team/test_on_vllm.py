"""The team on a real vLLM: a model that knows nothing, and structured answers all the same."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise, takewhile

import aiohttp
import anyio
import pytest

from agentflow.actors import Supervisor
from agentflow.engine import EpisodeEngine, EpisodeSettings
from agentflow.models import Accounts, Model, TokenMode, make_model
from agentflow.serving import ModelServer
from agentflow.team import Team, TeamAgent
from agentflow.trace import Episode, MemoryBlobStore, Task, Tokens, TokenTree, calls_of
from tests._vllm import settings_of
from tests.agentflow.team._model import FunctionModel
from tests.agentflow.team._solving import GO_ON, Book, diary_sandbox

pytestmark = pytest.mark.timeout(900)

TURNS = 3
BLOCK = 32
"""Tokens that the engine keeps together."""
LONG = "Which year is carved over the door of the house by the harbour? " + " ".join(
    f"Room {number} of the house has {number * 7 % 12} windows towards the sea." for number in range(200)
)


@asynccontextmanager
async def team_on(
    server: ModelServer, verifier: Model | None = None, *, tokens: TokenMode = True
) -> AsyncGenerator[Team]:
    """All roles on that model, or all but the verifier; it is asked for its exact tokens."""
    settings = settings_of(
        server,
        max_text_chars=24,
        max_tokens=600,
        tokens=tokens,
        temperature=1.0,
        call_seconds=600,
    )
    async with make_model(settings, Accounts()) as model:
        blobs = MemoryBlobStore()
        members = _team(model, verifier or model, blobs)
        async with Supervisor(members.specs(), name="team"):
            yield members


def _team(model: Model, verifier: Model, blobs: MemoryBlobStore) -> Team:
    models = {"planner": model, "executor": model, "verifier": verifier, "generator": model}
    return Team(models, blobs=blobs)


async def worked_on(members: Team, index: int, question: str) -> Episode:
    async with diary_sandbox() as sandbox:
        tools = await sandbox.tools(["diary_write", "diary_look"])
        settings = EpisodeSettings(max_turns=TURNS, max_seconds=800)
        engine = EpisodeEngine(agent=TeamAgent(members), tools=tools, settings=settings)
        task = Task(index=index, id=f"task_{index}", question=question)
        return await engine.solve(task, sandbox, Book().open())


async def check_episodes(vllm: ModelServer, count: int) -> None:
    """Many at the same time: every answer of every role keeps to its schema."""
    episodes: list[Episode] = []
    async with team_on(vllm) as members:

        async def one(index: int) -> None:
            episodes.append(await worked_on(members, index, f"What is carved over door {index}?"))

        async with anyio.create_task_group() as tasks:
            for index in range(count):
                tasks.start_soon(one, index)
    assert len(episodes) == count
    exchanges = [exchange for episode in episodes for exchange in episode.exchanges]
    assert [exchange.failure for exchange in exchanges if exchange.failure is not None] == []
    # A connection that was closed may be tried again; an answer that is none would count as one more.
    assert {exchange.usage.calls for exchange in exchanges} == {1}
    assert {exchange.role for exchange in exchanges} == {
        "analyst",
        "planner",
        "executor",
        "verifier",
        "generator",
    }
    assert all(episode.solution is not None for episode in episodes)


@pytest.mark.promise("team:vllm")
async def test_answers_of_all_roles_match_their_schemas_in_six_episodes(vllm: ModelServer) -> None:
    await check_episodes(vllm, 6)


@pytest.mark.soak
@pytest.mark.promise("team:vllm")
async def test_answers_of_all_roles_match_their_schemas_in_a_hundred_episodes(vllm: ModelServer) -> None:
    await check_episodes(vllm, 100)


@pytest.mark.promise("team:vllm")
async def test_each_prompt_of_the_planner_extends_the_previous_one_token_by_token(vllm: ModelServer) -> None:
    async with team_on(vllm, FunctionModel(lambda _: GO_ON)) as members:
        episode = await worked_on(members, 0, LONG)
    asked = [told for each in episode.exchanges if each.role == "planner" and (told := each.tokens)]
    assert len(asked) == TURNS
    assert len(asked[0].prompt) >= 1_300
    for before, after in pairwise(asked):
        shared = shared_by(before.prompt, after.prompt)
        assert shared == len(before.prompt)
        assert shared >= 0.9 * len(after.prompt)
    await check_cache(vllm, asked)


@pytest.mark.promise("team:vllm", "team:solve:words")
async def test_each_prompt_of_the_planner_extends_the_tokens_sampled_before(vllm: ModelServer) -> None:
    async with team_on(vllm, FunctionModel(lambda _: GO_ON), tokens="exact") as members:
        episode = await worked_on(members, 0, "What is carved over the door?")
    calls = calls_of(episode)
    assert len(calls) == TURNS
    tree = TokenTree(calls)
    assert [fork.reason for fork in tree.forks()] == ["opening", *["append"] * (TURNS - 1)]
    [row] = tree.rows().values()
    assert [piece.call for piece in row if piece.call] == [call.id for call in calls]
    assert sum((piece.ids for piece in row), ()) == calls[-1].tokens.prompt + calls[-1].tokens.sampled


def shared_by(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the common prefix."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


async def check_cache(server: ModelServer, asked: list[Tokens]) -> None:
    """The engine's own counter of what it had read before says the same, to its block."""
    headers = {"Authorization": f"Bearer {server.key}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def hits() -> int:
            async with session.get(f"{server.address}/metrics") as answer:
                text = await answer.text()
            found = re.findall(r"^vllm:prefix_cache_hits_total\{.*\} ([\d.e+]+)$", text, re.MULTILINE)
            return int(float(found[0]))

        async with session.post(f"{server.address}/reset_prefix_cache") as answer:
            assert answer.status == 200
        before: tuple[int, ...] = ()
        for tokens in asked:
            counted = await hits()
            body = {"model": server.model, "prompt": list(tokens.prompt), "max_tokens": 1}
            async with session.post(f"{server.url}/completions", json=body) as answer:
                assert answer.status == 200
            shared = shared_by(before, tokens.prompt)
            assert await hits() - counted == shared // BLOCK * BLOCK
            before = tokens.prompt
