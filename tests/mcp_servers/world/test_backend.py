"""World tools with the household and with Gymnasium environments."""

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import gymnasium
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import ConfigurationError
from agentflow.extras import add_command
from mcp_servers import Image, ToolTable
from mcp_servers.world import WorldBackend
from mcp_servers.world.household import begin
from tests.mcp_servers.live import Live

GRID = "BabyAI-GoToLocal-v0"
TOYS = ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4", "Blackjack-v1", "CartPole-v1", "Pendulum-v1", "test/*"]
EVERYTHING = ["agentflow/household-v0", "BabyAI-*", *TOYS]


class Uncopied(gymnasium.Env[Any, Any]):
    """Counter that cannot be copied; with `forgetful` not repeated either."""

    metadata = {"render_modes": []}  # noqa: RUF012  # so it is declared where it comes from
    made = 0

    def __init__(self, forgetful: bool = False) -> None:
        self.observation_space = cast("Any", spaces.Discrete(10_000))
        self.action_space = cast("Any", spaces.Discrete(3))
        type(self).made += 1
        self._start = type(self).made if forgetful else 0
        self._generator = (number for number in range(3))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = self._start
        return self._count, {"action_mask": [1, 0, 1]}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action == 2:
            raise ZeroDivisionError("of all\nthings")
        self._count += 1
        return self._count, 0.5, False, False, {"is_success": self._count == 2}


@pytest.fixture(scope="module", autouse=True)
def environments() -> None:
    """Badly behaved environments."""
    make = cast("Any", gymnasium).register
    make("test/Uncopied-v0", entry_point=Uncopied)
    make("test/Forgetful-v0", entry_point=Uncopied, kwargs={"forgetful": True})


@asynccontextmanager
async def world(
    session_settings: Mapping[str, object] | None = None, **world_settings: object
) -> AsyncGenerator[Live]:
    """Session in a table with the world backend."""
    async with ToolTable(
        [WorldBackend()], settings={"world": {"environments": EVERYTHING, **world_settings}}
    ) as table:
        arguments = {"settings": {"world": dict(session_settings)}} if session_settings else {}
        started = await table.call("session_start", arguments)
        assert started.ok, started
        yield Live(table, str(started.data["session"]))


def actions(seen: Mapping[str, object]) -> list[str]:
    """Return the legal actions."""
    return cast("list[str]", seen["actions"])


@pytest.mark.promise("world:household")
async def test_the_household_is_the_default_world() -> None:
    async with world() as live:
        seen = await live.data("world_observe")
        game = begin(0)
        assert seen["task"] == game.goal.text
        assert seen["observation"] == game.tell()
        assert actions(seen) == game.actions()
        assert (seen["steps"], seen["reward"], seen["done"], seen["success"]) == (0, 0.0, False, None)


@pytest.mark.promise("world:act")
async def test_actions_are_given_by_words_or_numbers() -> None:
    async with world() as live:
        first = actions(await live.data("world_reset", seed=3, task="place"))
        by_number = await live.data("world_act", action=1)
        await live.data("world_reset", seed=3)
        by_words = await live.data("world_act", action=f" {first[1].upper()}. ".replace("TO ", "to the "))
        await live.data("world_reset", seed=3)
        as_text = await live.data("world_act", action="1")
        assert by_number == by_words == as_text
        assert by_number["steps"] == 1


@pytest.mark.promise("world:act:refused")
@pytest.mark.parametrize("action", ["go to the moon", "", "99", "9" * 50, "take \x00", "ä" * 10_000])
async def test_an_illegal_action_is_refused_and_changes_nothing(action: str) -> None:
    async with world() as live:
        before = await live.data("world_state")
        kind, message = await live.failure("world_act", action=action)
        assert kind == "bad_arguments"
        assert "\n" not in message
        assert len(message) < 2_000
        assert await live.data("world_state") == before


@pytest.mark.promise("world:seed")
async def test_without_a_seed_each_episode_uses_the_next_one() -> None:
    async with world(session_settings={"seed": 5, "task": "find"}) as live:
        assert (await live.data("world_state"))["seed"] == 5
        await live.data("world_reset")
        assert (await live.data("world_state"))["seed"] == 6
        await live.data("world_reset", seed=40)
        assert (await live.data("world_reset"))["task"] == begin(41, "find").goal.text


@pytest.mark.promise("world:end")
async def test_an_episode_ends_and_another_one_begins() -> None:
    async with world(steps=2) as live:
        await live.data("world_act", action="look")
        last = await live.data("world_act", action="look")
        assert (last["done"], last["success"], last["actions"]) == (True, False, [])
        kind, message = await live.failure("world_act", action="look")
        assert (kind, "world_reset" in message) == ("bad_arguments", True)
        assert (await live.data("world_reset"))["done"] is False


@pytest.mark.promise("world:fork")
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    env=st.sampled_from(
        ["agentflow/household-v0", GRID, "FrozenLake-v1", "Taxi-v4", "CartPole-v1", "test/Uncopied-v0"]
    ),
    seed=st.integers(0, 1_000),
    before=st.lists(st.integers(0, 1), max_size=8),
    mine=st.lists(st.integers(0, 1), max_size=5),
    others=st.lists(st.integers(0, 1), max_size=5),
)
async def test_parent_forks_and_replays_agree_and_siblings_are_isolated(
    env: str, seed: int, before: list[int], mine: list[int], others: list[int]
) -> None:
    async def begun(live: Live) -> Live:
        new = await live.table.call("session_start")
        started = Live(live.table, str(new.data["session"]))
        await started.data("world_reset", env=env, seed=seed)
        return started

    async def play(live: Live, choices: list[int]) -> Mapping[str, object]:
        for choice in choices:
            offered = actions(await live.data("world_observe"))
            if offered:
                # For the failing environment only the action that does not fail.
                await live.data(
                    "world_act", action=offered[0 if env.startswith("test") else choice % len(offered)]
                )
        return {**await live.data("world_state"), **await live.data("world_observe")}

    async with world() as live:
        parent = await begun(live)
        there = await play(parent, before)
        first, second = await parent.fork(), await parent.fork()
        assert await play(first, []) == there
        mine_seen, others_seen = await play(first, mine), await play(second, others)
        assert await play(parent, []) == there
        assert mine_seen == await play(await begun(live), [*before, *mine])
        assert others_seen == await play(await begun(live), [*before, *others])


@pytest.mark.promise("world:fork:refused")
async def test_a_world_that_can_be_neither_copied_nor_repeated_is_not_forked() -> None:
    async with world() as live:
        before = await live.data("world_reset", env="test/Forgetful-v0")
        kind, message = await live.failure("session_fork")
        assert kind == "cannot_fork"
        assert "test/Forgetful-v0 cannot be copied, and repeating its actions gives another state" in message
        assert await live.data("world_observe") == before


@pytest.mark.promise("world:babyai")
async def test_babyai_describes_its_mission_and_its_view() -> None:
    async with world() as live:
        seen = await live.data("world_reset", env=GRID, seed=1)
        assert seen["task"] == "go to the purple box"
        assert str(seen["observation"]).startswith("You look ")
        assert "There is a " in str(seen["observation"])
        assert str(seen["observation"]).endswith("You carry nothing.")
        assert actions(seen)[:3] == ["turn left", "turn right", "go forward"]
        turned = await live.data("world_act", action="turn left")
        assert turned["observation"] != seen["observation"]


@pytest.mark.promise("world:gymnasium")
async def test_gymnasium_environments_are_described_in_words() -> None:
    async with world() as live:
        lake = await live.data("world_reset", env="FrozenLake-v1", seed=0)
        assert str(lake["observation"]).splitlines()[0] == "[S]FFF"
        assert actions(lake) == ["go left", "go down", "go right", "go up"]
        taxi = await live.data("world_reset", env="Taxi-v4", seed=0)
        assert set(actions(taxi)) < {"go south", "go north", "go east", "go west", "pick up", "drop off"}
        pole = await live.data("world_reset", env="CartPole-v1", seed=0)
        assert str(pole["observation"]).startswith("Observation: [")
        assert (await live.data("world_act", action="push left"))["reward"] == 1.0
        swing = await live.data("world_reset", env="Pendulum-v1", seed=0)
        assert actions(swing) == []
        assert "Box(-2.0, 2.0" in str(swing["action_format"])
        assert (await live.data("world_act", action="[0.5]"))["steps"] == 1
        for action in ("[9]", "push", "[[1]]", "{}", '"a"', "[1e999]"):
            assert (await live.failure("world_act", action=action))[0] == "bad_arguments"


@pytest.mark.promise("world:gymnasium")
async def test_success_and_legal_actions_are_those_that_the_environment_reports() -> None:
    async with world() as live:
        assert actions(await live.data("world_reset", env="test/Uncopied-v0")) == ["action 0", "action 2"]
        assert (await live.data("world_act", action="action 0"))["success"] is False
        seen = await live.data("world_act", action=0)
        assert (seen["success"], seen["total_reward"]) == (True, 1.0)


@pytest.mark.promise("world:failed")
async def test_a_failing_environment_is_a_typed_failure_and_begins_a_new_episode() -> None:
    async with world() as live:
        await live.data("world_reset", env="test/Uncopied-v0", seed=9)
        kind, message = await live.failure("world_act", action="action 2")
        assert kind == "failed"
        assert "ZeroDivisionError: of all things. The next call begins a new episode." in message
        assert (await live.data("world_observe"))["steps"] == 0


@pytest.mark.promise("world:pictures")
async def test_pictures_are_shown_if_requested() -> None:
    async with world(pictures=True) as live:
        result = await live.call("world_reset", env=GRID)
        (picture,) = result.parts
        assert isinstance(picture, Image)
        assert picture.data.startswith(b"\x89PNG")
        acted = await live.call("world_act", action="turn left")
        assert isinstance(acted.parts[0], Image)
        assert acted.parts[0].data != picture.data
        assert (await live.call("world_reset", env="agentflow/household-v0")).parts == ()


@pytest.mark.promise("world:allowed")
@pytest.mark.parametrize(
    "env", ["MiniGrid-Empty-5x5-v0", "os:Env-v0", "os:BabyAI-GoToObj-v0", "BabyAI-../x", ""]
)
async def test_only_listed_environments_are_available(env: str) -> None:
    before = set(sys.modules)
    async with world() as live:
        if not env:
            assert (await live.call("world_reset", env=env)).ok
            return
        kind, message = await live.failure("world_reset", env=env)
        assert kind in ("denied", "bad_arguments")
        assert "\n" not in message
        result = await live.table.call("session_start", {"settings": {"world": {"environments": ["*"]}}})
        assert result.error is not None
        assert result.error.kind == "denied"
    assert not [module for module in set(sys.modules) - before if module.startswith("antigravity")]


@pytest.mark.promise("world:allowed")
async def test_an_unknown_environment_is_refused_with_the_nearest() -> None:
    async with world() as live:
        kind, message = await live.failure("world_reset", env="BabyAI-GoToLokal-v0")
        assert kind == "bad_arguments"
        assert "GoToLocal" in message
        kind, message = await live.failure("world_reset", task="cook")
        assert (kind, "there are find, place" in message) == ("bad_arguments", True)


@pytest.mark.promise("world:missing")
@pytest.mark.parametrize("missing", ["gymnasium", "minigrid"])
async def test_a_missing_library_is_one_line_and_the_household_needs_none(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    for module in [name for name in sys.modules if name == "mcp_servers.world._gym_world"]:
        monkeypatch.delitem(sys.modules, module)
    async with world() as live:
        assert (await live.data("world_observe"))["steps"] == 0
        kind, message = await live.failure("world_reset", env=GRID)
        assert kind == "unavailable"
        assert add_command("world") in message


@pytest.mark.promise("world:settings")
@pytest.mark.parametrize(
    ("invalid", "reason"),
    [({"seed": -1}, "seed"), ({"steps": 0}, "steps"), ({"environmnts": []}, "environmnts")],
)
def test_invalid_settings_are_refused_in_one_line(invalid: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        WorldBackend().check(invalid)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.promise("world:inspect")
async def test_only_an_evaluator_sees_what_is_hidden() -> None:
    async with world(evaluate=True) as live:
        await live.data("world_reset", seed=3)
        facts = cast("dict[str, dict[str, str]]", (await live.data("world_inspect"))["facts"])
        assert facts["egg 1"] == {"place": "on stove 1", "temperature": "normal"}
        assert "room" in facts["stove 1"]
        await live.data("world_act", action="go to kitchen")
        assert (await live.data("world_inspect"))["facts"] == facts
    async with world() as live:
        assert (await live.failure("world_inspect"))[0] == "tool_not_found"
