"""Clients in other processes and threads play the episodes of a training."""

import subprocess
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, Lock

import anyio
import anyio.to_thread
import pytest
from openai import OpenAI

from agentflow.errors import ConfigurationError, RunStopped
from agentflow.gateway import EpisodeOutcome, GatewayError, GatewaySettings
from agentflow.learner import Group
from agentflow.learner._checkpoints import RolloutStore
from agentflow.trace import Task
from agentflow.tuner import TOKEN_VARIABLE, Swarm, SwarmEpisode
from tests._core import core_environment, core_python
from tests.agentflow.tuner._tuning import Address, gateway_at, some_tasks, tuned


def asks(episode: SwarmEpisode, text: str = "") -> str:
    """Ask the policy with the blocking client of OpenAI."""
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
        messages = [{"role": "user", "content": text or episode.task.question}]
        said = client.chat.completions.create(model=episode.model, messages=messages)  # pyright: ignore[reportArgumentType]
    return said.choices[0].message.content or ""


@pytest.mark.promise("tuner:swarm")
async def test_clients_play_until_the_run_is_over_and_each_episode_is_trained_once(tmp_path: Path) -> None:
    played: Counter[str] = Counter()
    lock = Lock()
    together = Barrier(2)

    def work(episode: SwarmEpisode) -> float:
        with suppress(BrokenBarrierError):
            together.wait(timeout=5)
        asks(episode)
        with lock:
            played[episode.id] += 1
            if played.total() == 1:
                raise ConnectionError("for a moment")
        return float(episode.id[-1])

    counts: list[int] = []

    async def client(address: Address) -> None:
        def run() -> None:
            with Swarm(*address) as swarm:
                counts.append(swarm.work(work, at_once=2))

        await anyio.to_thread.run_sync(run)

    done = await tuned(tmp_path, None, some_tasks(3), steps=2, clients=client)
    assert done.backbone.version == 2
    assert counts == [8]
    assert sorted(played.values()) == [1] * 7 + [2], "the one that crashed was played again"
    assert [figures["calls/count"] for figures in done.figures] == [4, 4]


@pytest.mark.promise("tuner:swarm")
async def test_an_episode_ends_once_and_its_client_learns_what_was_recorded(tmp_path: Path) -> None:
    mine = Task(index=0, id="mine", question="Mine?")

    def play(address: Address) -> None:
        with Swarm(*address, patience=1.0) as swarm:
            assert swarm.begin_episode() is None
            episode = swarm.begin_episode(mine)
            assert episode is not None
            assert (episode.task.question, episode.mode) == ("Mine?", "train")
            assert asks(episode) == "to Mine?"
            assert [call.id for call in episode.calls()] == ["c1"]
            assert episode.agent("").api_key == episode.api_key
            with pytest.raises(ConfigurationError, match="agent wolf: it is not in this run"):
                episode.agent("wolf")
            with pytest.raises(GatewayError, match="no call"):
                episode.end(reward=1.0, turn_rewards={"c7": 1.0})
            receipt = episode.end(reward=-1.0, turn_rewards={"c1": 0.5}, success=False, metrics={"moves": 3})
            assert (receipt.calls, receipt.tokens, receipt.group) == (1, 2, "own/mine")
            episode.abort("too late")
            second = swarm.begin_episode(mine)
            assert second is not None
            with pytest.raises(ZeroDivisionError), second:
                raise ZeroDivisionError("a bug")
            third = swarm.begin_episode(mine)
            assert third is not None
            with pytest.raises(GatewayError, match="not a finite number"):
                third.end(reward=float("nan"))
            assert swarm.end_episode(third, EpisodeOutcome(answer="x")).calls == 0

    async with gateway_at(tmp_path) as gateway:
        await anyio.to_thread.run_sync(play, gateway)


@pytest.mark.promise("tuner:swarm")
async def test_leaving_gives_open_episodes_back_at_once(tmp_path: Path) -> None:
    mine = Task(index=0, id="mine", question="Mine?")

    def play(address: Address) -> tuple[str, str]:
        with Swarm(*address) as swarm:
            first = swarm.begin_episode(mine)
        with Swarm(*address) as other:
            second = other.begin_episode(mine)
        assert first is not None
        assert second is not None
        assert first.api_key != second.api_key
        return first.id, second.id

    async with gateway_at(tmp_path) as gateway:
        first, second = await anyio.to_thread.run_sync(play, gateway)
    assert first == second


@pytest.mark.promise("tuner:swarm")
async def test_an_error_of_the_settings_ends_all_threads_of_a_client(tmp_path: Path) -> None:
    begun = Event()

    def work(episode: SwarmEpisode) -> None:
        begun.set()
        episode.agent("wolf")

    def play(address: Address) -> None:
        with Swarm(*address) as swarm:
            swarm.begin_episode(Task(index=0, id="mine", question="Mine?"))
            swarm.work(work, at_once=4)

    async with gateway_at(tmp_path) as gateway:
        from agentflow.gateway import EpisodeOffer, GatewayClient

        async with GatewayClient(*gateway) as owner:
            await owner.offer([EpisodeOffer(id="0/0", group="g", task=some_tasks(1)[0])])
            with pytest.raises(ConfigurationError, match="agent wolf"):
                await anyio.to_thread.run_sync(play, gateway)
    assert begun.is_set()


@pytest.mark.promise("tuner:swarm")
def test_a_client_without_token_address_or_gateway_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=f"token: it is missing; pass it, or set {TOKEN_VARIABLE}"):
        Swarm("http://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="write http://HOST:PORT"):
        Swarm("gpu-box:18900", "token")
    monkeypatch.setenv(TOKEN_VARIABLE, "from-the-environment")
    with (
        Swarm("http://127.0.0.1:1", patience=0.0) as swarm,
        pytest.raises(RunStopped, match="gives no answer"),
    ):
        swarm.work(partial(print), at_once=2)
    with pytest.raises(ConfigurationError, match="at_once: 0"):
        swarm.work(print, at_once=0)


@pytest.mark.promise("tuner:swarm")
def test_a_client_runs_in_an_installation_without_extras() -> None:
    program = "from agentflow.tuner import Swarm; Swarm('http://127.0.0.1:1', 'token')"
    run = subprocess.run(
        [core_python(), "-c", program], env=core_environment(), capture_output=True, check=False
    )
    assert (run.returncode, run.stderr.decode()) == (0, "")


@pytest.mark.promise("tuner:own-tasks")
async def test_clients_train_on_tasks_of_their_own_in_whole_groups(tmp_path: Path) -> None:
    def play(address: Address) -> None:
        with Swarm(*address) as swarm:
            for number in range(4):
                mine = Task(index=0, id=f"mine {number}", question=f"What is {number}?")
                for reward in (1.0, -1.0):
                    with swarm.begin_episode(mine) or pytest.fail("no place") as episode:
                        asks(episode)
                        episode.end(reward=reward)
                if not number:
                    with pytest.raises(GatewayError, match="mine 0"):
                        swarm.begin_episode(mine)

    async def client(address: Address) -> None:
        await anyio.to_thread.run_sync(play, address)

    settings = GatewaySettings(group_size=2)
    done = await tuned(
        tmp_path, None, some_tasks(1), own_tasks=True, settings=settings, clients=client, steps=2
    )
    assert [figures["episodes/count"] for figures in done.figures] == [4, 4]
    groups = [group.samples[0].task for step in (1, 2) for group in _stored(tmp_path, step)]
    assert sorted(groups) == [f"own/mine {number}" for number in range(4)]


def _stored(folder: Path, step: int) -> tuple[Group, ...]:
    batch = RolloutStore(folder / "rollouts").read(step)
    assert batch is not None
    return batch.groups
