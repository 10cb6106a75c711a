"""Entry point of the reader process: opens one document and answers the server's requests through a file."""

import json
from typing import Final, TypeAlias

from mcp_servers.document.inside._draft import Draft, Unreadable
from mcp_servers.document.inside._formats import decoded, kind_of
from mcp_servers.document.inside._images import Ocr, Picture, as_png
from mcp_servers.document.inside._office import Sheets, Slides, Word
from mcp_servers.document.inside._pdf import Pdf
from mcp_servers.document.inside._text import draft_of_html, draft_of_markdown, draft_of_text

__all__ = ["answer"]

ANSWER: Final = "answer"
"""The file with the last answer: a line of JSON, and after it the bytes of a picture, if one was asked for."""
Opened: TypeAlias = Pdf | Word | Slides | Sheets | Picture | str
_OFFICE: Final = {"docx": Word, "pptx": Slides, "xlsx": Sheets}
_opened: dict[str, Opened] = {}


def answer(request: str) -> None:
    """Do what is asked, and leave the answer."""
    asked = json.loads(request)
    blob = b""
    try:
        said, blob = _do(asked)
    except Unreadable as error:
        said = {"why": error.why, "message": str(error)}
    except MemoryError:
        raise
    except ImportError as error:
        library = f"the library {error.name!r} is not installed: pip install 'agentflow[document]'"
        said = {"why": "unavailable", "message": library}
    except RecursionError:
        said = {"why": "failed", "message": "it is nested too deeply"}
    except Exception as error:  # boundary: whatever a library says of a broken file is one line for who asked
        said = {"why": "failed", "message": f"it is damaged ({type(error).__name__}: {error})"[:300]}
    with open(ANSWER, "wb") as file:
        file.write(json.dumps(said).encode() + b"\n" + blob)


def _do(asked: dict[str, str]) -> tuple[dict[str, object], bytes]:
    name, do = asked["name"], asked["do"]
    if do == "draft":
        return _draft(name, Ocr(asked["ocr_program"], asked["ocr_languages"])).finished(), b""
    opened = _open(name)
    if do == "page":
        png, width, height, dpi = _page(opened, int(asked["page"]), int(asked["dpi"]))
        return {"width": width, "height": height, "dpi": dpi}, png
    if do == "picture":
        if not isinstance(opened, Word | Slides):
            raise Unreadable("not_found", "it has no pictures of its own")
        png, width, height = as_png(opened.picture(asked["key"]))
        return {"width": width, "height": height, "dpi": 0}, png
    if do == "tables":
        pages = [int(page) for page in asked["pages"].split(",")]
        return {"tables": opened.tables(pages) if isinstance(opened, Pdf) else []}, b""
    raise ValueError(do)


def _open(name: str) -> Opened:
    """What lies on the desk, opened once."""
    if name not in _opened:
        with open(name, "rb") as file:
            data = file.read()
        kind = kind_of(data, name)
        if kind == "pdf":
            _opened[name] = Pdf(name)
        elif kind == "picture":
            _opened[name] = Picture(name)
        else:
            office = _OFFICE.get(kind)
            _opened[name] = office(name) if office else kind
    return _opened[name]


def _draft(name: str, ocr: Ocr) -> Draft:
    opened = _open(name)
    if isinstance(opened, Pdf | Picture):
        return opened.draft(ocr)
    if not isinstance(opened, str):
        return opened.draft()
    with open(name, "rb") as file:
        text = decoded(file.read())
    readers = {"html": draft_of_html, "markdown": draft_of_markdown}
    return readers.get(opened, draft_of_text)(text)


def _page(opened: Opened, number: int, dpi: int) -> tuple[bytes, int, int, int]:
    if isinstance(opened, Pdf):
        return opened.image(number, dpi)
    if isinstance(opened, Picture):
        return opened.image(number)
    raise Unreadable("bad_arguments", "only PDF files and pictures have pages that can be shown")
