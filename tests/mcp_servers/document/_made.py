"""Files of every format, made by the libraries that people make them with."""

import datetime
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import docx
import openpyxl
import pptx
import pptx.opc.package
import pptx.opc.packuri
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml.ns import qn
from docx.oxml.parser import parse_xml
from openpyxl.comments import Comment
from PIL import Image, ImageDraw, ImageFont
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches
from reportlab.lib import pdfencrypt
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas

Foreign: TypeAlias = Any
"""An object of a library whose types say little."""

FONT = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
HEBREW = "\u05e9\u05dc\u05d5\u05dd"
CHINESE = "\u6e7e\u5cb8\u7684\u7070\u8272\u8239\u53ea"


def picture(words: str = "", size: tuple[int, int] = (600, 120)) -> bytes:
    """A picture with these words."""
    image = Image.new("RGB", size, "white")
    if words:
        ImageDraw.Draw(image).text((20, 30), words, fill="black", font=ImageFont.load_default(48))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def pdf(path: Path, chapters: int = 3, lines: int = 20, *, outline: bool = False, password: str = "") -> Path:
    """Chapters of one page each, with a heading, lines and a ruled table."""
    lock = pdfencrypt.StandardEncryption(password, ownerPassword="owner") if password else None
    canvas: Foreign = Canvas(str(path), encrypt=lock)
    canvas.setTitle("A book of ships")
    for number in range(1, chapters + 1):
        canvas.setFont("Helvetica-Bold", 20)
        canvas.drawString(72, 760, f"Chapter {number}")
        if outline:
            canvas.bookmarkPage(f"c{number}")
            canvas.addOutlineEntry(f"Chapter {number}", f"c{number}", 0)
            canvas.bookmarkHorizontal(f"s{number}", 72, 500)
            canvas.addOutlineEntry(f"Line 9 of page {number}", f"s{number}", 1)
        canvas.setFont("Helvetica", 11)
        for line in range(lines):
            canvas.drawString(72, 730 - line * 14, f"Line {line} of page {number} tells about ships.")
        _ruled(canvas, [["port", "ships"], [f"Vannick {number}", "17"]])
        canvas.showPage()
    canvas.save()
    return path


def _ruled(canvas: Foreign, rows: Sequence[Sequence[str]]) -> None:
    canvas.grid([72, 192, 312], [160 - 20 * index for index in range(len(rows) + 1)])
    for y, row in enumerate(rows):
        for x, text in enumerate(row):
            canvas.drawString(78 + 120 * x, 146 - 20 * y, text)


def languages_pdf(path: Path) -> Path:
    """A page in Chinese, one in Hebrew, and one with two columns."""
    fonts: Foreign = pdfmetrics
    fonts.registerFont(UnicodeCIDFont("STSong-Light"))
    fonts.registerFont(TTFont("DejaVu", str(FONT)))
    canvas: Foreign = Canvas(str(path))
    canvas.setFont("STSong-Light", 14)
    canvas.drawString(72, 700, CHINESE)
    canvas.showPage()
    canvas.setFont("DejaVu", 14)
    # A page shows Hebrew from right to left: what is drawn first is read last.
    canvas.drawString(72, 700, HEBREW[::-1])
    canvas.drawString(72, 650, "Ünïcödé ﬁnd")
    canvas.showPage()
    canvas.setFont("Helvetica", 11)
    for column in ("left", "right"):
        for line in range(3):
            canvas.drawString(
                72 if column == "left" else 320, 700 - 14 * line, f"{column} column, line {line}."
            )
    canvas.showPage()
    canvas.save()
    return path


def scan_pdf(path: Path, words: str) -> Path:
    """A page that is only a picture."""
    image = path.with_suffix(".png")
    image.write_bytes(picture(words))
    canvas: Foreign = Canvas(str(path))
    canvas.drawImage(str(image), 72, 600, width=450, height=90)
    canvas.showPage()
    canvas.save()
    image.unlink()
    return path


def word(path: Path) -> Path:
    """Headings at three levels, a list, a table with merged fields, a table in a table, a picture."""
    file = docx.Document()
    file.core_properties.title = "Ships"
    file.add_paragraph("Before any heading.")
    file.add_heading("Sail", 1)
    file.add_paragraph(f"A sloop has one mast. {HEBREW} {CHINESE}")
    file.add_heading("Rigs", 2)
    file.add_paragraph("gaff", style="List Bullet")
    table = file.add_table(3, 3)
    for y in range(3):
        for x in range(3):
            table.cell(y, x).text = f"{y}{x}"
    table.cell(0, 1).text = table.cell(2, 0).text = ""
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(1, 0).merge(table.cell(2, 0))
    inner = table.cell(2, 2).add_table(1, 2)
    inner.cell(0, 0).text, inner.cell(0, 1).text = "in", "side"
    file.add_heading("Steam", 1)
    file.add_heading("Boilers", 2)
    file.add_heading("Scotch", 3)
    file.add_picture(io.BytesIO(picture(size=(60, 40))), Inches(1))
    body: Foreign = file.element
    for mark in body.iter(qn("wp:docPr")):
        mark.set("descr", "a boiler")
    file.save(str(path))
    return path


RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
NOTES = f"""<w:{{kind}}s xmlns:w="{WORD}">
<w:{{kind}} w:type="separator" w:id="-1"><w:p><w:r><w:separator/></w:r></w:p></w:{{kind}}>
<w:{{kind}} w:id="1"><w:p><w:r><w:t>{{text}}</w:t></w:r></w:p><w:p><w:r><w:t>And more.</w:t></w:r></w:p></w:{{kind}}></w:{{kind}}s>"""


def noted_word(path: Path) -> Path:
    """Headers and footers of two sections, a footnote, an endnote in a table, and a comment."""
    file: Foreign = docx.Document()
    for number, side in enumerate(("north", "south")):
        section = file.sections[0] if number == 0 else file.add_section()
        section.header.is_linked_to_previous = section.footer.is_linked_to_previous = False
        section.header.paragraphs[0].text = f"Harbour office {side}"
        table = section.footer.add_table(1, 2, Inches(4))
        table.cell(0, 0).text, table.cell(0, 1).text = "Confidential", "Port Vannick"
        if number == 0:
            file.add_heading("Dues", 1)
            sloops = file.add_paragraph("A sloop pays three.")
            file.add_comment(sloops.runs, text="Since when?", author="Ada Holm")
            cell = file.add_table(1, 1).cell(0, 0).paragraphs[0]
            cell.text = "Brigs pay five."
            file.add_paragraph("After the table.")
            _refer(file, "footnote", sloops.runs[0], "Only in summer.")
            _refer(file, "endnote", cell.runs[-1], "By decree.")
    file.save(str(path))
    return path


def _refer(file: Foreign, kind: str, run: Foreign, text: str) -> None:
    """Add a footnote or endnote to a run."""
    content_type = f"application/vnd.openxmlformats-officedocument.wordprocessingml.{kind}s+xml"
    content = NOTES.format(kind=kind, text=text).encode()
    part = Part(PackURI(f"/word/{kind}s.xml"), content_type, content, file.part.package)
    file.part.relate_to(part, f"{RELATIONS}/{kind}s")
    run._r.append(parse_xml(f'<w:{kind}Reference xmlns:w="{WORD}" w:id="1"/>'))


def commented_slides(path: Path) -> Path:
    """Two slides, of which the first has notes and two comments."""
    file = pptx.Presentation()
    first = file.slides.add_slide(file.slide_layouts[5])
    file.slides.add_slide(file.slide_layouts[6])
    assert first.shapes.title is not None
    first.shapes.title.text = "Fleet"
    old = '<p:cmLst xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"><p:cm><p:text>Too old?</p:text></p:cm></p:cmLst>'
    new = (
        '<p188:cmLst xmlns:p188="http://schemas.microsoft.com/office/powerpoint/2018/8/main"'
        ' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main">'
        "<p188:cm><p188:txBody><a:p><a:r><a:t>Which year?</a:t></a:r></a:p></p188:txBody></p188:cm></p188:cmLst>"
    )
    for number, (relation, content) in enumerate(
        (
            (f"{RELATIONS}/comments", old),
            ("http://schemas.microsoft.com/office/2018/10/relationships/comments", new),
        )
    ):
        name = pptx.opc.packuri.PackURI(f"/ppt/comments/comment{number}.xml")
        part = pptx.opc.package.Part(name, "application/xml", first.part.package, content.encode())
        first.part.relate_to(part, relation)
    file.save(str(path))
    return path


def commented_sheets(path: Path) -> Path:
    """A sheet with a header, a footer and a comment."""
    file = openpyxl.Workbook()
    sheet: Foreign = file.worksheets[0]
    sheet.append(["region", "amount"])
    sheet["B1"].comment = Comment("in silver", "Ada Holm")
    sheet.oddHeader.left.text, sheet.oddHeader.right.text = "Dues && fees", "&P"
    sheet.oddFooter.center.text = "Port Vannick"
    file.save(str(path))
    return path


def slides(path: Path) -> Path:
    """Two slides: a table with merged fields, a chart, a group, a picture and notes."""
    file = pptx.Presentation()
    first = file.slides.add_slide(file.slide_layouts[5])
    assert first.shapes.title is not None
    first.shapes.title.text = "Fleet"
    table = first.shapes.add_table(2, 2, 0, 0, Inches(2), Inches(1)).table  # pyright: ignore[reportArgumentType]
    table.cell(0, 0).text = "all ships"
    table.cell(0, 0).merge(table.cell(0, 1))
    table.cell(1, 0).text, table.cell(1, 1).text = "sloops", "3"
    group = first.shapes.add_group_shape()
    box = group.shapes.add_textbox(0, 0, Inches(1), Inches(1))  # pyright: ignore[reportArgumentType]
    box.text_frame.text = "grouped words"
    first.shapes.add_picture(io.BytesIO(picture(size=(60, 40))), 0, 0)  # pyright: ignore[reportArgumentType]
    notes = first.notes_slide.notes_text_frame
    assert notes is not None
    notes.text = "said aloud"
    second = file.slides.add_slide(file.slide_layouts[6])
    data: Foreign = CategoryChartData()
    data.categories = ["north", "south"]
    data.add_series("amount", (1.5, 2))
    kind = XL_CHART_TYPE.COLUMN_CLUSTERED
    second.shapes.add_chart(kind, 0, 0, Inches(3), Inches(2), data)  # pyright: ignore[reportArgumentType]
    file.save(str(path))
    return path


def sheets(path: Path) -> Path:
    """Two sheets: numbers, a day, a formula that nobody computed, merged fields."""
    file = openpyxl.Workbook()
    sales = file.worksheets[0]
    sales.title = "Sales"
    sales.append(["region", "amount", "day"])
    sales.append(["north", 3, datetime.date(2020, 1, 2)])
    sales.append(["south", 4.5, datetime.datetime(2020, 1, 3, 12, 30)])
    sales["B4"] = "=SUM(B2:B3)"
    sales["A5"] = "merged"
    sales.merge_cells("A5:B6")
    other = file.create_sheet("Ports")
    other.append(["port", True])
    file.save(str(path))
    return path


HTML = """<!doctype html><title>Ports &amp; ships</title><script>var hidden = 1</script>
<p>Before any heading.<h1>Harbour <em>dues</em></h1><p>Paid in
   silver.<br>Or in kind.<ul><li>one<li>two</ul>
<table><caption>Dues</caption><tr><th colspan=2>ship<th>due<tr><td rowspan=2>sloop<td>small<td>3<tr><td>large<td>5</table>
<h3>Waived</h3><pre>  kept
   as it is</pre><p>caf\u00e9 \u05e9\u05dc\u05d5\u05dd"""

MARKDOWN = """Before any heading.

# Harbour *dues*

Paid in silver. `code`

| ship | due |
|------|----:|
| sloop | 3 |

Waived
------

```
# no heading
```
"""
