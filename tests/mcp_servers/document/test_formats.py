"""Content read from files of each format."""

from pathlib import Path

import pytest

from mcp_servers import ToolTable
from tests.mcp_servers.document import _made
from tests.mcp_servers.document._reading import Reader, images, reader_of


async def sections(reader: Reader, document: str) -> list[tuple[object, object]]:
    outline = await reader.rows("outline", "sections", document=document)
    return [(section["id"], section["title"]) for section in outline]


async def tables(reader: Reader, document: str, **where: object) -> list[object]:
    return [table["rows"] for table in await reader.rows("tables", "tables", document=document, **where)]


@pytest.mark.promise("document:pdf")
async def test_a_pdf_has_its_headings_as_sections_and_its_pages(reader: Reader) -> None:
    outline = await reader.data("outline", document="book.pdf")
    assert (outline["format"], outline["title"], outline["pages"]) == ("pdf", "A book of ships", 3)
    assert await sections(reader, "book.pdf") == [("1", "Chapter 1"), ("2", "Chapter 2"), ("3", "Chapter 3")]
    second = await reader.text(document="book.pdf", pages=2)
    assert second.startswith("Chapter 2\nLine 0 of page 2 tells about ships.\n")
    assert second == await reader.text(document="book.pdf", section_ids="2")


@pytest.mark.promise("document:pdf")
async def test_a_pdf_with_an_outline_has_its_entries_as_sections(reader: Reader) -> None:
    titles = await sections(reader, "outlined.pdf")
    assert titles[:3] == [("1", "Chapter 1"), ("1.1", "Line 9 of page 1"), ("2", "Chapter 2")]
    inner = await reader.text(document="outlined.pdf", section_ids="1.1")
    assert inner.startswith("Line 9 of page 1 tells")
    assert "Chapter 2" not in inner


@pytest.mark.promise("document:tables")
async def test_ruled_tables_of_a_pdf_page_are_data(reader: Reader) -> None:
    assert await tables(reader, "book.pdf", page=2) == [[["port", "ships"], ["Vannick 2", "17"]]]
    (ports,) = await reader.rows("tables", "tables", document="book.pdf", section="3")
    assert (ports["page"], ports["section"]) == (3, "3")


@pytest.mark.promise("document:languages")
async def test_a_pdf_in_other_scripts_and_columns_is_read_in_reading_order(reader: Reader) -> None:
    assert (await reader.text(document="languages.pdf", pages=1)).strip() == _made.CHINESE
    second = await reader.text(document="languages.pdf", pages=2)
    assert _made.HEBREW in second
    assert "Ünïcödé" in second
    third = (await reader.text(document="languages.pdf", pages=3)).split()
    assert third == [
        word for side in ("left", "right") for n in range(3) for word in (side, "column,", "line", f"{n}.")
    ]


@pytest.mark.promise("document:word")
async def test_a_docx_has_nested_sections_lists_tables_and_pictures(reader: Reader) -> None:
    assert await sections(reader, "ships.docx") == [
        ("0", ""),
        ("1", "Sail"),
        ("1.1", "Rigs"),
        ("2", "Steam"),
        ("2.1", "Boilers"),
        ("2.1.1", "Scotch"),
    ]
    assert await reader.text(document="ships.docx", section_ids="0") == "Before any heading.\n\n"
    rigs = await reader.text(document="ships.docx", section_ids="1.1")
    assert rigs.startswith("Rigs\n\n- gaff\n\n00 | 00 | 02\n10 | 11 | 12\n10 | 21 | 22 in side\n")
    assert await tables(reader, "ships.docx") == [
        [["00", "00", "02"], ["10", "11", "12"], ["10", "21", "22 in side"]]
    ]
    assert "[picture: a boiler]" in await reader.text(document="ships.docx", section_ids="2.1.1")
    shown = await reader.call("read", document="ships.docx", section_ids="2", max_image_num=5)
    assert [data[:4] for data in images(shown)] == [b"\x89PNG"]


@pytest.mark.promise("document:word")
async def test_a_docx_has_its_headers_footers_notes_and_comments_where_they_belong(
    table: ToolTable, tmp_path: Path
) -> None:
    reader = await reader_of(table, _made.noted_word(tmp_path / "dues.docx"))
    assert (await reader.text()).split("\n\n") == [
        "[header: Harbour office north]",
        "[header: Harbour office south]",
        "Dues",
        "A sloop pays three.",
        "[footnote: Only in summer. And more.]",
        "[comment by Ada Holm: Since when?]",
        "Brigs pay five.",
        "[endnote: By decree. And more.]",
        "After the table.",
        "[footer: Confidential Port Vannick]",
        "",
    ]
    (hit,) = await reader.rows("search", "hits", query="summer")
    assert hit["section"] == "1"


@pytest.mark.promise("document:slides")
async def test_a_pptx_has_the_comments_on_a_slide_on_its_page(table: ToolTable, tmp_path: Path) -> None:
    reader = await reader_of(table, _made.commented_slides(tmp_path / "fleet.pptx"))
    assert await reader.text(pages=1) == "Fleet\n\n[comment: Too old?]\n\n[comment: Which year?]\n\n"


@pytest.mark.promise("document:sheets")
async def test_an_xlsx_has_the_header_footer_and_comments_of_a_sheet(
    table: ToolTable, tmp_path: Path
) -> None:
    reader = await reader_of(table, _made.commented_sheets(tmp_path / "dues.xlsx"))
    assert (await reader.text()).split("\n\n")[1:-1] == [
        "[header: Dues & fees]",
        "region | amount",
        "[comment on B1: in silver]",
        "[footer: Port Vannick]",
    ]


@pytest.mark.promise("document:slides")
async def test_a_pptx_has_slides_as_pages_with_tables_charts_groups_and_notes(reader: Reader) -> None:
    outline = await reader.data("outline", document="fleet.pptx")
    assert outline["pages"] == 2
    assert await sections(reader, "fleet.pptx") == [("1", "Fleet"), ("2", "Slide 2")]
    first = await reader.text(document="fleet.pptx", pages=1)
    assert "grouped words" in first
    assert "Notes: said aloud" in first
    assert await tables(reader, "fleet.pptx", page=1) == [[["all ships", "all ships"], ["sloops", "3"]]]
    assert await tables(reader, "fleet.pptx", page=2) == [[[None, "amount"], ["north", 1.5], ["south", 2.0]]]


@pytest.mark.promise("document:sheets")
async def test_an_xlsx_has_sheets_with_values_of_their_types(reader: Reader) -> None:
    assert await sections(reader, "sales.xlsx") == [("1", "Sales"), ("2", "Ports")]
    assert await tables(reader, "sales.xlsx", section="1") == [
        [
            ["region", "amount", "day"],
            ["north", 3, "2020-01-02"],
            ["south", 4.5, "2020-01-03T12:30:00"],
            [None, "=SUM(B2:B3)", None],
            ["merged", "merged", None],
            ["merged", "merged", None],
        ]
    ]
    assert await tables(reader, "sales.xlsx", page=2) == [[["port", True]]]


@pytest.mark.promise("document:html")
async def test_html_is_read_as_it_is_shown(reader: Reader) -> None:
    outline = await reader.data("outline", document="dues.html")
    assert outline["title"] == "Ports & ships"
    assert await sections(reader, "dues.html") == [("0", ""), ("1", "Harbour dues"), ("1.1", "Waived")]
    whole = await reader.text(document="dues.html")
    assert "hidden" not in whole
    assert "Paid in silver.\nOr in kind.\n\n- one\n\n- two\n\n" in whole
    assert "kept\n   as it is" in whole
    assert f"café {_made.HEBREW}" in whole
    assert await tables(reader, "dues.html") == [
        [["ship", "ship", "due"], ["sloop", "small", "3"], ["sloop", "large", "5"]]
    ]


@pytest.mark.promise("document:markdown")
async def test_markdown_is_read_unchanged(reader: Reader) -> None:
    assert await reader.text(document="notes/dues.md") == _made.MARKDOWN
    assert await sections(reader, "dues.md") == [("0", ""), ("1", "Harbour dues"), ("1.1", "Waived")]
    assert await tables(reader, "dues.md") == [[["ship", "due"], ["sloop", "3"]]]


@pytest.mark.promise("document:markdown")
async def test_plain_text_is_one_section_in_any_encoding(reader: Reader) -> None:
    assert await reader.text(document="plain.txt", section_ids="1") == "one line\nand café\n"


@pytest.mark.promise("document:ocr")
async def test_the_text_in_a_picture_is_read(reader: Reader) -> None:
    assert "HARBOUR OFFICE" in await reader.text(document="sign.png")
