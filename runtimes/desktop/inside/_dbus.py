"""Typed D-Bus connection with the few calls that the accessibility tree needs."""

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
