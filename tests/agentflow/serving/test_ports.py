"""A port reserved for a server, even while it is down."""

import socket

import pytest

from agentflow.serving._server import kept_port

HOST = "127.0.0.1"


@pytest.mark.promise("serving:restarts")
def test_a_reserved_port_is_available_only_to_its_server() -> None:
    with kept_port(HOST) as port:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, port))
            with socket.socket() as other, pytest.raises(OSError, match="already in use"):
                other.bind((HOST, port))
            with socket.create_server((HOST, port)), socket.create_connection((HOST, port)):
                pass
