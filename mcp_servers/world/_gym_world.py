"""Gymnasium environment as a world."""

import copy
import hashlib
import io
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from agentflow.errors import CannotFork, ErrorKind, ToolFailure
from mcp_servers.world._grid import tell_grid
from mcp_servers.world._spaces import (
    AnyEnv,
    action_format,
    action_names,
    is_grid,
    parse,
    tell_value,
    without_colours,
)
from mcp_servers.world._world import ActionResult

GRIDS = ("BabyAI-", "MiniGrid-")


class GymWorld:
    """Episode of a Gymnasium environment. Every method may block."""

    quick = False

    def __init__(
        self,
        id: str,
        seed: int,
        *,
        task: str | None = None,
        steps: int | None = None,
        pictures: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Begin an episode.

        :raises ToolFailure: `bad_arguments` for an unknown environment, `unavailable` for one with a missing dependency.
        """
        self._made = {"id": id, "task": task, "steps": steps, "pictures": pictures, "arguments": arguments}
        self._seed = seed
        self._env = _make(id, steps, pictures, dict(arguments or {}))
        self._history: list[object] = []
        self._hash = hashlib.sha256()
        options = {"task": task} if task else None
        began = self._env.reset(seed=seed, options=options)
        self._observation: object = began[0]
        self._info: dict[str, Any] = began[1]
        self._note(0.0)
        self._over = False

    @property
    def task(self) -> str:
        """Task in words."""
        seen = self._observation
        mission = cast("Mapping[str, object]", seen).get("mission") if isinstance(seen, dict) else None
        told = mission or self._info.get("task")
        return told if isinstance(told, str) else f"Gain as much reward as you can in {self._made['id']}."

    def tell(self) -> str:
        """Return the current observation in words."""
        seen = self._observation
        if is_grid(self._env) and isinstance(seen, dict):
            carried = getattr(self._env.unwrapped, "carrying", None)
            return tell_grid(cast("Mapping[str, object]", seen), carried)
        told = f"Observation: {tell_value(seen)}"
        if self._env.render_mode != "ansi":
            return told
        return f"{without_colours(str(self._env.render())).strip()}\n{told}"

    def picture(self) -> bytes | None:
        """Render the current state as PNG."""
        if self._env.render_mode != "rgb_array":
            return None
        from PIL import Image  # needed only for pictures

        drawn = cast("np.ndarray[Any, np.dtype[np.uint8]]", self._env.render())
        png = io.BytesIO()
        Image.fromarray(drawn).save(png, "PNG")
        return png.getvalue()

    def actions(self) -> list[str]:
        """Return the legal actions."""
        if self._over:
            return []
        names, mask = action_names(self._env), self._info.get("action_mask")
        if mask is None or len(mask) != len(names):
            return names
        return [name for name, allowed in zip(names, mask, strict=True) if allowed]

    def action_format(self) -> str | None:
        """Format of an action, if there is no list of them."""
        return action_format(self._env)

    def act(self, action: str) -> ActionResult:
        """Take an action."""
        return self._step(parse(self._env, action, self.actions()))

    def _step(self, value: object) -> ActionResult:
        self._observation, reward, terminated, truncated, self._info = self._env.step(value)
        self._history.append(copy.copy(value))
        self._over = terminated or truncated
        self._note(float(reward))
        success = self._info.get("success", self._info.get("is_success"))
        if success is None and is_grid(self._env):
            success = terminated and float(reward) > 0
        return ActionResult(float(reward), self._over, None if success is None else bool(success))

    def _note(self, reward: float) -> None:
        """Add to the hash of all observations."""
        self._hash.update(repr((reward, _plain(self._observation))).encode())

    def digest(self) -> str:
        """Return a digest of all observations and rewards: equal for equal episodes."""
        whole = self._hash.copy()
        whole.update(repr(_generator(self._env)).encode())
        return whole.hexdigest()

    def copy(self) -> "GymWorld":
        """Return a copy of the state; if it cannot be copied, repeat the actions if they lead to the same state."""
        try:
            copied = copy.copy(self)
            copied._env = copy.deepcopy(self._env)
        except Exception:  # boundary: an environment may fail to be copied in any way
            return self._repeated()
        copied._history = list(self._history)
        copied._hash = self._hash.copy()
        copied._observation, copied._info = copy.deepcopy((self._observation, self._info))
        return copied

    def _repeated(self) -> "GymWorld":
        again = GymWorld(seed=self._seed, **cast("dict[str, Any]", self._made))
        for value in self._history:
            again._step(copy.copy(value))
        if again.digest() != self.digest():
            again.close()
            raise CannotFork(
                f"{self._made['id']} cannot be copied, and repeating its actions gives another state"
            )
        return again

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _make(id: str, steps: int | None, pictures: bool, arguments: dict[str, object]) -> AnyEnv:
    if id.startswith(GRIDS):
        try:
            # Importing it registers its environments.
            import_module("minigrid")
        except ImportError:
            message = f"world: {id} needs MiniGrid: pip install 'agentflow[world]'"
            raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None
    try:
        with warnings.catch_warnings():
            # Warnings for authors of environments.
            warnings.simplefilter("ignore")
            modes = _modes(id)
            wanted = ("rgb_array", "ansi") if pictures else ("ansi",)
            mode = next((mode for mode in wanted if mode in modes), None)
            if "render_mode" not in arguments and mode is not None:
                arguments["render_mode"] = mode
            return gymnasium.make(id, max_episode_steps=steps, disable_env_checker=True, **arguments)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ToolFailure(
            ErrorKind.UNAVAILABLE, f"world: {id} has a missing dependency: {_line(error)}"
        ) from None
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"world: {id} cannot be created: {_line(error)}") from None


def _modes(id: str) -> tuple[str, ...]:
    """Return the render modes."""
    entry = gymnasium.spec(id).entry_point
    creator: object = load_env_creator(entry) if isinstance(entry, str) else entry
    metadata = cast("Mapping[str, object]", getattr(creator, "metadata", {}))
    return tuple(cast("list[str]", metadata.get("render_modes", ())))


def _generator(env: AnyEnv) -> object:
    """Return the state of its random number generator, which decides the future."""
    generator = getattr(env.unwrapped, "_np_random", None)
    return None if generator is None else generator.bit_generator.state


def _plain(value: object) -> object:
    """Convert a value to one whose text is complete."""
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, np.dtype[Any]]", value)
        return (str(array.dtype), array.shape, array.tobytes())
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return [(str(key), _plain(member)) for key, member in items]
    if isinstance(value, list | tuple):
        return [_plain(member) for member in cast("list[object]", value)]
    return value


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
