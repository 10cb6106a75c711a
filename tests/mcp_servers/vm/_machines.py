"""The machine behind a session."""

from mcp_servers.vm._acting import Acting
from runtimes import Machine
from tests.mcp_servers.live import Live

__all__ = ["machine_of"]


def machine_of(live: Live) -> Machine:
    """The machine of a session, to look inside."""
    return live.table.sessions.find(live.session, "local").get(Acting).machine
