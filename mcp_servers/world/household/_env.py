"""Household as a Gymnasium environment, `agentflow/household-v0`."""

from typing import Any

import gymnasium
from gymnasium.spaces import Text

from mcp_servers.world.household._game import HOUSEHOLD, STEPS, Game, begin

MAX_TEXT_CHARS = 20_000
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"


class HouseholdEnv(gymnasium.Env[str, str]):
    """Household with a task: text in, text out. `info["actions"]` lists the legal actions."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012  # so it is declared where it comes from

    def __init__(self, render_mode: str | None = None, steps: int = STEPS) -> None:
        self.render_mode = render_mode
        self.observation_space = Text(MAX_TEXT_CHARS, charset=CHARACTERS)
        self.action_space = Text(200, charset=CHARACTERS)
        self._steps = steps
        self._game: Game | None = None

    @property
    def game(self) -> Game:
        """Current game."""
        assert self._game is not None, "call reset first"
        return self._game

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin; `options={"task": …}` selects the kind of task."""
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(2**31)) if seed is None else seed
        self._game = begin(chosen, (options or {}).get("task"), self._steps)
        return self.game.tell(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; an illegal one changes nothing and costs a step."""
        game = self.game
        if action in game.actions():
            game.act(action)
        else:
            game.said = f"You can't {action}." if action else "You do nothing."
            game.steps += 1
        reward = 1.0 if game.success else 0.0
        return game.tell(), reward, game.success, game.over and not game.success, self._info()

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the observation in words."""
        return self.game.tell() if self.render_mode == "ansi" else None

    def _info(self) -> dict[str, Any]:
        return {"task": self.game.goal.text, "actions": self.game.actions(), "success": self.game.success}


def register() -> None:
    """Register it with `gymnasium.make`. Idempotent."""
    if HOUSEHOLD not in gymnasium.registry:
        entry_point = f"{HouseholdEnv.__module__}:{HouseholdEnv.__name__}"
        gymnasium.register(HOUSEHOLD, entry_point=entry_point)  # pyright: ignore[reportUnknownMemberType]
