"""Household: its tasks are solvable, and a seed is always the same."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_servers.world.household import STEPS, TASKS, Game, begin, register
from tests.mcp_servers.world._planner import Planner

ROOT = Path(__file__).parents[3]
SEEDS = range(240)
SCRIPT = """
import json
from mcp_servers.world.household import begin
print(json.dumps([begin(seed).digest() for seed in range(30)]))
"""


def played(seed: int, choices: list[int], task: str | None = None) -> Game:
    """Return a game after some of the offered actions."""
    game = begin(seed, task)
    for choice in choices:
        if actions := game.actions():
            game.act(actions[choice % len(actions)])
    return game


@pytest.mark.promise("world:household:solvable")
def test_every_task_of_more_than_two_hundred_is_solved() -> None:
    solved: Counter[str] = Counter()
    for seed in SEEDS:
        game = begin(seed)
        assert not game.success
        Planner(game).solve()
        assert game.success, (seed, game.goal.text)
        assert game.steps < STEPS / 2
        solved[game.goal.task] += 1
    assert solved.keys() == TASKS.keys()
    assert len(TASKS) >= 6
    assert min(solved.values()) >= 10


@pytest.mark.promise("world:household:tasks")
@pytest.mark.parametrize("task", TASKS)
def test_a_kind_of_task_can_be_selected(task: str) -> None:
    for seed in range(10):
        game = begin(seed, task)
        assert game.goal.task == task
        Planner(game).solve()
        assert game.success


@pytest.mark.promise("world:household:tasks")
def test_the_tasks_of_seeds_differ() -> None:
    assert len({begin(seed).digest() for seed in SEEDS}) == len(SEEDS)
    assert len({begin(seed).goal.text for seed in SEEDS}) > 150


def test_an_unknown_kind_of_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no task 'cook'; there are find, place, clean"):
        begin(0, "cook")


@pytest.mark.promise("world:seed")
def test_a_seed_is_the_same_in_any_process() -> None:
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, cwd=ROOT, capture_output=True, check=True
        )
        assert json.loads(ran.stdout) == [begin(seed).digest() for seed in range(30)]


@pytest.mark.promise("world:fork")
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    before=st.lists(st.integers(0, 50), max_size=25),
    mine=st.lists(st.integers(0, 50), max_size=10),
    others=st.lists(st.integers(0, 50), max_size=10),
)
def test_parent_fork_and_replay_agree_and_siblings_are_isolated(
    seed: int, before: list[int], mine: list[int], others: list[int]
) -> None:
    parent = played(seed, before)
    first, second = parent.copy(), parent.copy()
    assert first.digest() == second.digest() == parent.digest() == played(seed, before).digest()
    for game, choices in ((first, mine), (second, others)):
        for choice in choices:
            if actions := game.actions():
                game.act(actions[choice % len(actions)])
    assert parent.digest() == played(seed, before).digest()
    assert first.digest() == played(seed, [*before, *mine]).digest()
    assert second.digest() == played(seed, [*before, *others]).digest()
    assert (first.tell(), first.actions()) == (
        played(seed, [*before, *mine]).tell(),
        played(seed, [*before, *mine]).actions(),
    )


@pytest.mark.promise("world:household:partial")
def test_the_content_of_closed_or_distant_furniture_is_hidden() -> None:
    for seed in range(30):
        game = begin(seed)
        front = game.house.front()
        assert front is None
        assert not any(name in game.tell() for name in game.house.things)
        closed = [piece for piece in game.house.here() if not piece.shows and game.house.lying(piece.name)]
        for piece in closed[:1]:
            game.act(f"go to {piece.name}")
            hidden = game.house.lying(piece.name)
            if piece.able.opens:
                assert "It is closed" in game.tell()
                game.act(f"open {piece.name}")
                assert all(thing.name in game.tell() for thing in hidden)


@pytest.mark.promise("world:household:limit")
def test_an_episode_without_success_ends_at_its_step_limit() -> None:
    game = begin(3, limit=5)
    while not game.over:
        game.act("look")
    assert (game.steps, game.success, game.actions()) == (5, False, [])


@pytest.mark.promise("world:household:gymnasium")
def test_it_is_a_gymnasium_environment_too() -> None:
    register()
    register()
    env = gymnasium.make("agentflow/household-v0", disable_env_checker=True)
    seen, info = env.reset(seed=7, options={"task": "find"})
    game = begin(7, "find")
    assert seen == game.tell()
    assert env.observation_space.contains(seen)
    assert info["actions"] == game.actions()
    Planner(game).solve()
    replayed = begin(7, "find")
    reward, terminated, truncated, steps = 0.0, False, False, 0
    while not replayed.success:
        # The same planner on another game, one action at a time.
        action = _next_action(replayed)
        replayed.act(action)
        seen, won, terminated, truncated, info = env.step(action)
        reward = float(won)
        steps += 1
    assert (reward, terminated, truncated, info["success"], steps) == (1.0, True, False, True, game.steps)
    env.close()


def _next_action(game: Game) -> str:
    """Return the planner's next action."""
    ahead = game.copy()
    done: list[str] = []
    act = ahead.act

    class Recorded(Planner):
        def _do(self, action: str) -> None:
            if not self.game.over:
                done.append(action)
                act(action)

    Recorded(ahead).solve()
    return done[0]
