"""Accessibility tree of the applications, read over D-Bus."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

# The library is untyped.
_library: Any = import_module("jeepney")
_blocking: Any = import_module("jeepney.io.blocking")
_wrappers: Any = import_module("jeepney.wrappers")


_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for an answer: starting applications are slow."""


class BusError(OSError):
    """Missing peer, or a peer that answers with an error."""


class BusTimeout(BusError):
    """Peer that does not answer."""


class BusConnection:
    """D-Bus connection."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401  # of the untyped library
        self._connection = connection

    def call(
        self,
        name: str,
        path: str,
        interface: str,
        method: str,
        signature: str = "",
        values: tuple[object, ...] = (),
    ) -> Any:  # noqa: ANN401  # whatever the method returns
        """Return the first value of a method's result.

        :raises BusError: if there is none.
        """
        address = _library.DBusAddress(path, bus_name=name, interface=interface)
        message = _library.new_method_call(address, method, signature or None, values)
        try:
            reply = self._connection.send_and_get_reply(message, timeout=_TIMEOUT_SECONDS)
            return _wrappers.unwrap_msg(reply)[0]
        except TimeoutError:
            raise BusTimeout(f"no answer within {_TIMEOUT_SECONDS:g} seconds") from None
        except _wrappers.DBusErrorResponse as error:
            raise BusError(str(error) or type(error).__name__) from None

    def property(self, name: str, path: str, interface: str, called: str) -> Any:  # noqa: ANN401  # of any type
        """Return the value of a property.

        :raises BusError: if there is none.
        """
        got = self.call(name, path, "org.freedesktop.DBus.Properties", "Get", "ss", (interface, called))
        return got[1]


@contextmanager
def opened(address: str) -> Generator[BusConnection]:
    """Connect, and close the connection at the end.

    :raises OSError: if the bus does not accept connections.
    """
    until = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            connection = _blocking.open_dbus_connection(address)
            break
        except (BlockingIOError, FileNotFoundError, ConnectionRefusedError):
            # It is still starting, or busy.
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    with connection:
        yield BusConnection(connection)


_NAMES = "org.a11y.atspi"
_ROOT = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
_MAX_LINES, _MAX_DEPTH, _SECONDS = 1500, 40, 20.0
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

Node = tuple[str, str]


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
        for node in self._children(_ROOT):
            self._describe(node, 0, 0)
        return "\n".join([*self._lines, *(["…"] if self._cut else [])])

    def _describe(self, node: Node, depth: int, indent: int) -> None:
        if depth > _MAX_DEPTH or len(self._lines) >= _MAX_LINES or time.monotonic() > self._until:
            self._cut = True
            return
        try:
            role: str = self._ask(node, "Accessible", "GetRoleName")
            low, high = self._ask(node, "Accessible", "GetState")
            states = low | high << 32
            # Applications never have the state "showing", but their children may.
            if depth and not states >> _SHOWING & 1:
                return
            name = str(self._bus.property(*node, f"{_NAMES}.Accessible", "Name"))
            says = bool(name) or role not in _MUTE
            if says:
                self._lines.append("  " * indent + self._line(node, role, name, states))
            children = self._children(node)
        except BusTimeout:
            self._cut = True
            return
        except BusError:
            return  # closed meanwhile
        for child in children:
            self._describe(child, depth + 1, indent + says)

    def _line(self, node: Node, role: str, name: str, states: int) -> str:
        parts = [role.replace(" ", "-"), _quoted(name)]
        parts += [name for bit, name in _STATES.items() if states >> bit & 1]
        if not states >> _SENSITIVE & 1 and role != "application":
            parts.append("disabled")
        offered = self._ask(node, "Accessible", "GetInterfaces")
        if f"{_NAMES}.Text" in offered:
            content = str(self._ask(node, "Text", "GetText", "ii", (0, _CHARACTERS)))
            parts += [f"= {_quoted(content)}"] if content and content != name else []
        if f"{_NAMES}.Component" in offered:
            x, y, width, height = self._ask(node, "Component", "GetExtents", "u", (_SCREEN,))
            parts.append(f"[{x},{y},{width},{height}]")
        return " ".join(parts)

    def _children(self, node: Node) -> list[Node]:
        return [(name, path) for name, path in self._ask(node, "Accessible", "GetChildren")]

    def _ask(
        self, node: Node, interface: str, method: str, signature: str = "", values: tuple[object, ...] = ()
    ) -> Any:  # noqa: ANN401  # whatever the method returns
        return self._bus.call(*node, f"{_NAMES}.{interface}", method, signature, values)


def _quoted(text: str) -> str:
    cut = " ".join(text.split())
    return '"' + cut.replace("\\", "\\\\").replace('"', '\\"') + '"'
