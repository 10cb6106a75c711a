"""The tools of every server: start, extend, fork, end and list sessions."""

from typing import Annotated

from pydantic import Field

from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Output
from mcp_servers.core._sessions import Session, Sessions
from mcp_servers.core._tool import tool

SESSIONS = "session"
"""Backend name of the session tools, which every server has."""


class StartedSession(Output):
    """A session."""

    session: str
    """Its handle: pass it as `session` to the tools that should work in it."""
    backends: list[str]
    """Backends live in it; others become live on first use."""


class ForkedSession(Output):
    """A copy of a session."""

    session: str
    """The handle of the copy."""
    parent: str
    """Handle of the session that was copied; it continues unchanged."""
    left_behind: list[str]
    """One line for each thing that could not be copied."""


class EndedSession(Output):
    """An ended session."""

    session: str
    """Its handle, no longer valid."""


class SessionSummary(Output):
    """One live session."""

    session: str
    """Its handle."""
    parent: str | None
    """Handle of the session that it was forked from."""
    backends: list[str]
    """Backends live in it."""
    running: int
    """Number of calls running in it."""
    age_seconds: float
    """Seconds since it was started."""
    idle_seconds: float
    """Seconds since its last use."""


class SessionList(Output):
    """All live sessions of the caller."""

    sessions: list[SessionSummary]
    """Oldest first."""


class SessionTools(Backend):
    """Tools that manage the sessions of a table."""

    name = SESSIONS
    description = (
        "Start, fork, end and list sessions: isolated places that keep their state from call to call."
    )

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    @tool(destructive=False, verb="start", title="Start a session")
    async def start_session(
        self,
        context: CallContext,
        backends: Annotated[
            list[str] | None,
            Field(description="Backends to make ready at once; others are made ready at first use."),
        ] = None,
        settings: Annotated[
            dict[str, dict[str, object]] | None,
            Field(description="Settings for this session, by the name of the backend that they are for."),
        ] = None,
        files_of: Annotated[
            str | None,
            Field(description="The handle of a session that has ended: the new one begins with its files."),
        ] = None,
    ) -> StartedSession:
        """Start a new, empty session with a workspace of its own and return its handle.

        Use it to work on something separately. End it with session_end when it is no longer needed.
        """
        session = await self._sessions.start(
            context.principal, backends=backends or (), settings=settings, files_of=files_of
        )
        return StartedSession(session=session.handle, backends=list(session.live))

    @tool(destructive=False, verb="add", title="Add backends to a session", interjects=True)
    async def add_backends(
        self,
        session: Session,
        settings: Annotated[
            dict[str, dict[str, object]],
            Field(description="Backends to make ready, each with its settings (may be empty)."),
        ],
    ) -> StartedSession:
        """Prepare backends in a running session; a live backend that gets new settings is restarted.

        Also resets the session's idle timer. Without this tool, a backend is prepared on first use.
        """
        await self._sessions.add(session, settings)
        return StartedSession(session=session.handle, backends=list(session.live))

    @tool(verb="remove", title="Remove backends from a session", interjects=True)
    async def remove_backends(
        self,
        session: Session,
        backends: Annotated[list[str], Field(description="Backends to end in the session.")],
    ) -> StartedSession:
        """End backends in a running session and release what they hold there. The session's files stay."""
        await self._sessions.remove(session, backends)
        return StartedSession(session=session.handle, backends=list(session.live))

    @tool(destructive=False, verb="fork", title="Fork a session", interjects=True)
    async def fork_session(self, session: Session) -> ForkedSession:
        """Copy a live session, with its files, variables and shell, and return the handle of the copy.

        Use it to try something without risk, or to follow several ideas from the same state: neither copy sees
        later changes in the other. Waits for calls that run in the session.
        """
        forked, left_behind = await self._sessions.fork(session)
        return ForkedSession(session=forked.handle, parent=session.handle, left_behind=list(left_behind))

    @tool(idempotent=True, verb="end", title="End a session", interjects=True)
    async def end_session(self, session: Session) -> EndedSession:
        """End a session: its programs are stopped and its files are deleted. Its forks continue."""
        await self._sessions.end(session)
        return EndedSession(session=session.handle)

    @tool(read_only=True, verb="list", title="List sessions")
    async def list_sessions(self, context: CallContext) -> SessionList:
        """List your live sessions, with their live backends and how long they have been idle."""
        return SessionList(sessions=session_summaries(self._sessions, context.principal))


def session_summaries(sessions: Sessions, principal: str) -> list[SessionSummary]:
    """Return the live sessions of a principal, oldest first."""
    return [
        SessionSummary(
            session=session.handle,
            parent=session.parent,
            backends=[*session.live],
            running=session.gate.running,
            age_seconds=sessions.age_seconds(session),
            idle_seconds=sessions.idle_seconds(session),
        )
        for session in sessions.list(principal)
    ]
