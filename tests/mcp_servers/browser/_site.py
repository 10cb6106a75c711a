"""A small site that the browser visits."""

import asyncio
import io
import wave
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web

PAGES = {
    "/": """<title>Home</title><h1>Home</h1>
        <nav><a href="/form">Form</a> <a href="/long#end">Long</a> <a href="/popup" target="_blank">Popup</a></nav>""",
    "/form": """<title>Form</title><h1>Form</h1>
        <form action="/sent"><input name="name" aria-label="Name">
        <textarea name="text" aria-label="Text">old</textarea>
        <label><input type="checkbox" name="agree"> Agree</label>
        <label><input type="radio" name="size" value="s" checked> Small</label>
        <label><input type="radio" name="size" value="l"> Large</label>
        <select name="colour" aria-label="Colour"><option>red</option><option>green</option></select>
        <input type="range" aria-label="Level" min="0" max="10" value="3">
        <div contenteditable role="textbox" aria-label="Notes">nothing</div>
        <button>Send</button></form>""",
    "/buttons": """<title>Buttons</title><h1>Buttons</h1><p id="out">nothing</p>
        <script>const say = text => document.getElementById('out').textContent = text;</script>
        <button onclick="say('clicked')" ondblclick="say('twice')" oncontextmenu="say('right'); return false">One</button>
        <button onclick="alert('Careful')">Alert</button>
        <button onclick="say('asked: ' + confirm('Sure?'))">Confirm</button>
        <button onclick="say('named: ' + prompt('Name?', 'Ada'))">Prompt</button>
        <button onclick="fetch('/data').then(r => r.json()).then(d => say('data: ' + d.value))">Fetch</button>
        <button onclick="setTimeout(() => say('arrived at last'), 300)">Later</button>
        <button onclick="console.error('broken ' + 1)">Log</button>
        <button onclick="undefined_thing()">Throw</button>
        <button onclick="for (let i = 0; i < 6; i++) window.open('/popup')">Many</button>
        <p onmouseover="say('over')">Hover here</p>
        <input aria-label="Keys" onkeydown="say('key ' + event.key)">""",
    "/files": """<title>Files</title><h1>Files</h1><p id="out">none</p>
        <input type="file" multiple aria-label="Choose" onchange="read(this.files)">
        <div id="place" role="region" aria-label="Drop here" style="height: 100px"
          ondragover="event.preventDefault()"
          ondrop="event.preventDefault(); dropped(event.dataTransfer)"></div>
        <script>
        const out = document.getElementById('out');
        const read = async files => out.textContent =
          (await Promise.all([...files].map(async f => f.name + '=' + await f.text()))).join(';');
        const dropped = data => data.files.length ? read(data.files) : out.textContent = data.getData('text/plain');
        </script>
        <a href="/download">Report</a> <a href="/odd">Odd</a> <a href="/huge">Huge</a>""",
    "/drag": """<title>Drag</title><p id="out">nothing</p>
        <div id="a" draggable="true" role="img" aria-label="Piece" style="width: 50px; height: 50px; background: red"></div>
        <div id="b" role="img" aria-label="Goal" style="width: 90px; height: 90px; background: blue"
          ondragover="event.preventDefault()" ondrop="out.textContent = 'arrived'"></div>
        <canvas id="c" width="200" height="100" style="display: block" onclick="out.textContent = 'at ' + event.offsetX"></canvas>
        <script>const out = document.getElementById('out');</script>""",
    "/long": "<title>Long</title><h1>Top</h1>"
    + "".join(f"<p>Line {number}</p>" for number in range(400))
    + "<h2 id='end'>End</h2><button>Last</button>",
    "/store": """<title>Store</title><h1>Store</h1><p id="out"></p><script>
        const show = () => document.getElementById('out').textContent =
          [document.cookie, localStorage.count ?? '-', sessionStorage.count ?? '-'].join(' | ');
        const add = store => { store.count = Number(store.count ?? 0) + 1; show(); };
        show();
        </script>
        <button onclick="add(localStorage)">Local</button> <button onclick="add(sessionStorage)">Session</button>
        <button onclick="document.cookie = 'a=' + (document.cookie.length + 1) + '; path=/'; show()">Cookie</button>""",
    "/frames": """<title>Frames</title><h1>Outside</h1><iframe src="/form" title="Inside"></iframe>""",
    "/grow": """<title>Grow</title><h1>Grow</h1><ul></ul>
        <button onclick="document.querySelector('ul').append(Object.assign(document.createElement('li'),
          {textContent: 'item'}))">Add</button>""",
    "/popup": "<title>Popup</title><h1>Popup</h1>",
    "/reach": """<title>Reach</title><p id="out">…</p><img src="http://169.254.169.254/x.png"><script>
        fetch(new URLSearchParams(location.search).get('url'), {mode: 'no-cors'})
          .then(() => 'reached', () => 'not reached')
          .then(text => document.getElementById('out').textContent = text);
        </script>""",
}

LOSING: dict[str, tuple[str, str, list[str]]] = {
    "title": ("", "document.title = 'Cart (1)'", ["the title 'Cart (1)'"]),
    "variables": (
        "<script>let count = 0; var basket = {items: []}; const unchanged = [1];</script>",
        "count++; basket.items.push('tea'); globalThis.added = 1",
        ["the script variables added, basket, count"],
    ),
    "socket": ("", "return opened(new WebSocket(`ws://${location.host}/socket`))", ["the open WebSocket to ws://SITE/socket"]),
    "events": ("", "return opened(new EventSource('/events'))", ["the open EventSource to http://SITE/events"]),
    "rtc": (
        "",
        "const peer = new RTCPeerConnection(); peer.createDataChannel('x'); return peer.createOffer().then(o => peer.setLocalDescription(o))",
        ["a WebRTC connection"],
    ),
    "media": ("<audio src='/silence.wav' muted loop></audio>", "return document.querySelector('audio').play()", ["playing media at TIME s of http://SITE/silence.wav"]),
    "worker": ("", "new Worker('/worker.js')", ["the worker http://SITE/worker.js"]),
    "scrolled": (
        "<div></div>",
        "document.querySelector('div').style.height = '5000px'; scrollTo(0, 900)",
        ["the scroll position", "changes of elements that a snapshot does not show"],
    ),
    "unsaved": (
        "<form></form>",
        "document.forms[0].innerHTML = '<input name=city hidden>'; document.forms[0].city.value = 'Oslo'",
        ["the content of the form fields city", "changes of elements that a snapshot does not show"],
    ),
    "canvas": ("<canvas></canvas>", "document.querySelector('canvas').getContext('2d').fillRect(0, 0, 50, 50)", ["the drawing on a canvas"]),
    "history": ("", "history.replaceState({step: 2}, '')", ["the state of the history entry (history.state)"]),
    "stored": ("", "return caches.open('offline')", ["the cache offline of http://SITE"]),
    "frame": (
        "<iframe srcdoc='<script>let inner = 0</script>'></iframe>",
        "frames[0].eval('inner = 1')",
        ["the script variables inner"],
    ),
    "ended": (
        "<script>const settings = {loaded: true, at: [new Map([[1, document.body]])]}; settings.self = settings;</script><input name=kept><p></p>",
        "document.querySelector('input').value = 'kept'; new WebSocket(`ws://${location.host}/socket`).close(); new RTCPeerConnection().close()",
        [],
    ),
}  # fmt: skip
"""Pages by name: their content, what a script then does, and what a fork by reloading can't keep of that."""
for name, (content, _, _) in LOSING.items():
    PAGES[f"/losing/{name}"] = f"""<title>Losing</title>{content}
        <script>function opened(source) {{ return new Promise(done => source.onopen = () => done()); }}</script>"""


class Site:
    """Its address, and what it was asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.requests: list[str] = []
        self.closing = asyncio.Event()

    async def page(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path_qs)
        if request.path in PAGES:
            return web.Response(text=f"<!doctype html>{PAGES[request.path]}", content_type="text/html")
        if request.path == "/sent":
            text = ", ".join(f"{name}={value}" for name, value in request.query.items())
            return web.Response(
                text=f"<!doctype html><title>Sent</title><p>{text}</p>", content_type="text/html"
            )
        if request.path == "/socket":
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.receive()
            return socket
        if request.path == "/events":
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(request)
            await stream.write(b": open\n\n")
            await self.closing.wait()
            return stream
        return self.other(request)

    def other(self, request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/data":
                return web.json_response({"value": 42}, headers={"X-Kind": "data"})
            case "/worker.js":
                return web.Response(text="onmessage = () => 0", content_type="text/javascript")
            case "/silence.wav":
                return web.Response(body=silence(), content_type="audio/wav")
            case "/download":
                return self.attached("report.txt", b"figures")
            case "/odd":
                return self.attached("../../../etc/evil:name?.txt", b"odd")
            case "/huge":
                return self.attached("huge.bin", b"x" * 300_000)
            case "/away":
                raise web.HTTPFound(request.query["to"])
            case "/favicon.ico":
                return web.Response(status=204)
            case _:
                return web.Response(
                    status=404, text="<title>None</title><h1>Not here</h1>", content_type="text/html"
                )

    def attached(self, name: str, data: bytes) -> web.Response:
        return web.Response(body=data, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def silence() -> bytes:
    """Return one second of silence as a sound file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 1, 8000, 8000, "NONE", ""))
        sound.writeframes(b"\x80" * 8000)
    return file.getvalue()


@asynccontextmanager
async def site() -> AsyncGenerator[Site]:
    """It, listening on this machine."""
    server = Site()
    application = web.Application()
    application.router.add_get("/{path:.*}", server.page)
    runner = web.AppRunner(application, handle_signals=False)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    server.port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{server.port}"
    try:
        yield server
    finally:
        server.closing.set()
        await runner.cleanup()
