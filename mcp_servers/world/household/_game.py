"""Game: a household with a task, generated from a seed; its rules, and its description in words."""

import hashlib
from dataclasses import astuple, dataclass, replace
from random import Random

from mcp_servers.world.household._goals import TASKS, Goal, choose
from mcp_servers.world.household._house import HANDS, Furniture, House, Thing, build

HOUSEHOLD = "agentflow/household-v0"
"""Gymnasium id of the household."""
STEPS = 100
"""Maximum number of actions."""

ATTEMPTS = 1_000


@dataclass(slots=True)
class Game:
    """Running task. The same seed, task and actions always lead to the same state, in every process."""

    house: House
    """Household."""
    goal: Goal
    """Goal."""
    steps: int = 0
    """Number of actions taken."""
    limit: int = STEPS
    """Maximum number of actions."""
    said: str = ""
    """Result of the last action."""

    @property
    def success(self) -> bool:
        """True if the task is done."""
        return self.goal.reached(self.house)

    @property
    def over(self) -> bool:
        """True if the task is done, or no actions are left."""
        return self.steps >= self.limit or self.success

    def actions(self) -> list[str]:
        """Return the legal actions."""
        return [] if self.over else actions(self.house)

    def act(self, action: str) -> None:
        """Take one of the actions."""
        self.said = act(self.house, action)
        self.steps += 1

    def tell(self) -> str:
        """Return the result of the last action and the current observation."""
        return f"{self.said}\n{tell(self.house)}".strip()

    def copy(self) -> "Game":
        """Return an independent copy."""
        return replace(self, house=self.house.copy())

    def digest(self) -> str:
        """Return a digest that is equal for equal states only."""
        house = self.house
        state = (
            house.room,
            house.at,
            sorted(house.examined),
            [astuple(piece) for piece in house.furniture.values()],
            [astuple(thing) for thing in house.things.values()],
            astuple(self.goal),
            self.steps,
            self.said,
        )
        return hashlib.sha256(repr(state).encode()).hexdigest()


def begin(seed: int, task: str | None = None, limit: int = STEPS) -> Game:
    """Return the household and the task of a seed.

    :param task: the kind of task; by default the seed decides.
    :raises ValueError: if there is no such kind.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"no task {task!r}; there are {', '.join(TASKS)}")
    # A text seed: Python hashes it the same way in every process.
    random = Random(f"household {seed} {task or ''}")
    for _ in range(ATTEMPTS):
        chosen = task or random.choice(list(TASKS))
        house = build(random)
        goal = choose(random, house, chosen)
        if goal is not None:
            return Game(house, goal, limit=limit)
    raise AssertionError(f"no household with a task {task!r} was found for seed {seed}")


def actions(house: House) -> list[str]:
    """Return every legal action, always in the same order."""
    front = house.front()
    return [
        *(f"go to {room}" for room in house.doors[house.room]),
        *(f"go to {piece.name}" for piece in house.here() if piece.name != house.at),
        *([] if front is None else _at(house, front)),
        *_with_hands(house),
        "look",
    ]


def _at(house: House, front: Furniture) -> list[str]:
    able, actions, carried = front.able, list[str](), house.carried()
    if able.opens:
        actions.append(f"{'close' if front.open else 'open'} {front.name}")
    if able.lights:
        actions.append(f"turn {'off' if front.lit else 'on'} {front.name}")
    if front.shows and len(carried) < HANDS:
        actions += [f"take {thing.name} from {front.name}" for thing in house.lying(front.name)]
    for thing in carried:
        if front.shows:
            actions.append(f"put {thing.name} {able.word} {front.name}")
        if able.cleans and thing.able.washable:
            actions.append(f"clean {thing.name} with {front.name}")
        if able.heats and thing.able.warms:
            actions.append(f"heat {thing.name} with {front.name}")
        if able.cools and thing.able.warms:
            actions.append(f"cool {thing.name} with {front.name}")
    return actions


def _with_hands(house: House) -> list[str]:
    carried = house.carried()
    knives = [thing for thing in carried if thing.able.cuts]
    cuttable = [thing for thing in carried if thing.able.slices and not thing.sliced]
    return [
        *(f"slice {thing.name} with {knife.name}" for thing in cuttable for knife in knives),
        *(f"examine {thing.name}" for thing in carried),
    ]


def act(house: House, action: str) -> str:
    """Take one of the `actions`; return its result in words."""
    verb, _, rest = action.partition(" ")
    if verb == "go":
        return _go(house, rest.removeprefix("to "))
    if verb in ("open", "close"):
        house.furniture[rest] = replace(house.furniture[rest], open=verb == "open")
        return f"You {verb} {rest}."
    if verb == "turn":
        word, _, lamp = rest.partition(" ")
        house.furniture[lamp] = replace(house.furniture[lamp], lit=word == "on")
        return f"You turn {word} {lamp}."
    if verb == "look":
        return "You look around."
    if verb == "examine":
        return _examine(house, house.things[rest])
    name = next(name for name in house.things if rest.startswith(f"{name} "))
    house.things[name] = _changed(house.things[name], verb, house.at)
    return f"You {action}."


def _changed(thing: Thing, verb: str, at: str | None) -> Thing:
    """Return the changed thing."""
    if verb == "take":
        return replace(thing, place=None)
    if verb == "put":
        return replace(thing, place=at)
    if verb == "clean":
        return replace(thing, dirty=False)
    if verb == "slice":
        return replace(thing, sliced=True)
    return replace(thing, warmth="hot" if verb == "heat" else "cold")


def _go(house: House, target: str) -> str:
    if target in house.doors:
        house.room, house.at = target, None
        return f"You go to the {target}."
    house.at = target
    return f"You go to {target}."


def _examine(house: House, thing: Thing) -> str:
    lamp = house.front()
    if lamp is not None and lamp.able.lights and lamp.lit:
        house.examined.add(thing.name)
        return f"You examine {thing.name} in the light of {lamp.name}."
    return f"You examine {thing.name}; the light is poor."


def facts(house: House) -> dict[str, dict[str, str]]:
    """Return the properties of every piece of furniture and every thing, hidden or not.

    Example::

        assert facts(begin(3).house)["egg 1"]["place"] == "on stove 1"
    """
    properties: dict[str, dict[str, str]] = {}
    for piece in house.furniture.values():
        openness = {"open": _yes(piece.open)} if piece.able.opens else {}
        properties[piece.name] = {
            "room": piece.room,
            **openness,
            **({"lit": _yes(piece.lit)} if piece.able.lights else {}),
        }
    for thing in house.things.values():
        properties[thing.name] = {
            "place": _describe_position(house, thing),
            "temperature": thing.warmth or "normal",
            **({"clean": _yes(not thing.dirty)} if thing.able.washable else {}),
            **({"sliced": _yes(thing.sliced)} if thing.able.slices else {}),
            **({"examined": _yes(thing.name in house.examined)} if thing.able.readable else {}),
        }
    return properties


def _describe_position(house: House, thing: Thing) -> str:
    return "carried" if thing.place is None else f"{house.furniture[thing.place].able.word} {thing.place}"


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def tell(house: House) -> str:
    """Return the current observation."""
    lines = [
        f"You are in the {house.room}. Doors lead to the {', '.join(house.doors[house.room])}.",
        f"Here are: {', '.join(map(_furniture, house.here()))}.",
    ]
    front = house.front()
    if front is not None:
        lines.append(_front(house, front))
    carried = ", ".join(_thing(thing) for thing in house.carried())
    lines.append(f"You carry {carried}." if carried else "You carry nothing.")
    return "\n".join(lines)


def _front(house: House, front: Furniture) -> str:
    if front.able.lights:
        return f"You are at {front.name}. It is {'on' if front.lit else 'off'}."
    if not front.shows:
        return f"You are at {front.name}. It is closed."
    lying = [_thing(thing) for thing in house.lying(front.name)]
    what = ", ".join(lying) or "nothing"
    return f"You are at {front.name}. {front.able.word.capitalize()} it: {what}."


def _furniture(piece: Furniture) -> str:
    if piece.able.opens:
        return f"{piece.name} ({'open' if piece.open else 'closed'})"
    return f"{piece.name} (on)" if piece.lit else piece.name


def _thing(thing: Thing) -> str:
    cleanness = "dirty" if thing.dirty else "clean" if thing.able.washable else ""
    states = ", ".join(filter(None, (cleanness, thing.warmth, "sliced" if thing.sliced else "")))
    return f"{thing.name} ({states})" if states else thing.name
