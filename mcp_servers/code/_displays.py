"""Conversion of displayed output into data and images. Data from a sandbox is validated, never trusted."""

from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from mcp_servers.code._results import DisplayedTable, RichOutput, ShownImage, Variable
from mcp_servers.code._settings import CodeSettings
from mcp_servers.core._call import CallContext, Image
from mcp_servers.core._running import shown
from mcp_servers.core._session import Session
from runtimes import Display

TABLE_MIME = "application/vnd.agentflow.table+json"
"""MIME type of a structured table."""

VARIABLES_MIME = "application/vnd.agentflow.variables+json"
"""MIME type of the list of session variables."""

M = TypeVar("M")

_PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_table = TypeAdapter(DisplayedTable)
_variables = TypeAdapter(list[Variable])


@dataclass(slots=True)
class CollectedDisplays:
    """Displayed output of one run."""

    tables: list[DisplayedTable] = field(default_factory=list[DisplayedTable])
    """Tables."""
    images: list[ShownImage] = field(default_factory=list[ShownImage])
    """Images, which are shown beside the data."""
    others: list[RichOutput] = field(default_factory=list[RichOutput])
    """Other output, as text."""

    def add(self, display: Display, settings: CodeSettings, session: Session, context: CallContext) -> None:
        """Add one display."""
        if display.mime in _PICTURES:
            self._add_picture(display, settings, session, context)
            return
        table = _parsed(_table, display) if display.mime == TABLE_MIME else None
        if table is not None:
            self.tables.append(table)
            return
        text = display.data.decode("utf-8", "replace")
        cut = shown(text, "display.txt", settings.output_characters, session, context)
        self.others.append(RichOutput(mime=display.mime, text=cut))

    def _add_picture(
        self, display: Display, settings: CodeSettings, session: Session, context: CallContext
    ) -> None:
        number = len(self.images) + 1
        link = session.keep(f"picture-{number}.{_PICTURES[display.mime]}", display.mime, display.data)
        context.show(Image(display.data, display.mime) if number <= settings.images else link)
        self.images.append(ShownImage(mime=display.mime, size=len(display.data), resource=link.uri))


def first_table(displays: tuple[Display, ...]) -> DisplayedTable | None:
    """Return the first table among the displays."""
    tables = (_parsed(_table, display) for display in displays if display.mime == TABLE_MIME)
    return next((table for table in tables if table is not None), None)


def first_variables(displays: tuple[Display, ...]) -> list[Variable]:
    """Return the first list of variables among the displays; empty if there is none."""
    found = (_parsed(_variables, display) for display in displays if display.mime == VARIABLES_MIME)
    return next((variables for variables in found if variables is not None), list[Variable]())


def _parsed(adapter: TypeAdapter[M], display: Display) -> M | None:
    try:
        return adapter.validate_json(display.data)
    except ValidationError:
        return None
