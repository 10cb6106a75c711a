"""Gymnasium environment as a world: actions, observations and MiniGrid's view as text."""

import copy
import hashlib
import io
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeGuard

import gymnasium
import numpy as np
from gymnasium import Env, spaces
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray

from agentflow._typeguards import is_list, is_mapping, is_object
from agentflow.errors import CannotFork, ErrorKind, ToolFailure
from agentflow.extras import missing_extra
from mcp_servers.world._world import ActionResult, World, match_action

AnyEnv = Env[Any, Any]

GRIDS = ("BabyAI-", "MiniGrid-")
MAX_NAMES = 200
MAX_NUMBERS = 200
DIGITS = 4
NAMES: Mapping[str, Sequence[str]] = {
    "Acrobot": ("push left", "do nothing", "push right"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("push left", "push right"),
    "CliffWalking": ("go up", "go right", "go down", "go left"),
    "FrozenLake": ("go left", "go down", "go right", "go up"),
    "FrozenLake8x8": ("go left", "go down", "go right", "go up"),
    "LunarLander": ("do nothing", "fire left engine", "fire main engine", "fire right engine"),
    "MountainCar": ("push left", "do nothing", "push right"),
    "Taxi": ("go south", "go north", "go east", "go west", "pick up", "drop off"),
}
"""Documented names of actions that Gymnasium only numbers."""

_HIGHLIGHTED = re.compile(r"\x1b\[4\d(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class GymWorld(World):
    """Episode of a Gymnasium environment. Every method may block."""

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
        self._id = id
        self._begin = partial(
            GymWorld, id, seed, task=task, steps=steps, pictures=pictures, arguments=arguments
        )
        self._env = _make(id, steps, pictures, dict(arguments or {}))
        self._history: list[object] = []
        self._hash = hashlib.sha256()
        self._observation: object
        self._info: dict[str, Any]
        self._observation, self._info = self._env.reset(seed=seed, options={"task": task} if task else None)
        self._note(0.0)
        self._over = False

    @property
    def task(self) -> str:
        observation = self._observation
        mission = observation.get("mission") if is_object(observation) else None
        task = mission or self._info.get("task")
        return task if isinstance(task, str) else f"Gain as much reward as you can in {self._id}."

    def tell(self) -> str:
        observation = self._observation
        if _is_grid(self._env) and is_object(observation):
            return _tell_grid(observation, getattr(self._env.unwrapped, "carrying", None))
        text = f"Observation: {_tell_value(observation)}"
        if self._env.render_mode != "ansi":
            return text
        return f"{_without_colours(str(self._env.render())).strip()}\n{text}"

    def picture(self) -> bytes | None:
        if self._env.render_mode != "rgb_array":
            return None
        from PIL import Image  # needed only for pictures

        png = io.BytesIO()
        Image.fromarray(np.asarray(self._env.render())).save(png, "PNG")
        return png.getvalue()

    def actions(self) -> list[str]:
        if self._over:
            return []
        names, mask = _action_names(self._env), self._info.get("action_mask")
        if mask is None or len(mask) != len(names):
            return names
        return [name for name, allowed in zip(names, mask, strict=True) if allowed]

    def action_format(self) -> str | None:
        return _action_format(self._env)

    def act(self, action: str) -> ActionResult:
        return self._step(_parse(self._env, action, self.actions()))

    def _step(self, value: object) -> ActionResult:
        self._observation, reward, terminated, truncated, self._info = self._env.step(value)
        self._history.append(copy.copy(value))
        self._over = terminated or truncated
        self._note(float(reward))
        success = self._info.get("success", self._info.get("is_success"))
        if success is None and _is_grid(self._env):
            success = terminated and float(reward) > 0
        return ActionResult(float(reward), self._over, None if success is None else bool(success))

    def _note(self, reward: float) -> None:
        """Add to the hash of all observations."""
        self._hash.update(repr((reward, _plain(self._observation))).encode())

    def digest(self) -> str:
        """Return a digest of all observations and rewards: equal for equal episodes."""
        whole = self._hash.copy()
        # The state of the environment's random number generator decides the future.
        generator = getattr(self._env.unwrapped, "_np_random", None)
        whole.update(repr(None if generator is None else generator.bit_generator.state).encode())
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
        again = self._begin()
        for value in self._history:
            again._step(copy.copy(value))
        if again.digest() != self.digest():
            again.close()
            raise CannotFork(f"{self._id} cannot be copied, and repeating its actions gives another state")
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
            raise ToolFailure(ErrorKind.UNAVAILABLE, missing_extra(f"world: {id}", "world")) from None
    try:
        with warnings.catch_warnings():
            # Warnings for authors of environments.
            warnings.simplefilter("ignore")
            modes = _render_modes(id)
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


def _render_modes(id: str) -> Sequence[str]:
    entry = gymnasium.spec(id).entry_point
    creator: object = load_env_creator(entry) if isinstance(entry, str) else entry
    metadata: Mapping[str, Sequence[str]] = getattr(creator, "metadata", {})
    return metadata.get("render_modes", ())


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _is_array(value: object) -> TypeGuard[NDArray[Any]]:
    return isinstance(value, np.ndarray)


def _is_scalar(value: object) -> TypeGuard["np.generic[Any]"]:
    return isinstance(value, np.generic)


def _is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple)


def _plain(value: object) -> object:
    """Convert a value to one whose text is complete."""
    if _is_array(value):
        return (str(value.dtype), value.shape, value.tobytes())
    if is_mapping(value):
        return [(str(key), _plain(member)) for key, member in value.items()]
    if is_list(value) or _is_tuple(value):
        return [_plain(member) for member in value]
    return value


def _is_grid(env: AnyEnv) -> bool:
    """Return true for a MiniGrid environment."""
    return any(kind.__module__.startswith("minigrid.") for kind in type(env.unwrapped).__mro__)


def _action_names(env: AnyEnv) -> list[str]:
    """Return the action names by number; empty if the action space is not discrete."""
    if not _is_discrete(env.action_space):
        return []
    number = int(env.action_space.n)
    if _is_grid(env) and number == len(_GRID_ACTIONS):
        return list(_GRID_ACTIONS)
    meanings: Callable[[], Sequence[object]] | None = getattr(env.unwrapped, "get_action_meanings", None)
    if callable(meanings):
        return [str(meaning).lower() for meaning in meanings()]
    base = "" if env.spec is None else env.spec.id.rpartition("/")[2].rpartition("-v")[0]
    documented = NAMES.get(base, ())
    if len(documented) == number:
        return list(documented)
    return [f"action {index}" for index in range(number)] if number <= MAX_NAMES else []


def _is_discrete(space: object) -> TypeGuard["spaces.Discrete[np.int64]"]:
    return isinstance(space, spaces.Discrete)


def _action_format(env: AnyEnv) -> str | None:
    """Return the format of an action, if there is no list of them."""
    if _action_names(env):
        return None
    return (
        "Any text."
        if isinstance(env.action_space, spaces.Text)
        else f"JSON for {str(env.action_space)[:500]}."
    )


def _parse(env: AnyEnv, action: str, legal: Sequence[str]) -> object:
    """Parse an action for the environment.

    :raises ToolFailure: `bad_arguments`, if it is invalid.
    """
    space, names = env.action_space, _action_names(env)
    if names and _is_discrete(space):
        return int(space.start) + names.index(legal[match_action(action, legal)])
    value: object = action if isinstance(space, spaces.Text) else _from_json(space, action)
    if not space.contains(value):
        message = f"world_act: invalid action. The format is {_action_format(env)}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    return value


def _from_json(space: spaces.Space[Any], action: str) -> object:
    dtype = space.dtype
    try:
        value: object = json.loads(action)
        if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
            return np.asarray(value, dtype)
        return tuple(value) if isinstance(space, spaces.Tuple) and is_list(value) else value
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        message = (
            f"world_act: {action[:200]!r} is not JSON for an action: {' '.join(str(error).split())[:200]}"
        )
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None


def _tell_value(value: object) -> str:
    """Describe an observation: small arrays by their numbers, large ones by their shape."""
    if _is_array(value):
        if value.size > MAX_NUMBERS:
            return f"{value.dtype} array of shape {value.shape}"
        rounded = np.round(value.astype(np.float64), DIGITS) if value.dtype.kind == "f" else value
        return json.dumps(rounded.tolist())
    if is_object(value):
        return "\n".join(f"{key}: {_tell_value(member)}" for key, member in value.items())
    if _is_tuple(value):
        return ", ".join(_tell_value(member) for member in value)
    return str(value.item() if _is_scalar(value) else value)


def _without_colours(text: str) -> str:
    """Convert a terminal drawing to plain text; highlighted characters are put in brackets."""
    return _COLOURS.sub("", _HIGHLIGHTED.sub(r"[\1]", text))


_GRID_ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done"]
"""MiniGrid's actions, in the order of their numbers."""
DIRECTIONS = ("east", "south", "west", "north")
OBJECTS = {4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")
WALL, UNSEEN, DOOR = 2, 0, 4
COLOURED = (4, 5, 6, 7)


class _CarriedThing(Protocol):
    type: str
    color: str


def _tell_grid(observation: Mapping[str, Any], carried: _CarriedThing | None) -> str:
    """Describe a MiniGrid view, given as `(kind, color, state)` by column and row, from the agent's perspective."""
    image: Sequence[Sequence[Sequence[int]]] = observation["image"]
    width, height = len(image), len(image[0])
    middle, nearest = width // 2, height - 1
    visible: list[tuple[int, int, str]] = []
    for column in range(width):
        for row in range(height):
            kind, colour, state = (int(value) for value in image[column][row])
            ahead, right = nearest - row, column - middle
            if kind in OBJECTS and (ahead, right) != (0, 0):
                visible.append((ahead + abs(right), right, _object(kind, colour, state, ahead, right)))
    return "\n".join(
        [
            f"You look {DIRECTIONS[int(observation['direction'])]}.",
            *([text for _, _, text in sorted(visible)] or ["You see nothing of interest."]),
            *_walls(lambda ahead, right: int(image[middle + right][nearest - ahead][0]), middle, nearest),
            "You carry nothing." if carried is None else f"You carry a {carried.color} {carried.type}.",
        ]
    )


def _object(kind: int, colour: int, state: int, ahead: int, right: int) -> str:
    words = [DOOR_STATES[state]] if kind == DOOR else []
    words += [COLOURS[colour]] if kind in COLOURED else []
    article = "an" if words and words[0][0] in "aeiou" else "a"
    return f"There is {article} {' '.join([*words, OBJECTS[kind]])} {_where(ahead, right)}."


def _where(ahead: int, right: int) -> str:
    sideways = f"{_steps(abs(right))} to the {'right' if right > 0 else 'left'}" if right else ""
    forward = f"{_steps(ahead)} ahead" if ahead else ""
    return " and ".join(part for part in (forward, sideways) if part)


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _walls(at: Callable[[int, int], int], sideways: int, forward: int) -> list[str]:
    """Describe the nearest visible wall in each direction."""
    paths = {
        "ahead": [(step, 0) for step in range(1, forward + 1)],
        "to the left": [(0, -step) for step in range(1, sideways + 1)],
        "to the right": [(0, step) for step in range(1, sideways + 1)],
    }
    lines: list[str] = []
    for word, path in paths.items():
        for number, (ahead, right) in enumerate(path, 1):
            if at(ahead, right) == WALL:
                lines.append(f"There is a wall {_steps(number)} {word}.")
                break
            if at(ahead, right) == UNSEEN:
                break
    return lines
