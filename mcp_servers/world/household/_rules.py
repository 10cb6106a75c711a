"""Rules of a household: legal actions and their effects."""

from dataclasses import replace

from mcp_servers.world.household._house import HANDS, Furniture, House, Thing


def actions(house: House) -> list[str]:
    """Return every legal action, always in the same order."""
    front = house.front()
    return [
        *(f"go to {room}" for room in house.doors[house.room]),
        *(f"go to {one.name}" for one in house.here() if one.name != house.at),
        *([] if front is None else _at(house, front)),
        *_with_hands(house),
        "look",
    ]


def _at(house: House, front: Furniture) -> list[str]:
    able, found, carried = front.able, list[str](), house.carried()
    if able.opens:
        found.append(f"{'close' if front.open else 'open'} {front.name}")
    if able.lights:
        found.append(f"turn {'off' if front.lit else 'on'} {front.name}")
    if front.shows and len(carried) < HANDS:
        found += [f"take {thing.name} from {front.name}" for thing in house.lying(front.name)]
    for thing in carried:
        if front.shows:
            found.append(f"put {thing.name} {able.word} {front.name}")
        if able.cleans and thing.able.washable:
            found.append(f"clean {thing.name} with {front.name}")
        if able.heats and thing.able.warms:
            found.append(f"heat {thing.name} with {front.name}")
        if able.cools and thing.able.warms:
            found.append(f"cool {thing.name} with {front.name}")
    return found


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


def _go(house: House, place: str) -> str:
    if place in house.doors:
        house.room, house.at = place, None
        return f"You go to the {place}."
    house.at = place
    return f"You go to {place}."


def _examine(house: House, thing: Thing) -> str:
    lamp = house.front()
    if lamp is not None and lamp.able.lights and lamp.lit:
        house.examined.add(thing.name)
        return f"You examine {thing.name} in the light of {lamp.name}."
    return f"You examine {thing.name}; the light is poor."
