"""A connection to a D-Bus: the few calls that reading windows needs, with types."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__all__ = ["Bus", "BusError", "BusTimeout", "opened"]

# The library tells no types.
_library: Any = import_module("jeepney")
_blocking: Any = import_module("jeepney.io.blocking")
_wrappers: Any = import_module("jeepney.wrappers")


_PATIENCE = 10.0
"""Seconds for one answer: applications that are starting are slow."""


class BusError(OSError):
    """Who was asked is not there, or answers with an error."""


class BusTimeout(BusError):
    """Who was asked does not answer."""


class Bus:
    """One connection."""

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
        """The first value that a method returns.

        :raises BusError: if there is none.
        """
        address = _library.DBusAddress(path, bus_name=name, interface=interface)
        message = _library.new_method_call(address, method, signature or None, values)
        try:
            reply = self._connection.send_and_get_reply(message, timeout=_PATIENCE)
            return _wrappers.unwrap_msg(reply)[0]
        except TimeoutError:
            raise BusTimeout(f"no answer within {_PATIENCE:g} seconds") from None
        except _wrappers.DBusErrorResponse as error:
            raise BusError(str(error) or type(error).__name__) from None

    def property(self, name: str, path: str, interface: str, called: str) -> Any:  # noqa: ANN401  # of any type
        """A property's value.

        :raises BusError: if there is none.
        """
        got = self.call(name, path, "org.freedesktop.DBus.Properties", "Get", "ss", (interface, called))
        return got[1]


@contextmanager
def opened(address: str) -> Generator[Bus]:
    """A connection, closed at the end.

    :raises OSError: if nobody listens there.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            connection = _blocking.open_dbus_connection(address)
            break
        except (BlockingIOError, FileNotFoundError, ConnectionRefusedError):
            # It is just being started, or has no time.
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    with connection:
        yield Bus(connection)
