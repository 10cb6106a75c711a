"""State of a household: places and properties of things and furniture."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from agentflow.errors import ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.tasks._states import State, StateCondition
from agentflow.trace import Action

INSPECT = "world_inspect"
ACT = "world_act"
GOAL = "the task of the household"
"""Thing with the task of the seed: `words`, and `done` with the same words once it is done."""
_BY_THE_WAY = ("open", "lit")
"""Properties of furniture, which change on the way to a goal."""


class _Facts(Struct):
    facts: dict[str, dict[str, str]]
    task: str
    success: bool


class HouseholdState:
    """State of the `world` backend's household; the backend needs the setting `evaluate: true`.

    Example::

        state = await HouseholdState().read(sandbox)
        assert state["egg 1"]["place"] == "in fridge 1"
    """

    name = "embodied"
    """Name of the kind of task."""

    async def read(self, sandbox: Sandbox, conditions: Sequence[StateCondition] = ()) -> State:
        """Read the properties of everything, hidden or not."""
        result = await sandbox.execute(INSPECT)
        if result.error is not None:
            raise ToolFailure(result.error.kind, result.error.message)
        facts = msgspec.convert(result.data, _Facts)
        state: dict[str, Mapping[str, str]] = dict(facts.facts)
        return state | {GOAL: {"words": facts.task, "done": facts.task if facts.success else ""}}

    def probe(self, condition: StateCondition) -> tuple[Action, ...]:
        """Return the inspection."""
        return (Action(INSPECT, {}),)

    def differences(self, before: State, after: State) -> tuple[StateCondition, ...]:
        """Return the task of the seed if it is done; otherwise conditions on everything that changed."""
        old, new = before.get(GOAL, {}), after.get(GOAL, {})
        if old.get("words") != new.get("words"):
            return ()  # another episode was begun
        if new.get("done"):
            return (StateCondition(GOAL, "done", new["done"]),)
        return _things(before, after) or _furniture(before, after)

    def is_start(self, state: State) -> bool:
        """Tell whether the household reports its state."""
        return len(state) > 1

    def repeatable(self, before: Sequence[Action], actions: Sequence[Action]) -> bool:
        """Tell whether no action of the solution begins another episode."""
        return all(action.tool != "world_reset" for action in actions)

    def no_op(self) -> tuple[Action, ...]:
        """Look around."""
        return (Action(ACT, {"action": "look"}),)

    def shortcut(self, conditions: Sequence[StateCondition]) -> tuple[Action, ...]:
        """Return nothing: every action has a precondition."""
        return ()

    def describe(self, state: State) -> str:
        """List everything with its properties."""
        things = [f"{thing}: {_properties(values)}" for thing, values in state.items() if thing != GOAL]
        return "\n".join([f"Task of the seed: {state[GOAL]['words']}", *things])

    def says(self, condition: StateCondition) -> str:
        """Return a condition in words."""
        thing, value, yes = condition.thing, condition.value, condition.value == "yes"
        match condition.property:
            case "done":
                return value
            case "place":
                return f"you carry {thing}" if value == "carried" else f"{thing} is {value}"
            case "temperature":
                return f"{thing} is {'neither hot nor cold' if value == 'normal' else value}"
            case "examined":
                return f"{thing} has been examined in the light of a lamp"
            case "open":
                return f"{thing} is {'open' if yes else 'closed'}"
            case "lit":
                return f"{thing} is switched {'on' if yes else 'off'}"
            case _:
                return f"{thing} is {'' if yes else 'not '}{condition.property}"

    def must_name(self, condition: StateCondition, actions: Sequence[Action]) -> tuple[str, ...]:
        """Return the thing, and its place or state."""
        if condition.property == "place" and condition.value != "carried":
            return condition.thing, condition.value
        if condition.property == "temperature" and condition.value != "normal":
            return condition.thing, condition.value
        return (condition.value.rstrip("."),) if condition.property == "done" else (condition.thing,)

    def must_hide(self, condition: StateCondition, actions: Sequence[Action]) -> tuple[str, ...]:
        """Return nothing: a goal is not its way."""
        return ()


def _things(before: State, after: State) -> tuple[StateCondition, ...]:
    return tuple(
        StateCondition(thing, name, value)
        for thing, properties in after.items()
        if thing != GOAL
        for name, value in properties.items()
        if name not in _BY_THE_WAY and before.get(thing, {}).get(name) != value
    )


def _furniture(before: State, after: State) -> tuple[StateCondition, ...]:
    return tuple(
        StateCondition(thing, name, properties[name])
        for thing, properties in after.items()
        for name in _BY_THE_WAY
        if name in properties and before.get(thing, {}).get(name) != properties[name]
    )


def _properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in properties.items())
