"""Entry point of the reader process: opens one document and answers the server's requests through a file."""

import json
from typing import Final, TypeAlias

from mcp_servers.document.inside._draft import DocumentWriter, UnreadableDocument
from mcp_servers.document.inside._formats import decoded, kind_of
from mcp_servers.document.inside._images import ImageDocument, Ocr, as_png
from mcp_servers.document.inside._office import DocxDocument, PptxDocument, XlsxDocument
from mcp_servers.document.inside._pdf import PdfDocument
from mcp_servers.document.inside._text import draft_of_html, draft_of_markdown, draft_of_text

ANSWER: Final = "answer"
"""File of the last reply: a line of JSON, followed by the bytes of an image if one was requested."""
Opened: TypeAlias = PdfDocument | DocxDocument | PptxDocument | XlsxDocument | ImageDocument | str
_OFFICE: Final = {"docx": DocxDocument, "pptx": PptxDocument, "xlsx": XlsxDocument}
_opened: dict[str, Opened] = {}


def answer(request: str) -> None:
    """Handle a request and write the reply."""
    asked = json.loads(request)
    blob = b""
    try:
        reply, blob = _do(asked)
    except UnreadableDocument as error:
        reply = {"why": error.why, "message": str(error)}
    except MemoryError:
        raise
    except ImportError as error:
        library = f"the library {error.name!r} is not installed: pip install 'agentflow[document]'"
        reply = {"why": "unavailable", "message": library}
    except RecursionError:
        reply = {"why": "failed", "message": "it is nested too deeply"}
    except Exception as error:  # boundary: any error of a library on a broken file becomes one line
        reply = {"why": "failed", "message": f"it is damaged ({type(error).__name__}: {error})"[:300]}
    with open(ANSWER, "wb") as file:
        file.write(json.dumps(reply).encode() + b"\n" + blob)


def _do(asked: dict[str, str]) -> tuple[dict[str, object], bytes]:
    name, do = asked["name"], asked["do"]
    if do == "content":
        return _draft(name, Ocr(asked["ocr_program"], asked["ocr_languages"])).finished(), b""
    opened = _open(name)
    if do == "page":
        png, width, height, dpi = _page(opened, int(asked["page"]), int(asked["dpi"]))
        return {"width": width, "height": height, "dpi": dpi}, png
    if do == "picture":
        if not isinstance(opened, DocxDocument | PptxDocument):
            raise UnreadableDocument("not_found", "it contains no pictures")
        png, width, height = as_png(opened.picture(asked["key"]))
        return {"width": width, "height": height, "dpi": 0}, png
    if do == "tables":
        pages = [int(page) for page in asked["pages"].split(",")]
        return {"tables": opened.tables(pages) if isinstance(opened, PdfDocument) else []}, b""
    raise ValueError(do)


def _open(name: str) -> Opened:
    """Open the document, once."""
    if name not in _opened:
        with open(name, "rb") as file:
            data = file.read()
        kind = kind_of(data, name)
        if kind == "pdf":
            _opened[name] = PdfDocument(name)
        elif kind == "picture":
            _opened[name] = ImageDocument(name)
        else:
            office = _OFFICE.get(kind)
            _opened[name] = office(name) if office else kind
    return _opened[name]


def _draft(name: str, ocr: Ocr) -> DocumentWriter:
    opened = _open(name)
    if isinstance(opened, PdfDocument | ImageDocument):
        return opened.draft(ocr)
    if not isinstance(opened, str):
        return opened.draft()
    with open(name, "rb") as file:
        text = decoded(file.read())
    readers = {"html": draft_of_html, "markdown": draft_of_markdown}
    return readers.get(opened, draft_of_text)(text)


def _page(opened: Opened, number: int, dpi: int) -> tuple[bytes, int, int, int]:
    if isinstance(opened, PdfDocument):
        return opened.image(number, dpi)
    if isinstance(opened, ImageDocument):
        return opened.image(number)
    raise UnreadableDocument("bad_arguments", "only pages of PDF files and images can be shown")
