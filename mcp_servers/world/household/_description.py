"""Description of a household, as far as the agent can see."""

from collections.abc import Sequence

from mcp_servers.world.household._house import Furniture, House, Thing


def tell(house: House) -> str:
    """Return the current observation."""
    lines = [
        f"You are in the {house.room}. Doors lead to the {_listed(house.doors[house.room])}.",
        f"Here are: {_listed([_furniture(one) for one in house.here()])}.",
    ]
    front = house.front()
    if front is not None:
        lines.append(_front(house, front))
    carried = [_thing(thing) for thing in house.carried()]
    lines.append(f"You carry {_listed(carried)}." if carried else "You carry nothing.")
    return "\n".join(lines)


def _front(house: House, front: Furniture) -> str:
    if front.able.lights:
        return f"You are at {front.name}. It is {'on' if front.lit else 'off'}."
    if not front.shows:
        return f"You are at {front.name}. It is closed."
    lying = [_thing(thing) for thing in house.lying(front.name)]
    what = _listed(lying) if lying else "nothing"
    return f"You are at {front.name}. {front.able.word.capitalize()} it: {what}."


def _furniture(one: Furniture) -> str:
    if one.able.opens:
        return f"{one.name} ({'open' if one.open else 'closed'})"
    return f"{one.name} (on)" if one.lit else one.name


def _thing(thing: Thing) -> str:
    states = [
        "dirty" if thing.dirty else "clean" if thing.able.washable else "",
        thing.warmth,
        "sliced" if thing.sliced else "",
    ]
    said = ", ".join(state for state in states if state)
    return f"{thing.name} ({said})" if said else thing.name


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
