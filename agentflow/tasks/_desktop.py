"""State of a desktop: the files of its workspace, and its open windows."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from agentflow.errors import ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.tasks._states import ABSENT, State, StateCondition
from agentflow.tasks._terminal import TerminalState
from agentflow.trace import Action

EVALUATE = "vm_evaluate"
_WINDOW = "window "
_WINDOWS = {
    "func": "exact_match",
    "result": {"type": "vm_window_list"},
    "expected": {"type": "rule", "rules": {"expected": ""}},
}


class _Comparison(Struct):
    result: str


class _Evaluation(Struct):
    results: list[_Comparison]


class DesktopState:
    """State of a desktop: files as in a terminal, and windows by their titles.

    A running desktop can't be forked: states are read after repeating the actions, and the state of an agent's attempt is read in its
    own session, outside the screen. Setup actions use other tools than `vm_*`.

    Example::

        state = await DesktopState().read(sandbox)
        assert "window Editor" in state
    """

    name = "gui"
    """Name of the kind of task."""

    def __init__(self) -> None:
        self._files = TerminalState()

    async def read(self, sandbox: Sandbox, conditions: Sequence[StateCondition] = ()) -> State:
        """Read the windows, then the files."""
        result = await sandbox.execute(EVALUATE, {"evaluator": _WINDOWS})
        if result.error is not None:
            raise ToolFailure(result.error.kind, result.error.message)
        titles = msgspec.convert(result.data, _Evaluation).results[0].result.splitlines()
        windows: dict[str, Mapping[str, str]] = {
            f"{_WINDOW}{title}": {"open": "yes"} for title in titles if title
        }
        return windows | dict(await self._files.read(sandbox, conditions))

    def probe(self, condition: StateCondition) -> tuple[Action, ...]:
        """Return the inspection that reads the value of a condition."""
        if condition.thing.startswith(_WINDOW):
            return (Action(EVALUATE, {"evaluator": _WINDOWS}),)
        return self._files.probe(condition)

    def differences(self, before: State, after: State) -> tuple[StateCondition, ...]:
        """Return conditions on files, or on windows if no file differs."""
        files = self._files.differences(_files(before), _files(after))
        opened = [
            StateCondition(window, "open", "yes") for window in sorted(_windows(after) - _windows(before))
        ]
        closed = [StateCondition(window, ABSENT) for window in sorted(_windows(before) - _windows(after))]
        return files or (*opened, *closed)

    def is_start(self, state: State) -> bool:
        """Accept any state."""
        return True

    def repeatable(self, before: Sequence[Action], actions: Sequence[Action]) -> bool:
        """Tell whether the solution uses the desktop alone."""
        return all(action.tool.startswith("vm_") for action in actions)

    def no_op(self) -> tuple[Action, ...]:
        """Look at the screen."""
        return (Action("vm_screenshot", {}),)

    def shortcut(self, conditions: Sequence[StateCondition]) -> tuple[Action, ...]:
        """Create the files that are asked for, without content."""
        return self._files.shortcut(
            [condition for condition in conditions if not condition.thing.startswith(_WINDOW)]
        )

    def describe(self, state: State) -> str:
        """List the windows, and the files with their text."""
        windows = "\n".join(sorted(_windows(state))) or "no window"
        return f"{windows}\n{self._files.describe(_files(state))}".strip()

    def says(self, condition: StateCondition) -> str:
        """Return a condition in words."""
        if not condition.thing.startswith(_WINDOW):
            return self._files.says(condition)
        verb = "is closed" if condition.property == ABSENT else "is open"
        return f"the {_WINDOW}`{condition.thing.removeprefix(_WINDOW)}` {verb}"

    def must_name(self, condition: StateCondition, actions: Sequence[Action]) -> tuple[str, ...]:
        """Return the title of a window, or what a file needs."""
        if condition.thing.startswith(_WINDOW):
            return (condition.thing.removeprefix(_WINDOW),)
        return self._files.must_name(condition, actions)

    def must_hide(self, condition: StateCondition, actions: Sequence[Action]) -> tuple[str, ...]:
        """Return content that is to be derived."""
        return () if condition.thing.startswith(_WINDOW) else self._files.must_hide(condition, actions)


def _windows(state: State) -> set[str]:
    return {thing for thing in state if thing.startswith(_WINDOW)}


def _files(state: State) -> State:
    return {thing: properties for thing, properties in state.items() if not thing.startswith(_WINDOW)}
