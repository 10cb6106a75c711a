"""PPTX files: a slide is a page, and a section."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from mcp_servers.document.inside._draft import Draft, as_line

if TYPE_CHECKING:
    from pptx.presentation import Presentation

__all__ = ["Slides"]

Foreign: TypeAlias = Any

DEEPEST = 16


class Slides:
    """An open PPTX file."""

    def __init__(self, path: str) -> None:
        import pptx

        self._file: Presentation = pptx.Presentation(path)

    def draft(self) -> Draft:
        """Its slides in order."""
        draft = Draft("pptx", self._file.core_properties.title)
        for number, slide in enumerate(self._file.slides, 1):
            title: Foreign = slide.shapes.title
            text = as_line(title.text_frame.text) if title is not None else ""
            draft.page()
            draft.heading(text or f"Slide {number}", 1)
            for shape in _flat(slide.shapes, 0):
                if title is None or shape.shape_id != title.shape_id:
                    _write(shape, draft, number)
            if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
                notes = slide.notes_slide.notes_text_frame.text
                draft.paragraph(f"Notes: {notes}" if notes.strip() else "")
        return draft

    def picture(self, key: str) -> bytes:
        """The picture of that key."""
        number, _, shape_id = key.partition("/")
        slide = self._file.slides[int(number) - 1]
        shape = next(shape for shape in _flat(slide.shapes, 0) if shape.shape_id == int(shape_id))
        return shape.image.blob


def _flat(shapes: Iterable[Foreign], depth: int) -> Iterator[Foreign]:
    """Shapes, and those in groups."""
    for shape in shapes:
        if hasattr(shape, "shapes") and depth < DEEPEST:
            yield from _flat(shape.shapes, depth + 1)
        else:
            yield shape


def _write(shape: Foreign, draft: Draft, number: int) -> None:
    if getattr(shape, "has_table", False):
        draft.table(_rows(shape.table), shape.name)
    elif getattr(shape, "has_chart", False):
        draft.table(_chart(shape.chart), shape.name)
    elif hasattr(shape, "image"):
        draft.picture(f"{number}/{shape.shape_id}", _described(shape))
    elif getattr(shape, "has_text_frame", False):
        lines = ("  " * paragraph.level + paragraph.text for paragraph in shape.text_frame.paragraphs)
        draft.paragraph("\n".join(line for line in lines if line.strip()))


def _described(shape: Foreign) -> str:
    marks = shape._element.xpath(".//p:cNvPr")
    return (marks[0].get("descr") or "") if marks else ""


def _rows(table: Foreign) -> Iterator[list[str]]:
    """The fields, row by row; a field that was merged stands in each place that it covers."""
    covered: dict[tuple[int, int], str] = {}
    for y, row in enumerate(table.rows):
        texts: list[str] = []
        for x, cell in enumerate(row.cells):
            text: str = cell.text_frame.text
            if cell.is_merge_origin:
                for place in (
                    (y + j, x + i) for j in range(cell.span_height) for i in range(cell.span_width)
                ):
                    covered[place] = text
            texts.append(covered.get((y, x), text))
        yield texts


def _chart(chart: Foreign) -> Iterator[list[object]]:
    """What a chart shows: its series as columns."""
    series = [one for plot in chart.plots for one in plot.series]
    plot = next(iter(chart.plots), None)
    names = [str(category) for category in plot.categories] if plot is not None else []
    yield [None, *(one.name for one in series)]
    columns = [list(one.values) for one in series]
    for place in range(max(map(len, columns), default=0)):
        name = names[place] if place < len(names) else str(place + 1)
        yield [name, *(column[place] if place < len(column) else None for column in columns)]
