"""States of an environment: properties of things, read outside the agent's channel, and conditions on them."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from agentflow.sandbox import Sandbox
from agentflow.tasks._contract import TaskPredicate, TaskRelation
from agentflow.trace import Action

State: TypeAlias = Mapping[str, Mapping[str, str]]
"""Thing -> property -> value. A thing that is not there is missing."""

ABSENT = "absent"
"""Property of a thing that must not be there."""


class StateCondition(Struct, frozen=True):
    """Condition on a state: a property of a thing has a value."""

    thing: str
    """Name of the thing: a path, a command, a piece of furniture."""
    property: str
    """Name of the property; `absent`: the thing is not there."""
    value: str = ""
    """The value, or a text that it contains."""
    contains: bool = False
    """The value contains the text as whole lines, instead of being equal to it."""

    def holds(self, state: State) -> bool:
        """Tell whether it holds in a state."""
        if self.property == ABSENT:
            return self.thing not in state
        value = state.get(self.thing, {}).get(self.property)
        if value is None:
            return False
        if self.contains:
            return f"\n{self.value}\n" in f"\n{value}\n"
        return value == self.value

    def predicate(self, says: str, probe: tuple[Action, ...]) -> TaskPredicate:
        """Return it as a predicate of a task."""
        relation = TaskRelation.CONTAINS if self.contains else TaskRelation.EQUAL
        expected = {"thing": self.thing, "property": self.property, "value": self.value}
        return TaskPredicate(says=says, probe=probe, relation=relation, expected=expected)

    @classmethod
    def of(cls, predicate: TaskPredicate) -> "StateCondition":
        """Return the condition of a predicate."""
        return cls(**predicate.expected, contains=predicate.relation is TaskRelation.CONTAINS)


class StateReader(Protocol):
    """State of one kind of environment. See docs/tasks.md."""

    @property
    def name(self) -> str:
        """Name of the kind of task."""
        ...

    async def read(self, sandbox: Sandbox, conditions: Sequence[StateCondition] = ()) -> State:
        """Read the state of a session that the agent does not use any more; reading may change it.

        :param conditions: conditions that will be evaluated; some need further readings, such as the output of a command.
        :raises ToolFailure: if it can't be read.
        """
        ...

    def probe(self, condition: StateCondition) -> tuple[Action, ...]:
        """Return the tool calls that read the value of a condition."""
        ...

    def differences(self, before: State, after: State) -> tuple[StateCondition, ...]:
        """Return conditions that hold after and not before, in a fixed order."""
        ...

    def is_start(self, state: State) -> bool:
        """Tell whether a task may begin in a state."""
        ...

    def repeatable(self, before: Sequence[Action], actions: Sequence[Action]) -> bool:
        """Tell whether actions lead to the same state at any time and on any machine, as far as their text shows.

        :param before: actions that lead to the initial state.
        :param actions: actions of the solution.
        """
        ...

    def no_op(self) -> tuple[Action, ...]:
        """Return actions without effect."""
        ...

    def shortcut(self, conditions: Sequence[StateCondition]) -> tuple[Action, ...]:
        """Return an attempt to pass without solving; empty if there is none."""
        ...

    def describe(self, state: State) -> str:
        """Describe an initial state for the author of an instruction."""
        ...

    def says(self, condition: StateCondition) -> str:
        """Return a condition in words."""
        ...

    def must_name(self, condition: StateCondition, actions: Sequence[Action]) -> tuple[str, ...]:
        """Return texts that the instruction must contain."""
        ...

    def must_hide(self, condition: StateCondition, actions: Sequence[Action]) -> tuple[str, ...]:
        """Return texts that would give the solution away."""
        ...
