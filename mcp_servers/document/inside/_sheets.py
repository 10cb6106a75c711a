"""XLSX files: a sheet is a page, a section and a table."""

import datetime
import os
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from mcp_servers.document.inside._draft import Draft

__all__ = ["Sheets"]

Foreign: TypeAlias = Any

LARGE: Final = 8 * 1024 * 1024
"""A larger file is read as a stream: without merged fields."""
MOST_COLUMNS = 1_000
MOST_MERGED = 10_000


class Sheets:
    """An open XLSX file."""

    def __init__(self, path: str) -> None:
        import openpyxl

        self._large = os.path.getsize(path) > LARGE
        self._file: Foreign = openpyxl.load_workbook(path, read_only=self._large, data_only=True)
        # A file that no spreadsheet program has saved has formulas without values.
        self._formulas: Foreign = None if self._large else openpyxl.load_workbook(path)

    def draft(self) -> Draft:
        """Its sheets in order."""
        draft = Draft("xlsx", self._file.properties.title or "")
        for sheet in self._file.worksheets:
            draft.page()
            draft.heading(sheet.title, 1)
            draft.table(self._stream(sheet) if self._large else self._rows(sheet), sheet.title)
        return draft

    def _rows(self, sheet: Foreign) -> Iterator[list[object]]:
        formulas = self._formulas[sheet.title]
        merged = _merged(sheet)
        for row in sheet.iter_rows(max_col=min(sheet.max_column, MOST_COLUMNS)):
            values: list[object] = []
            for cell in row:
                y, x = merged.get((cell.row, cell.column), (cell.row, cell.column))
                value = sheet.cell(y, x).value
                values.append(_plain(formulas.cell(y, x).value if value is None else value))
            yield values

    @staticmethod
    def _stream(sheet: Foreign) -> Iterator[list[object]]:
        # What it says of its own size may be anything.
        sheet.reset_dimensions()
        for row in sheet.iter_rows(max_col=MOST_COLUMNS, values_only=True):
            values = [_plain(value) for value in row]
            while values and values[-1] is None:
                values.pop()
            yield values


def _plain(value: object) -> object:
    """A day without its midnight."""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time.min:
        return value.date()
    return value


def _merged(sheet: Foreign) -> dict[tuple[int, int], tuple[int, int]]:
    """Where the value of each merged field stands."""
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for part in sheet.merged_cells.ranges:
        for y in range(part.min_row, min(part.max_row, sheet.max_row) + 1):
            for x in range(part.min_col, min(part.max_col, MOST_COLUMNS) + 1):
                if len(places) >= MOST_MERGED:
                    return places
                places[y, x] = (part.min_row, part.min_col)
    return places
