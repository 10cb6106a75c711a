"""Any Gymnasium environment as a world."""

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
from mcp_servers.world._world import Outcome

__all__ = ["GymWorld"]

GRIDS = ("BabyAI-", "MiniGrid-")


class GymWorld:
    """One episode of a Gymnasium environment. Everything here may block."""

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
        """Begin.

        :raises ToolFailure: `bad_arguments` for an environment that is not there, `unavailable` for one that lacks a part.
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
        """What is to be done, in words."""
        seen = self._observation
        mission = cast("Mapping[str, object]", seen).get("mission") if isinstance(seen, dict) else None
        told = mission or self._info.get("task")
        return told if isinstance(told, str) else f"Gain as much reward as you can in {self._made['id']}."

    def tell(self) -> str:
        """What can be seen now, in words."""
        seen = self._observation
        if is_grid(self._env) and isinstance(seen, dict):
            carried = getattr(self._env.unwrapped, "carrying", None)
            return tell_grid(cast("Mapping[str, object]", seen), carried)
        told = f"Observation: {tell_value(seen)}"
        if self._env.render_mode != "ansi":
            return told
        return f"{without_colours(str(self._env.render())).strip()}\n{told}"

    def picture(self) -> bytes | None:
        """What can be seen now, as PNG."""
        if self._env.render_mode != "rgb_array":
            return None
        from PIL import Image  # only pictures need it

        drawn = cast("np.ndarray[Any, np.dtype[np.uint8]]", self._env.render())
        png = io.BytesIO()
        Image.fromarray(drawn).save(png, "PNG")
        return png.getvalue()

    def actions(self) -> list[str]:
        """What can be done now."""
        if self._over:
            return []
        names, mask = action_names(self._env), self._info.get("action_mask")
        if mask is None or len(mask) != len(names):
            return names
        return [name for name, allowed in zip(names, mask, strict=True) if allowed]

    def action_format(self) -> str | None:
        """How an action is written, where there is no list of them."""
        return action_format(self._env)

    def act(self, action: str) -> Outcome:
        """Do something."""
        return self._step(parse(self._env, action, self.actions()))

    def _step(self, value: object) -> Outcome:
        self._observation, reward, terminated, truncated, self._info = self._env.step(value)
        self._history.append(copy.copy(value))
        self._over = terminated or truncated
        self._note(float(reward))
        success = self._info.get("success", self._info.get("is_success"))
        if success is None and is_grid(self._env):
            success = terminated and float(reward) > 0
        return Outcome(float(reward), self._over, None if success is None else bool(success))

    def _note(self, reward: float) -> None:
        """Add to the hash of all that was seen."""
        self._hash.update(repr((reward, _plain(self._observation))).encode())

    def digest(self) -> str:
        """The same for the same episode: of everything that was seen and won."""
        whole = self._hash.copy()
        whole.update(repr(_generator(self._env)).encode())
        return whole.hexdigest()

    def copy(self) -> "GymWorld":
        """A copy of the state where it can be copied; else the same actions again, if they lead to the same."""
        try:
            copied = copy.copy(self)
            copied._env = copy.deepcopy(self._env)
        except (
            Exception
        ):  # boundary: an environment may hold what can't be copied in as many ways as there are
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
            raise CannotFork(f"{self._made['id']} can't be copied, and the same actions lead elsewhere")
        return again

    def close(self) -> None:
        """Give everything back."""
        self._env.close()


def _make(id: str, steps: int | None, pictures: bool, arguments: dict[str, object]) -> AnyEnv:
    if id.startswith(GRIDS):
        try:
            # Loading it makes its environments known.
            import_module("minigrid")
        except ImportError:
            message = f"world: {id} needs MiniGrid: pip install 'agentflow[world]'"
            raise ToolFailure(ErrorKind.UNAVAILABLE, message) from None
    try:
        with warnings.catch_warnings():
            # Advice for who writes environments.
            warnings.simplefilter("ignore")
            modes = _modes(id)
            wanted = ("rgb_array", "ansi") if pictures else ("ansi",)
            mode = next((mode for mode in wanted if mode in modes), None)
            if "render_mode" not in arguments and mode is not None:
                arguments["render_mode"] = mode
            return gymnasium.make(id, max_episode_steps=steps, disable_env_checker=True, **arguments)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ToolFailure(ErrorKind.UNAVAILABLE, f"world: {id} needs more: {_line(error)}") from None
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"world: {id} can't be made: {_line(error)}") from None


def _modes(id: str) -> tuple[str, ...]:
    """The ways in which it can be rendered."""
    entry = gymnasium.spec(id).entry_point
    creator: object = load_env_creator(entry) if isinstance(entry, str) else entry
    metadata = cast("Mapping[str, object]", getattr(creator, "metadata", {}))
    return tuple(cast("list[str]", metadata.get("render_modes", ())))


def _generator(env: AnyEnv) -> object:
    """The state of its random numbers, which decides what comes."""
    generator = getattr(env.unwrapped, "_np_random", None)
    return None if generator is None else generator.bit_generator.state


def _plain(value: object) -> object:
    """A value whose text says all of it."""
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
