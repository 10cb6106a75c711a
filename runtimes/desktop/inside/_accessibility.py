"""Accessibility tree of the applications, read over D-Bus."""

import time
from typing import Any

from runtimes.desktop.inside._dbus import BusConnection, BusError, BusTimeout, opened

_NAMES = "org.a11y.atspi"
_ROOT = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
_MOST, _DEEPEST, _SECONDS = 1500, 40, 20.0
_SCREEN, _CHARACTERS = 0, 200
# Bits of a state set that matter for interaction.
_STATES = {
    1: "active",
    4: "checked",
    7: "editable",
    9: "expandable",
    10: "expanded",
    12: "focused",
    23: "selected",
}
_SENSITIVE, _SHOWING = 24, 25
_MUTE = ("filler", "panel", "redundant object")
"""Roles without information unless they have a name: their children are listed in their place."""

Place = tuple[str, str]


def tree(address: str) -> str:
    """Return the tree as indented lines.

    :raises OSError: if there is no accessibility bus.
    """
    if not address:
        raise OSError("there is no accessibility bus")
    with opened(address) as bus:
        second: str = bus.call("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress")
    with opened(second) as bus:
        return _Walk(bus).lines()


class _Walk:
    """Walk over the tree, bounded in nodes and time."""

    def __init__(self, bus: BusConnection) -> None:
        self._bus = bus
        self._until = time.monotonic() + _SECONDS
        self._lines: list[str] = []
        self._cut = False

    def lines(self) -> str:
        for place in self._children(_ROOT):
            self._describe(place, 0, 0)
        return "\n".join([*self._lines, *(["…"] if self._cut else [])])

    def _describe(self, place: Place, depth: int, indent: int) -> None:
        if depth > _DEEPEST or len(self._lines) >= _MOST or time.monotonic() > self._until:
            self._cut = True
            return
        try:
            role: str = self._ask(place, "Accessible", "GetRoleName")
            states = self._states(place)
            # Applications never have the state "showing", but their children may.
            if depth and not states >> _SHOWING & 1:
                return
            name = str(self._bus.property(*place, f"{_NAMES}.Accessible", "Name"))
            says = bool(name) or role not in _MUTE
            if says:
                self._lines.append("  " * indent + self._line(place, role, name, states))
            children = self._children(place)
        except BusTimeout:
            self._cut = True
            return
        except BusError:
            return  # closed meanwhile
        for child in children:
            self._describe(child, depth + 1, indent + says)

    def _line(self, place: Place, role: str, name: str, states: int) -> str:
        parts = [role.replace(" ", "-"), _quoted(name)]
        parts += [name for bit, name in _STATES.items() if states >> bit & 1]
        if not states >> _SENSITIVE & 1 and role != "application":
            parts.append("disabled")
        offered = self._ask(place, "Accessible", "GetInterfaces")
        if f"{_NAMES}.Text" in offered:
            content = str(self._ask(place, "Text", "GetText", "ii", (0, _CHARACTERS)))
            parts += [f"= {_quoted(content)}"] if content and content != name else []
        if f"{_NAMES}.Component" in offered:
            x, y, width, height = self._ask(place, "Component", "GetExtents", "u", (_SCREEN,))
            parts.append(f"[{x},{y},{width},{height}]")
        return " ".join(parts)

    def _children(self, place: Place) -> list[Place]:
        return [(name, path) for name, path in self._ask(place, "Accessible", "GetChildren")]

    def _states(self, place: Place) -> int:
        low, high = self._ask(place, "Accessible", "GetState")
        return low | high << 32

    def _ask(
        self, place: Place, interface: str, method: str, signature: str = "", values: tuple[object, ...] = ()
    ) -> Any:  # noqa: ANN401  # whatever the method returns
        return self._bus.call(*place, f"{_NAMES}.{interface}", method, signature, values)


def _quoted(text: str) -> str:
    cut = " ".join(text.split())
    return '"' + cut.replace("\\", "\\\\").replace('"', '\\"') + '"'
