"""The accessibility tree: what applications tell of what is in their windows, asked by D-Bus."""

import time
from typing import Any

from jeepney import DBusAddress, Properties, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection
from jeepney.wrappers import DBusErrorResponse, unwrap_msg

__all__ = ["tree"]

_ROOT = "/org/a11y/atspi/accessible/root"
_NAMES = "org.a11y.atspi"
_REGISTRY = f"{_NAMES}.Registry"
_MOST, _DEEPEST, _SECONDS = 1500, 40, 10.0
_SCREEN, _CHARACTERS = 0, 200
# Bits of a state set that say something about what can be done with a node.
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

Place = tuple[str, str]


def tree(address: str) -> str:
    """The tree as indented lines.

    :raises OSError: if nothing here tells.
    """
    if not address:
        raise OSError("there is no bus")
    try:
        with open_dbus_connection(address) as bus:
            told = DBusAddress("/org/a11y/bus", bus_name="org.a11y.Bus", interface="org.a11y.Bus")
            second: str = _call(bus, told, "GetAddress")[0]
        with open_dbus_connection(second) as connection:
            return _Walk(connection).lines()
    except (DBusErrorResponse, TimeoutError, KeyError) as error:
        raise OSError(str(error) or type(error).__name__) from None


class _Walk:
    """One walk over the tree, bounded in nodes and time."""

    def __init__(self, connection: DBusConnection) -> None:
        self._connection = connection
        self._until = time.monotonic() + _SECONDS
        self._lines: list[str] = []

    def lines(self) -> str:
        for place in self._children((_REGISTRY, _ROOT)):
            self._describe(place, 0)
        return "\n".join(self._lines)

    def _describe(self, place: Place, depth: int) -> None:
        if depth > _DEEPEST or len(self._lines) >= _MOST or time.monotonic() > self._until:
            if self._lines and self._lines[-1] != "…":
                self._lines.append("…")
            return
        try:
            role = self._ask(place, "Accessible", "GetRoleName")[0]
            states = self._states(place)
            # Applications themselves are never showing; what is in them may be.
            if depth and not states >> _SHOWING & 1:
                return
            self._lines.append("  " * depth + self._line(place, role, states))
            children = self._children(place)
        except (DBusErrorResponse, TimeoutError):
            return  # it was closed meanwhile, or does not answer
        for child in children:
            self._describe(child, depth + 1)

    def _line(self, place: Place, role: str, states: int) -> str:
        parts = [role.replace(" ", "-"), _quoted(self._property(place, "Name"))]
        parts += [name for bit, name in _STATES.items() if states >> bit & 1]
        if not states >> _SENSITIVE & 1 and role != "application":
            parts.append("disabled")
        offered = self._ask(place, "Accessible", "GetInterfaces")[0]
        if f"{_NAMES}.Text" in offered:
            content = self._ask(place, "Text", "GetText", "ii", (0, _CHARACTERS))[0]
            parts += [f"= {_quoted(content)}"] if content else []
        if f"{_NAMES}.Component" in offered:
            x, y, width, height = self._ask(place, "Component", "GetExtents", "u", (_SCREEN,))[0]
            parts.append(f"[{x},{y},{width},{height}]")
        return " ".join(parts)

    def _children(self, place: Place) -> list[Place]:
        return [(name, path) for name, path in self._ask(place, "Accessible", "GetChildren")[0]]

    def _states(self, place: Place) -> int:
        low, high = self._ask(place, "Accessible", "GetState")[0]
        return low | high << 32

    def _property(self, place: Place, name: str) -> str:
        address = DBusAddress(place[1], bus_name=place[0], interface=f"{_NAMES}.Accessible")
        reply = self._connection.send_and_get_reply(Properties(address).get(name), timeout=1.0)
        return str(unwrap_msg(reply)[0][1])

    def _ask(
        self, place: Place, interface: str, method: str, signature: str = "", values: tuple[int, ...] = ()
    ) -> Any:  # noqa: ANN401  # whatever the method returns
        address = DBusAddress(place[1], bus_name=place[0], interface=f"{_NAMES}.{interface}")
        return _call(self._connection, address, method, signature, values)


def _call(
    connection: DBusConnection,
    address: DBusAddress,
    method: str,
    signature: str = "",
    values: tuple[int, ...] = (),
) -> Any:  # noqa: ANN401  # whatever the method returns
    message = new_method_call(address, method, signature or None, values)
    return unwrap_msg(connection.send_and_get_reply(message, timeout=2.0))


def _quoted(text: str) -> str:
    cut = " ".join(text.split())
    return '"' + cut.replace("\\", "\\\\").replace('"', '\\"') + '"'
