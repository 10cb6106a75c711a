"""A swarm whose clients, trainer and gateway are killed at any moment: nothing is lost, used twice or mixed up."""

import os
import random
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
import psutil
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import SecretStr

from agentflow.gateway import EpisodeLimits, Gateway, GatewaySettings, UpstreamSettings
from agentflow.learner._checkpoints import RolloutStore
from agentflow.testing import fake_endpoint
from agentflow.tuner._gateway_rollout import SEPARATOR
from tests.agentflow.gateway._swarm_programs import Emit, Player, Trainer, play, steps_in, train
from tests.agentflow.gateway._tuning_program import Tuner, tune

ROOT = Path(__file__).resolve().parents[3]
WORKER_TOKEN = "token-of-the-workers"
Program: TypeAlias = Player | Trainer | Tuner
Run: TypeAlias = Callable[[Program, Emit], Awaitable[bool]]
"""Runs a program; returns true if it ended by itself. An exception of `emit` kills it."""


class Killed(BaseException):
    """The program must die now."""


async def as_task(program: Program, emit: Emit) -> bool:
    """Run a program as a task: it dies at the event, and its connections break."""
    alive = True
    try:
        match program:
            case Player():
                await play(program, emit)
            case Trainer():
                await train(program, emit)
            case Tuner():
                await tune(program, emit)
    except* Killed:
        alive = False
    return alive


async def as_process(program: Program, emit: Emit) -> bool:
    """Run a program as a process: it is killed at the event, wherever it is by then."""
    given = msgspec.json.encode(program).decode()
    words = {
        Player: ["_swarm_programs", "play"],
        Trainer: ["_swarm_programs", "train"],
        Tuner: ["_tuning_program"],
    }
    module, *kind = words[type(program)]
    command = [sys.executable, "-m", f"tests.agentflow.gateway.{module}", *kind, given]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                emit((await lines.receive_until(b"\n", 1 << 20)).decode())
        except (anyio.IncompleteRead, anyio.EndOfStream):
            status = await process.wait()
            assert status == 0, f"{module} failed with status {status}"
            return True
        except Killed:
            process.kill()
            await process.wait()
            return False


class Chaos:
    """Runs a swarm, and kills its parts after a random number of events."""

    def __init__(self, gateway: Gateway, seed: int, run: Run, watch: Callable[[int], None]) -> None:
        self.chance = random.Random(seed)
        self.acked: dict[str, tuple[int, int, float]] = {}
        self.ghosts: list[str] = []
        self.kills = {"player": 0, "trainer": 0, "gateway": 0}
        self._gateway = gateway
        self._watch = watch
        self._wanted = 0
        self._reached = anyio.Event()
        self._run = run

    async def keep_player(self, number: int, kills: int) -> None:
        """Run a client until the run is over; kill it some times."""
        last = ("", "")

        def emit_to(events: float) -> Emit:
            left = [events]

            def emit(line: str) -> None:
                nonlocal last
                word, *rest = line.split()
                if word == "begun":
                    last = (rest[0], rest[1])
                elif word == "acked":
                    assert rest[0] not in self.acked
                    self.acked[rest[0]] = (int(rest[1]), int(rest[2]), float(rest[3]))
                    self._watch(len(self.acked))
                    if len(self.acked) >= self._wanted:
                        self._reached.set()
                elif word == "ghost":
                    self.ghosts.append(rest[0])
                left[0] -= 1
                if left[0] <= 0:
                    raise Killed

            return emit

        for life in range(kills + 1):
            events = self.chance.randint(2, 14) if life < kills else float("inf")
            player = Player(self._gateway.url, WORKER_TOKEN, self.chance.randrange(10**6), last)
            if await self._run(player, emit_to(events)):
                return
            self.kills["player"] += 1

    async def keep_trainer(self, trainer: Trainer | Tuner, kills: int) -> None:
        """Run the trainer to its end; kill it some times."""
        for life in range(kills + 1):
            left = [self.chance.randint(5, 25) if life < kills else float("inf")]

            def emit(line: str, left: list[float] = left) -> None:
                left[0] -= 1
                if left[0] <= 0:
                    raise Killed

            if await self._run(trainer, emit):
                return
            self.kills["trainer"] += 1

    async def kill_gateway(self, episodes: int, kills: int) -> None:
        """Kill the gateway some times, in equal parts of the run."""
        for number in range(1, kills + 1):
            self._wanted = number * episodes // (kills + 1)
            self._reached = anyio.Event()
            await self._reached.wait()
            os.kill(self._gateway.pid, signal.SIGKILL)
            self.kills["gateway"] += 1


async def check_swarm(
    folder: Path,
    run: Run,
    *,
    players: int,
    groups: int,
    size: int,
    kills: tuple[int, int, int],
    watch: Callable[[Gateway, int], None] = lambda _gateway, _acked: None,
) -> None:
    """Run a swarm under kills of its clients, gateway and trainer, and check what the trainer used."""
    async with fake_endpoint() as upstream:
        settings = GatewaySettings(
            folder=folder / "gateway",
            worker_token=SecretStr(WORKER_TOKEN),
            upstream=UpstreamSettings(base_url=upstream, model="tiny"),
            limits=EpisodeLimits(idle_seconds=1.5),
        )
        steps = folder / "steps"
        steps.mkdir()
        async with Gateway(settings) as gateway:
            chaos = Chaos(gateway, 1, run, partial(watch, gateway))
            each = [kills[0] // players + (number < kills[0] % players) for number in range(players)]
            async with anyio.create_task_group() as tasks:
                for number in range(players):
                    tasks.start_soon(chaos.keep_player, number, each[number])
                tasks.start_soon(chaos.kill_gateway, groups * size, kills[1])
                trainer = Trainer(gateway.url, gateway.token, str(steps), groups, size)
                tasks.start_soon(chaos.keep_trainer, trainer, kills[2])
    used = [episode for episodes in steps_in(steps).values() for episode in episodes]
    by_id = {episode.id: episode for episode in used}
    assert len(by_id) == len(used) == groups * size
    assert [episode.foreign for episode in used if episode.foreign] == []
    for episodes in steps_in(steps).values():
        group = episodes[0].id.partition("/")[0]
        assert [episode.id for episode in episodes] == [f"{group}/{member}" for member in range(size)]
    differ = [
        (id, acked, by_id[id])
        for id, acked in chaos.acked.items()
        if (by_id[id].attempt, by_id[id].calls, by_id[id].reward) != acked
    ]
    assert differ == []
    assert (chaos.kills["player"], chaos.kills["gateway"], chaos.kills["trainer"]) == kills


@pytest.mark.promise("gateway:swarm:kills")
async def test_no_acknowledged_episode_is_lost_used_twice_or_mixed_up(tmp_path: Path) -> None:
    with anyio.fail_after(300):
        await check_swarm(tmp_path, as_task, players=3, groups=15, size=4, kills=(6, 2, 1))


@pytest.mark.soak
@pytest.mark.promise("gateway:swarm:kills")
async def test_a_thousand_episodes_survive_a_hundred_and_twenty_five_kills(tmp_path: Path) -> None:
    await check_swarm(tmp_path, as_process, players=8, groups=250, size=4, kills=(100, 20, 5))


@pytest.mark.soak
@pytest.mark.promise("gateway:swarm:memory")
async def test_memory_is_flat_over_ten_thousand_episodes(tmp_path: Path) -> None:
    sizes: dict[int, int] = {}

    def watch(gateway: Gateway, acked: int) -> None:
        if acked % 1000 == 0:
            sizes[acked] = psutil.Process(gateway.pid).memory_info().rss >> 10

    await check_swarm(tmp_path, as_task, players=16, groups=2500, size=4, kills=(0, 0, 0), watch=watch)
    # Keys of the last 4,096 attempts are known as old ones.
    assert max(sizes[episodes] for episodes in range(6000, 10_001, 1000)) < 1.05 * sizes[5000], sizes


@pytest.mark.soak
@pytest.mark.promise("gateway:swarm:trainer")
async def test_the_real_trainer_uses_each_episode_once_however_often_it_is_killed(tmp_path: Path) -> None:
    kills = (30, 5, 5)
    async with fake_endpoint() as upstream:
        settings = GatewaySettings(
            folder=tmp_path / "gateway",
            worker_token=SecretStr(WORKER_TOKEN),
            upstream=UpstreamSettings(base_url=upstream, model="tiny"),
            limits=EpisodeLimits(idle_seconds=1.5, attempts=10),
        )
        async with Gateway(settings) as gateway:
            chaos = Chaos(gateway, 2, as_process, lambda _acked: None)
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(chaos.keep_player, number, kills[0] // 4 + (number < kills[0] % 4))
                tasks.start_soon(chaos.kill_gateway, 240, kills[1])
                tuner = Tuner(gateway.url, gateway.token, str(tmp_path), steps=15, tasks_per_step=4, size=4)
                tasks.start_soon(chaos.keep_trainer, tuner, kills[2])
    assert (chaos.kills["player"], chaos.kills["gateway"], chaos.kills["trainer"]) == kills
    store = RolloutStore(tmp_path / "rollouts")
    batches = [batch for step in range(1, 16) if (batch := store.read(step)) is not None]
    assert [batch.step for batch in batches] == list(range(1, 16))
    trained = [
        (sample.id.partition(SEPARATOR)[0], batch.step) for batch in batches for sample in batch.samples
    ]
    step_of = dict(trained)
    assert len(step_of) == len(trained)
    with closing(sqlite3.connect(tmp_path / "gateway" / "episodes.db")) as journal:
        rows = journal.execute("SELECT id, state, step, attempt FROM places").fetchall()
    known = {id: (state, step, attempt) for id, state, step, attempt in rows}
    assert {id: (state, step) for id, (state, step, _) in known.items() if state == "used"} == {
        id: ("used", step) for id, step in trained
    }
    lost = [
        (id, acked, known.get(id))
        for id, acked in chaos.acked.items()
        if known.get(id) != ("used", step_of.get(id), acked[0])
    ]
    assert lost == []
