"""The browser backend."""

from collections.abc import Mapping

from mcp_servers.browser._chromium import Engine
from mcp_servers.browser._element_tools import NO_CODE, HandlingTools
from mcp_servers.browser._forking import fork_state
from mcp_servers.browser._inspection_tools import InspectingTools, PdfTools
from mcp_servers.browser._mouse_tools import PointingTools
from mcp_servers.browser._navigation import GoingTools
from mcp_servers.browser._settings import SERVERS_OWN, BrowserSettings
from mcp_servers.browser._state import BrowserState
from mcp_servers.core._backend import Backend
from mcp_servers.core._running import check_settings, read_settings
from mcp_servers.core._session import Session

__all__ = ["BrowserBackend"]

_GROUPS: dict[str, tuple[type, ...]] = {
    "core": (GoingTools, HandlingTools, InspectingTools),
    "vision": (PointingTools,),
    "pdf": (PdfTools,),
}


class BrowserBackend(PdfTools, PointingTools, InspectingTools, HandlingTools, GoingTools, Backend):
    """Web pages in a confined Chromium: one for the server, with a context of its own for each session."""

    name = "browser"
    description = "Open web pages, look at them, click, type, and take pictures of them."
    reserved = SERVERS_OWN

    def __init__(self) -> None:
        self._engine = Engine(BrowserSettings())

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that can't be used."""
        check_settings(BrowserSettings, self.name, settings)

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        """The tools of groups that are switched off, and the one that no server should have."""
        caps = read_settings(BrowserSettings, self.name, settings).caps
        off = {
            verb: f"it belongs to the group {group!r}, which the setting browser.caps leaves out."
            for group, parts in _GROUPS.items()
            if group not in caps
            for part in parts
            for verb in vars(part)
        }
        return {**off, "run_code_unsafe": NO_CODE}

    def configure(self, settings: Mapping[str, object]) -> None:
        """Take the server's own settings."""
        self._engine = Engine(read_settings(BrowserSettings, self.name, settings))

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Read the session's settings; its context is made when a tool needs it."""
        session.put(BrowserState(self._engine, read_settings(BrowserSettings, self.name, settings)))

    async def fork(self, session: Session, forked: Session) -> tuple[str, ...]:
        """Open the same pages with the same storage, and bring them to where the parent's are."""
        state = session.get(BrowserState)
        copy = BrowserState(self._engine, state.settings)
        forked.put(copy)
        async with state.turn:
            try:
                return await fork_state(state, copy)
            except BaseException:
                await copy.close()
                raise

    async def cleanup(self, session: Session) -> None:
        """Close the session's context."""
        try:
            state = session.get(BrowserState)
        except KeyError:
            return
        await state.close()

    async def shutdown(self) -> None:
        """End the browser."""
        await self._engine.close()
