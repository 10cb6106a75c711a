"""Conversion of documents and search hits to tool results and to text for a model."""

from collections.abc import Sequence

from mcp_servers.document._document import DocumentTable, ParsedDocument
from mcp_servers.document._files import DocumentFile
from mcp_servers.document._results import (
    DocumentSection,
    ListedDocument,
    Outline,
    Part,
    PassageHit,
    TableData,
    UnreadDocument,
)


def listed(files: Sequence[DocumentFile]) -> list[ListedDocument]:
    """List the documents."""
    return [ListedDocument(document=file.name, size=file.size) for file in files]


def outlined(name: str, document: ParsedDocument, depth: int | None, limit: int) -> Outline:
    """Return the outline of a document."""
    content = document.content
    nodes = [node for node in document.nodes if depth is None or node.level <= depth]
    return Outline(
        document=name,
        format=content.kind,
        title=content.title,
        pages=len(content.pages),
        characters=len(document.text),
        tables=None if content.kind == "pdf" else len(content.tables),
        pictures=len(content.pictures),
        sections=[
            DocumentSection(
                id=node.id,
                title=node.title,
                page=document.page_at(node.start),
                start=node.start,
                end=node.end,
            )
            for node in nodes[:limit]
        ],
        total_sections=len(nodes),
        notes=content.notes,
    )


def outline_text(outline: Outline) -> str:
    """Format an outline for a model."""
    if outline.document is None:
        return "\n".join(f"{one.document} ({one.size} bytes)" for one in outline.documents) or "no documents"
    facts = [str(outline.format), f"{outline.characters} characters"]
    facts += [f"{outline.pages} pages"] if outline.pages else []
    lines = [f"{outline.document}{': ' if outline.title else ''}{outline.title} ({', '.join(facts)})"]
    for one in outline.sections:
        where = f", page {one.page}" if one.page else ""
        indent = "  " * one.id.count(".")
        lines.append(f"{indent}[{one.id}] {one.title}{where} ({one.end - one.start} characters)")
    if outline.total_sections > len(outline.sections):
        lines.append(f"… {outline.total_sections - len(outline.sections)} more")
    return "\n".join([*lines, *outline.notes])


def _place(document: str, section: str, title: str, page: int | None, start: int, end: int) -> str:
    where = f", page {page}" if page else ""
    return f"{document} [{section}]{' ' if title else ''}{title}{where}, {start}-{end}"


def hits_text(hits: Sequence[PassageHit], unread: Sequence[UnreadDocument]) -> str:
    """Format search hits for a model."""
    shown = [
        f"{_place(hit.document, hit.section, hit.title, hit.page, hit.start, hit.end)}\n{hit.text}"
        for hit in hits
    ]
    return "\n\n".join([*(shown or ["no hits"]), *(one.reason for one in unread)])


def parts_text(document: str, parts: Sequence[Part], answer: str | None, note: str) -> str:
    """Format parts of a document for a model."""
    shown = [
        f"{_place(document, part.section, part.title, part.page, part.start, part.end)}\n{part.text.strip()}"
        for part in parts
    ]
    answers = [answer] if answer else []
    return "\n\n".join([*answers, *shown, *([note] if note else [])])


def tabled(document: ParsedDocument, tables: Sequence[DocumentTable], limit: int) -> list[TableData]:
    """Return tables with their section, page and position."""
    found: list[TableData] = []
    for table in tables:
        in_text = table.page is None
        span = None if table.page is None else document.page_span(table.page)
        place = table.start if in_text or span is None else span[0]
        found.append(
            TableData(
                section=document.node_at(place).id,
                page=table.page or document.page_at(place),
                title=table.title,
                rows=table.rows[:limit],
                total_rows=len(table.rows),
                start=table.start if in_text else None,
                end=table.end if in_text else None,
            )
        )
    return found


def tables_text(document: str, tables: Sequence[TableData]) -> str:
    """Format tables for a model."""
    shown: list[str] = []
    for table in tables:
        where = f", page {table.page}" if table.page else ""
        lines = [f"{document} [{table.section}]{' ' if table.title else ''}{table.title}{where}"]
        lines += (" | ".join("" if value is None else str(value) for value in row) for row in table.rows)
        if table.total_rows > len(table.rows):
            lines.append(f"… {table.total_rows - len(table.rows)} more rows")
        shown.append("\n".join(lines))
    return "\n\n".join(shown) or "no tables"
