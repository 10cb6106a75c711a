"""MiniGrid's view as text, from the agent's perspective."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

ACTIONS = ["turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done"]
"""MiniGrid's actions, in the order of their numbers."""

DIRECTIONS = ("east", "south", "west", "north")
OBJECTS = {4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")
WALL, UNSEEN, DOOR = 2, 0, 4
COLOURED = (4, 5, 6, 7)


class _Thing(Protocol):
    type: str
    color: str


def tell_grid(observation: Mapping[str, object], carrying: object) -> str:
    """Describe a MiniGrid view, given as `(kind, color, state)` by column and row."""
    image = cast("Sequence[Sequence[Sequence[int]]]", observation["image"])
    width, height = len(image), len(image[0])
    middle, nearest = width // 2, height - 1
    lines = [f"You look {DIRECTIONS[int(cast('int', observation['direction']))]}."]
    seen: list[tuple[int, int, str]] = []
    for column in range(width):
        for row in range(height):
            kind, colour, state = (int(value) for value in image[column][row])
            ahead, right = nearest - row, column - middle
            if kind in OBJECTS and (ahead, right) != (0, 0):
                seen.append((ahead + abs(right), right, _object(kind, colour, state, ahead, right)))
    lines += [text for _, _, text in sorted(seen)] or ["You see nothing of interest."]
    lines += _walls(lambda ahead, right: int(image[middle + right][nearest - ahead][0]), middle, nearest)
    held = cast("_Thing | None", carrying)
    lines.append("You carry nothing." if held is None else f"You carry a {held.color} {held.type}.")
    return "\n".join(lines)


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
