"""Access to the machine of a session."""

from mcp_servers.vm._session_machine import SessionMachine
from runtimes import Machine
from tests.mcp_servers.live import Live

__all__ = ["machine_of"]


def machine_of(live: Live) -> Machine:
    """Return the machine of a session, for inspection."""
    return live.table.sessions.find(live.session, "local").get(SessionMachine).machine
