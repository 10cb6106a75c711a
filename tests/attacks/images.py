"""Images in requests to a gateway: bombs, wrong types, broken encodings, floods, and addresses to fetch."""

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from aiohttp import web

from agentflow.gateway import GatewaySettings
from agentflow.http_server import serving
from tests.agentflow.gateway._images import (
    chat_image,
    data_url,
    forged_png,
    image,
    messages_image,
    png_chunk,
    responses_image,
)
from tests.agentflow.gateway._registry import OWNER, EchoModel, offers, registry_at, served
from tests.attacks._table import Attack, attacks

CATEGORY: Final = "images"
FETCHED: Final = "LISTENER"
"""Stands for the address of a server on loopback that notes who fetches something."""

_MIB = 1 << 20
_SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><image href='http://127.0.0.1/'/><script>alert(1)</script></svg>"
_GIF = image("GIF")
_FRAME = _GIF.index(b",", 13)
_JPEG = image("JPEG")
_VP8X = struct.pack("<4sI4s4sI4s6s", b"RIFF", 4000, b"WEBP", b"VP8X", 10, bytes(4), bytes([255] * 6)) + bytes(
    4000
)


def _url(data: bytes, mime: str = "image/png") -> Callable[[], list[str]]:
    return lambda: [data_url(data, mime)]


def _large_frame() -> list[str]:
    """Return a GIF with a small screen and a large frame."""
    frame = struct.pack("<4H", 0, 0, 65_535, 65_535)
    return [data_url(_GIF[: _FRAME + 1] + frame + _GIF[_FRAME + 9 :], "image/gif")]


def _second_frame() -> list[str]:
    """Return a JPEG with two headers of frames."""
    large = struct.pack(">2sHBHHB", b"\xff\xc0", 8, 8, 65_535, 65_535, 0)
    return [data_url(_JPEG[: (cut := _JPEG.index(b"\xff\xda"))] + large + _JPEG[cut:], "image/jpeg")]


def _pixels() -> list[str]:
    return [data_url(forged_png((7_000, 7_000), before=png_chunk(b"tEXt", bytes([n])))) for n in range(6)]


_OVER = "413 x [15], too_large; witness 200; asked 0, fetched 0"
_BROKEN = "400 x [15], invalid_image; witness 200; asked 0, fetched 0"
_OF_TYPE = "400 x [15], unsupported_image; witness 200; asked 0, fetched 0"
_NOWHERE = "400 x [15], image_address; witness 200; asked 0, fetched 0"
_SENT: dict[str, tuple[str, Callable[[], list[str]], str]] = {
    "bomb: PNG": ("fill the memory of a decoder by a small file", _url(forged_png((60_000, 60_000))), _OVER),
    "bomb: largest PNG": ("overflow the product of the sizes", _url(forged_png((2**32 - 1, 2**32 - 1))), _OVER),
    "bomb: second header": ("show a checker a small header and a decoder a large one", _url(forged_png((1, 1), (60_000, 60_000))), _OVER),
    "bomb: frame of a GIF": ("hide a large frame behind a small screen", _large_frame, _OVER),
    "bomb: second frame of a JPEG": ("hide a large frame behind a small one", _second_frame, _OVER),
    "bomb: canvas of a WebP": ("state a canvas of 16 million pixels a side", _url(_VP8X, "image/webp"), _OVER),
    "bomb: several": ("fill the memory by images that are allowed alone", _pixels, _OVER),
    "size: bytes": ("send an image of six megabytes", _url(forged_png((9, 9), before=png_chunk(b"tEXt", bytes(5 * _MIB)))), _OVER),
    "flood: tiny": ("send ten thousand images of a pixel", lambda: [data_url(image(size=(1, 1)))] * 10_000, _OVER),
    "flood: parts": ("keep a reader of headers busy", _url(forged_png((1, 1), before=png_chunk(b"tEXt", b"") * 200_000)), _BROKEN),
    "flood: blocks": ("keep a reader of headers busy", _url(_GIF[:13] + b"!\xfe" + b"\x01a" * 500_000, "image/gif"), _BROKEN),
    "flood: padding": ("keep a reader of headers busy", _url(b"\xff\xd8" + b"\xff" * _MIB, "image/jpeg"), _BROKEN),
    "type: JPEG as PNG": ("reach another decoder", _url(_JPEG), _BROKEN),
    "type: text as PNG": ("send no image", _url(b"GET / HTTP/1.1"), _BROKEN),
    "type: SVG": ("send a program with an address", _url(_SVG, "image/svg+xml"), _OF_TYPE),
    "type: SVG as PNG": ("send a program with an address", _url(_SVG), _BROKEN),
    "type: HTML": ("send a page", _url(b"<script>alert(1)</script>", "text/html"), _OF_TYPE),
    "type: escapes": ("write escapes and lines into the log of a client", _url(b"a", "image/\x1b[2J\r\n\u2028evil"), _OF_TYPE),
    "type: TIFF": ("reach a decoder that is seldom used", _url(b"II*\x00" + bytes(100), "image/tiff"), _OF_TYPE),
    "base64: broken": ("break the decoder", lambda: ["data:image/png;base64,!!!!"], _BROKEN),
    "base64: padding": ("break the decoder", lambda: ["data:image/png;base64,iVBORw0KGgo"], _BROKEN),
    "base64: lines": ("hide bytes between lines", lambda: [f"{data_url(image())[:40]}\n{data_url(image())[40:]}"], _BROKEN),
    "base64: letters": ("hide bytes in other letters", lambda: [data_url(image()).replace("A", "\uff21")], _BROKEN),
    "base64: empty": ("send nothing", lambda: ["data:image/png;base64,"], _BROKEN),
    "header: cut": ("read beyond the end", _url(image()[:20]), _BROKEN),
    "header: no size": ("divide by zero", _url(forged_png((0, 9))), _BROKEN),
    "header: none": ("send pixels without a size", _url(forged_png()), _BROKEN),
    "header: length": ("jump back and forth", _url(image()[:8] + b"\xff\xff\xff\xf4tEXt" * 9), _BROKEN),
    "address: loopback": ("reach a server of the machine", lambda: [f"{FETCHED}/image.png"], _NOWHERE),
    "address: credentials": ("reach a server of the machine", lambda: [FETCHED.replace("://", "://data:image@")], _NOWHERE),
    "address: metadata": ("read the credentials of a cloud", lambda: ["http://169.254.169.254/latest/meta-data/"], _NOWHERE),
    "address: file": ("read a file of the machine", lambda: ["file:///etc/passwd"], _NOWHERE),
    "address: path": ("read a file of the machine", lambda: ["/etc/passwd"], _NOWHERE),
    "address: without base64": ("send a program", lambda: ["data:image/svg+xml,<svg/>"], _NOWHERE),
}  # fmt: skip
ATTACKS: Final = attacks(CATEGORY, {name: (aim, name, seen) for name, (aim, _, seen) in _SENT.items()})


def _bodies(urls: list[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield requests with these images, from the user and from a tool, in each API."""
    chat, items = [chat_image(url) for url in urls], [responses_image(url) for url in urls]
    blocks = [messages_image(url) for url in urls]
    result = {"type": "tool_result", "tool_use_id": "a", "content": blocks}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": chat}]}
    if sum(map(len, urls)) > _MIB // 8:
        # Decoded by the same code in each API.
        return
    yield "/v1/responses", {"input": [{"role": "user", "content": items}]}
    yield "/v1/responses", {"input": [{"type": "function_call_output", "call_id": "a", "output": items}]}
    for content in (blocks, [result]):
        yield "/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": content}]}


async def observe(folder: Path, table: list[Attack]) -> dict[str, str]:
    """Make the attacks; after each one, another key asks for an answer. A status is 0 if its message is more than a line."""
    seen: dict[str, str] = {}
    fetched: list[str] = []

    async def note(request: web.Request) -> web.Response:
        fetched.append(request.path)
        return web.Response(body=image(), content_type="image/png")

    listener = web.Application()
    listener.router.add_get("/{path:.*}", note)
    model, settings = EchoModel(), GatewaySettings()
    async with (
        serving(listener) as address,
        registry_at(folder, settings, model) as registry,
        served(registry, settings) as url,
        httpx2.AsyncClient(base_url=url, timeout=60) as client,
    ):
        await registry.slots.offer(offers(size=2))
        keys: list[str] = []
        for _ in range(2):
            begun = await registry.begin(OWNER)
            assert begun is not None
            keys.append(begun.keys[""])
        evil, other = ({"Authorization": f"Bearer {key}"} for key in keys)
        for attack in table:
            model.seen.clear()
            urls = [text.replace(FETCHED, address) for text in _SENT[attack.code][1]()]
            found: Counter[int] = Counter()
            codes: set[str] = set()
            with anyio.fail_after(60):
                for path, body in _bodies(urls):
                    answer = await client.post(path, json={"model": "policy", **body}, headers=evil)
                    error = answer.json()["error"]
                    found[answer.status_code if error["message"].isprintable() else 0] += 1
                    # Anthropic's API has none.
                    codes |= {error["code"]} if "code" in error else set()
            asked = len(model.seen)
            ask = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
            witness = await client.post("/v1/chat/completions", json=ask, headers=other)
            told = ", ".join([*(f"{status} x {count}" for status, count in found.items()), *sorted(codes)])
            seen[attack.id] = f"{told}; witness {witness.status_code}; asked {asked}, fetched {len(fetched)}"
    return seen
