"""Programs of a swarm, which tests kill at any moment: clients that play episodes, and a trainer that uses them.

`python -m tests.agentflow.gateway._swarm_programs play|train JSON` prints a line after each event.
"""

import json
import random
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import aiohttp
import anyio
import msgspec
from msgspec import Struct

from agentflow._private_files import replace_file
from agentflow.errors import RunStopped
from agentflow.gateway import (
    BegunEpisode,
    EndedEpisode,
    EpisodeOffer,
    EpisodeOutcome,
    EpisodeReceipt,
    EpisodeState,
    GatewayClient,
    GatewayError,
    RecordedCall,
)
from agentflow.models import TextPart
from agentflow.trace import Task

Emit: TypeAlias = Callable[[str], None]
WINDOW = 4
REWARDS = (-1.0, 0.0, 0.25, 2.5)


class Player(Struct, frozen=True):
    """A client that plays episodes until the run is over."""

    url: str
    token: str
    seed: int
    ghost: tuple[str, str] = ("", "")
    """Key and mark of the client before, which was killed: its last call arrives late."""


class Trainer(Struct, frozen=True):
    """A trainer that makes a step of each group."""

    url: str
    token: str
    folder: str
    groups: int
    size: int


class Used(Struct, frozen=True):
    """One episode of a step."""

    id: str
    attempt: int
    reward: float
    calls: int
    foreign: list[str]


class _Lost(Exception):
    """The gateway did not answer a call."""


async def chat(session: aiohttp.ClientSession, url: str, key: str, text: str) -> int:
    """Send one call; return the status."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.read()
            return answer.status
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _Lost from error


async def play(player: Player, emit: Emit) -> None:
    """Play episodes until the run is over."""
    chance = random.Random(player.seed)
    async with GatewayClient(player.url, player.token) as client, aiohttp.ClientSession() as session:
        emit("started")
        if player.ghost[0]:
            try:
                emit(f"ghost {await chat(session, player.url, player.ghost[0], f'{player.ghost[1]} late')}")
            except _Lost:
                emit("ghost lost")
        while True:
            try:
                begun = await client.begin(wait=10)
            except RunStopped:
                return
            if begun is not None:
                await _play_one(client, session, player.url, begun, chance, emit)


async def _play_one(
    client: GatewayClient,
    session: aiohttp.ClientSession,
    url: str,
    begun: BegunEpisode,
    chance: random.Random,
    emit: Emit,
) -> None:
    receipt: EpisodeReceipt | None = None
    reward = 0.0
    mark = f"{begun.episode}@{begun.attempt}@{secrets.token_hex(4)}"
    emit(f"begun {begun.keys['']} {mark}")
    try:
        for turn in range(chance.randint(1, 3)):
            statuses: list[int] = []

            async def call(number: int, turn: int = turn, statuses: list[int] = statuses) -> None:
                statuses.append(await chat(session, url, begun.keys[""], f"{mark} {turn}.{number}"))

            async with anyio.create_task_group() as tasks:
                for number in range(chance.choice((1, 1, 2))):
                    tasks.start_soon(call, number)
            emit("called")
            if set(statuses) != {200}:
                return
        reward = chance.choice(REWARDS)
        receipt = await client.end(begun, EpisodeOutcome(reward=reward))
    except* (_Lost, GatewayError):
        receipt = None
    if receipt is not None:
        emit(f"acked {begun.episode} {begun.attempt} {receipt.calls} {reward}")


def group_of(number: int, size: int) -> list[EpisodeOffer]:
    """Return the places of a group."""
    return [
        EpisodeOffer(
            id=f"{number}/{member}",
            group=str(number),
            task=Task(index=number, id=str(number), question="?"),
            seed=f"{number}/{member}",
        )
        for member in range(size)
    ]


def steps_in(folder: Path) -> dict[int, list[Used]]:
    """Return the steps on disk."""
    return {
        int(path.stem): msgspec.json.decode(path.read_bytes(), type=list[Used])
        for path in sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    }


async def train(trainer: Trainer, emit: Emit) -> None:
    """Make a step of each group: first on disk, then marked as used. A killed trainer continues there."""
    folder = Path(trainer.folder)
    done = steps_in(folder)
    async with GatewayClient(trainer.url, trainer.token) as client:
        emit("started")
        for step, episodes in done.items():
            await client.use([episode.id for episode in episodes], step)
        made = {episodes[0].id.partition("/")[0] for episodes in done.values()}
        waiting = [number for number in range(trainer.groups) if str(number) not in made]
        step, after, found = len(done), 0, dict[str, EndedEpisode]()
        await client.offer([offer for number in waiting[:WINDOW] for offer in group_of(number, trainer.size)])
        while waiting:
            for ended in await client.ended(after, wait=10):
                after = ended.number
                emit("collected")
                if ended.state is EpisodeState.SCORED:
                    found[ended.offer.id] = ended
                else:
                    await client.offer([ended.offer])
            for number in waiting[:WINDOW]:
                members = [offer.id for offer in group_of(number, trainer.size)]
                if any(id not in found for id in members):
                    continue
                episodes = [
                    _used(found.pop(id), await client.calls(id, found_attempt))
                    for id in members
                    if (found_attempt := found[id].attempt)
                ]
                replace_file(folder / f"{step}.json", msgspec.json.encode(episodes))
                emit("written")
                await client.use(members, step)
                emit("used")
                waiting.remove(number)
                step += 1
                if len(waiting) >= WINDOW:
                    await client.offer(group_of(waiting[WINDOW - 1], trainer.size))
        await client.finish()


def _used(ended: EndedEpisode, calls: list[RecordedCall]) -> Used:
    texts = [
        part.text
        for call in calls
        for message in call.messages
        for part in message.parts
        if isinstance(part, TextPart)
    ]
    marks = {text.partition(" ")[0] for text in texts}
    own = f"{ended.offer.id}@{ended.attempt}@"
    # All calls of an attempt come from the one client that began it.
    foreign = [text for text in texts if not text.startswith(own)] if len(marks) <= 1 else sorted(marks)
    assert isinstance(ended.outcome.reward, float)
    return Used(ended.offer.id, ended.attempt, ended.outcome.reward, len(calls), foreign)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the program that the arguments name."""
    kind, given = sys.argv[1:]
    if kind == "play":
        anyio.run(play, msgspec.convert(json.loads(given), Player), _print)
    else:
        anyio.run(train, msgspec.convert(json.loads(given), Trainer), _print)


if __name__ == "__main__":
    main()
