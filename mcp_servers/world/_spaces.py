"""Actions and observations of Gymnasium environments as text."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from gymnasium import Env, spaces

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.world._action_matching import match_action
from mcp_servers.world._grid import ACTIONS as GRID_ACTIONS

MOST_NAMES = 200
MOST_NUMBERS = 200
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

AnyEnv = Env[Any, Any]

_HIGHLIGHTED = re.compile(r"\x1b\[4\d(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class DiscreteSpace(Protocol):
    """Discrete action space."""

    n: int
    start: int


def is_grid(env: AnyEnv) -> bool:
    """Return true for a MiniGrid environment."""
    return any(kind.__module__.startswith("minigrid.") for kind in type(env.unwrapped).__mro__)


def action_names(env: AnyEnv) -> list[str]:
    """Return the action names by number; empty if the action space is not discrete."""
    choice = _choice(env)
    if choice is None:
        return []
    number = int(choice.n)
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    if is_grid(env) and number == len(GRID_ACTIONS):
        return list(GRID_ACTIONS)
    if callable(meanings):
        return [str(meaning).lower() for meaning in cast("Sequence[object]", meanings())]
    base = "" if env.spec is None else env.spec.id.rpartition("/")[2].rpartition("-v")[0]
    known = NAMES.get(base, ())
    if len(known) == number:
        return list(known)
    return [f"action {index}" for index in range(number)] if number <= MOST_NAMES else []


def _choice(env: AnyEnv) -> DiscreteSpace | None:
    space = cast("object", env.action_space)
    return cast("DiscreteSpace", space) if isinstance(space, spaces.Discrete) else None


def action_format(env: AnyEnv) -> str | None:
    """Return the format of an action, if there is no list of them."""
    if action_names(env):
        return None
    if isinstance(cast("object", env.action_space), spaces.Text):
        return "Any text."
    return f"JSON for {str(env.action_space)[:500]}."


def parse(env: AnyEnv, action: str, legal: Sequence[str]) -> object:
    """Parse an action for the environment.

    :raises ToolFailure: `bad_arguments`, if it is invalid.
    """
    space = cast("object", env.action_space)
    names, choice = action_names(env), _choice(env)
    if names and choice is not None:
        return int(choice.start) + names.index(legal[match_action(action, legal)])
    if isinstance(space, spaces.Text):
        value: object = action
    else:
        value = _from_json(env.action_space, action)
    if not env.action_space.contains(value):
        message = f"world_act: invalid action. The format is {action_format(env)}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    return value


def _from_json(space: spaces.Space[Any], action: str) -> object:
    try:
        value: object = json.loads(action)
        if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
            return np.asarray(value, dtype=cast("np.dtype[Any]", cast("Any", space).dtype))
        if isinstance(space, spaces.Tuple) and isinstance(value, list):
            return tuple(cast("list[object]", value))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        message = (
            f"world_act: {action[:200]!r} is not JSON for an action: {' '.join(str(error).split())[:200]}"
        )
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None
    return value


def tell_value(value: object) -> str:
    """Describe an observation: small arrays by their numbers, large ones by their shape."""
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, np.dtype[Any]]", value)
        if array.size > MOST_NUMBERS:
            return f"{array.dtype} array of shape {array.shape}"
        return json.dumps(
            np.round(array.astype(np.float64), DIGITS).tolist() if array.dtype.kind == "f" else array.tolist()
        )
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return "\n".join(f"{key}: {tell_value(member)}" for key, member in items)
    if isinstance(value, tuple):
        return ", ".join(tell_value(member) for member in cast("tuple[object, ...]", value))
    if isinstance(value, np.generic):
        return str(cast("object", value.item()))
    return str(value)


def without_colours(text: str) -> str:
    """Convert a terminal drawing to plain text; highlighted characters are put in brackets."""
    return _COLOURS.sub("", _HIGHLIGHTED.sub(r"[\1]", text))
