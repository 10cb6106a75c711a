"""Documents with pictures whose statements are QR codes, and a model that sees: it decodes the pixels that it is shown."""

import base64
import io
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from aiohttp import web
from PIL import Image
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from agentflow.testing.endpoint._prompt import read_prompt

_QUESTION = re.compile(r"What is the (.+) of (.+)\?")
_PAGE = (595, 842)
_SIDE = 150


class Figure(NamedTuple):
    """A statement of a picture."""

    subject: str
    relation: str
    value: str
    unit: str = ""

    @property
    def words(self) -> str:
        """The statement as a QR code has it."""
        return "|".join(self)


def harbour_figures(count: int) -> list[Figure]:
    """Return statements about so many harbours."""
    return [
        Figure(f"Port Orm {number}", "tonnage", f"{1013 + 37 * number}", "tons") for number in range(count)
    ]


def qr_code(words: str) -> Image.Image:
    """Return the QR code of a text, as a picture with a quiet zone."""
    zxing: Any = import_module("zxingcpp")
    code = zxing.create_barcode(words, zxing.BarcodeFormat.QRCode)
    return Image.fromarray(zxing.write_barcode_to_image(code, scale=8)).convert("RGB")


def illustrated_pdf(path: Path, pages: Sequence[Sequence[Figure]], words: Sequence[str] = ()) -> Path:
    """Write a document: each page has a heading, lines, and up to two pictures of bars and a statement."""
    canvas: Any = Canvas(str(path), pagesize=_PAGE)
    for number, figures in enumerate(pages, 1):
        canvas.setFont("Helvetica-Bold", 18)
        canvas.drawString(72, 790, f"Plate {number}")
        canvas.setFont("Helvetica", 11)
        for line, text in enumerate(words):
            canvas.drawString(72, 760 - 14 * line, text)
        for place, figure in enumerate(figures):
            bottom = 520 - place * 360
            canvas.setFillColorRGB(0.2, 0.4, 0.7)
            for bar in range(4):
                canvas.rect(300 + 40 * bar, bottom, 24, 20 + 25 * ((bar + number) % 4), fill=1)
            canvas.setFillColorRGB(0, 0, 0)
            canvas.drawImage(ImageReader(qr_code(figure.words)), 72, bottom, _SIDE, _SIDE)
        canvas.showPage()
    canvas.save()
    return path


def decode(picture: bytes) -> list[tuple[Figure, dict[str, float]]]:
    """Return the statements that a picture shows, with the edges of their regions."""
    zxing: Any = import_module("zxingcpp")
    image: Any = Image.open(io.BytesIO(picture)).convert("L")
    found: list[tuple[Figure, dict[str, float]]] = []
    for code in zxing.read_barcodes(image, zxing.BarcodeFormat.QRCode):
        corners = [
            getattr(code.position, name) for name in ("top_left", "top_right", "bottom_left", "bottom_right")
        ]
        across, down = [corner.x for corner in corners], [corner.y for corner in corners]
        quiet = 0.05 * (max(across) - min(across))
        edges = {
            "left": max(0.0, (min(across) - quiet) / image.width),
            "top": max(0.0, (min(down) - quiet) / image.height),
            "right": min(1.0, (max(across) + quiet) / image.width),
            "bottom": min(1.0, (max(down) + quiet) / image.height),
        }
        found.append((Figure(*code.text.split("|")), edges))
    return sorted(found, key=lambda one: one[1]["top"])


class Sight:
    """A model that sees: it looks at one page after the other, and answers from the pictures and texts it is shown."""

    def __init__(self, pages: int, *, known: Mapping[str, str] | None = None, missed: str = "") -> None:
        """Describe it.

        :param pages: pages that it looks at; then it reads the text of the last one.
        :param known: answers from memory by subject; a subject `*` stands for all others.
        :param missed: subject whose region it reports wrongly.
        """
        self.requests: list[str] = []
        """Names of the schemas asked for."""
        self._pages = pages
        self._known = known or {}
        self._missed = missed

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request."""
        raw = await request.read()
        body = cast("dict[str, Any]", json.loads(raw))
        parts = [
            part
            for message in body["messages"]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
        pictures = [base64.b64decode(part["image_url"]["url"].partition(",")[2]) for part in parts]
        name = body["response_format"]["json_schema"]["name"]
        self.requests.append(name)
        said = json.dumps(self._say(raw, name, pictures))
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    def _say(self, raw: bytes, name: str, pictures: Sequence[bytes]) -> object:
        prompt = read_prompt(raw)
        match name:
            case "plan":
                looked = re.findall(r'"page": ?(\d+)', prompt.text)
                page = 1 + max(map(int, looked), default=0)
                call = {"page": page, "document": None, "dpi": None}
                tool = "document_page_image"
                if page > self._pages:
                    names = ("section_ids", "document", "start", "end", "goal", "max_images", "max_tokens")
                    tool, call = "document_read", {"pages": self._pages, **dict.fromkeys(names)}
                return {"proposals": [{"intent": "Look.", "tool": tool, "arguments": call}]}
            case "imagefacts":
                return {"facts": [self._fact(*shown) for shown in decode(pictures[0])]}
            case "taskinstruction":
                [words] = re.findall(r"<solution>\n(.*)\n</solution>", prompt.text)
                return {"instruction": f"What is the {words}?", "ordered": False}
            case "recalled":
                known = self._from_memory(prompt.text)
                return {"answer": known, "is_certain": bool(known)}
            case _:
                return self._readings(f"{prompt.system}\n{prompt.text}", pictures)

    def _fact(self, figure: Figure, edges: dict[str, float]) -> dict[str, object]:
        missed = figure.subject == self._missed
        moved = {edge: at / 2 if missed and edge in ("left", "right") else at for edge, at in edges.items()}
        return {
            "subject": figure.subject,
            "relation": figure.relation,
            "value": figure.value,
            "kind": "number",
            "quote": figure.words,
            "unit": figure.unit,
            "region": {"picture": 1, **moved},
        }

    def _from_memory(self, text: str) -> str:
        asked = _QUESTION.search(text)
        assert asked is not None, text
        return self._known.get(asked[2], self._known.get("*", ""))

    def _readings(self, text: str, pictures: Sequence[bytes]) -> dict[str, object]:
        asked = _QUESTION.search(text)
        assert asked is not None, text
        shown = [figure for picture in pictures for figure, _ in decode(picture)]
        shown += [
            Figure(*line.split("|"))
            for line in re.findall(
                r"^(?:\[\d+\] )?([^|\n\[]+\|[^|\n]+\|[^|\n]+\|[^|\n]*)$", text, re.MULTILINE
            )
        ]
        answers = [
            f"{one.value} {one.unit}".strip()
            for one in shown
            if (one.relation, one.subject) == (asked[1], asked[2])
        ]
        reading = {
            "number": 1,
            "documents": [],
            "derivation": "It is shown.",
            "answers": list(dict.fromkeys(answers)),
            "naturalness": 4,
        }
        return {"readings": [reading]}


@asynccontextmanager
async def serve_model(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncGenerator[str]:
    """Serve a model, and the number of its calls at `/stats`; yields the address."""
    calls = 0

    async def counted(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return await answer(request)

    async def statistics(request: web.Request) -> web.Response:
        return web.json_response({"calls": calls})

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", counted)
    app.router.add_get("/stats", statistics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def sight(seeing: Sight) -> AbstractAsyncContextManager[str]:
    """Serve a model that sees; yields the address."""
    return serve_model(seeing.answer)
