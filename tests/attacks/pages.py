"""Hostile pages in the browser: files, dialogs, popups, sizes, titles, devices, workers and what outlives a session."""

from collections.abc import Iterable
from typing import Final
from unittest.mock import patch

import anyio

from mcp_servers import ToolTable
from tests.attacks._table import Attack, attacks
from tests.mcp_servers.browser._browsing import Browsing, new_session
from tests.mcp_servers.browser._site import PAGES, Site

CATEGORY: Final = "pages"
SECONDS: Final = 60
HONEST: Final = "next page opens; next session is clean"
_MAX_RESULT: Final = 300_000

_SAY: Final = "<p id=out>none</p><script>const say = text => { document.getElementById('out').textContent = text; };</script>"
_PAGES: dict[str, tuple[str, str, str, str]] = {
    "file: frame": ("show a file of the host in a frame", "<iframe src='file:///etc/passwd'></iframe><embed src='file:///etc/passwd'><object data='file:///etc/passwd'></object>", "snapshot", "(?!.*root:x).*"),
    "file: script": ("run a file as a script", f"{_SAY}<script src='file:///etc/passwd' onload=\"say('read')\" onerror=\"say('refused')\"></script>", "out", "refused|none"),
    "file: fetch": ("fetch a file", f"{_SAY}<script>fetch('file:///etc/passwd').then(r => r.text()).then(say, () => say('refused'))</script>", "out", "refused"),
    "file: worker": ("read a file in a worker", f"{_SAY}<script>try {{ const w = new Worker('file:///etc/passwd'); w.onerror = () => say('refused'); }} catch {{ say('refused'); }}</script>", "out", "refused"),
    "file: location": ("go to a file", "<script>setTimeout(() => { location = 'file:///etc/passwd'; }, 50)</script>words", "snapshot", "(?!.*root:x).*"),
    "file: window": ("open a file in a tab", "<script>window.open('file:///etc/passwd')</script>words", "snapshot", "(?!.*root:x).*"),
    "file: settings": ("open the settings of the browser", "<script>window.open('chrome://settings'); location = 'chrome://version'</script>words", "snapshot", "(?!.*Command Line).*"),
    "scheme: programs": ("start programs by addresses", "<iframe src='mailto:x'></iframe><iframe src='steam://x'></iframe><iframe src='ms-settings:x'></iframe>words", "snapshot", ".*"),
    "devtools: port": ("reach the port of the tools", f"{_SAY}<script>Promise.any([9222, 9229, 1080, 45000].map(p => fetch('http://127.0.0.1:' + p + '/json', {{mode: 'no-cors'}}))).then(() => say('reached'), () => say('refused'))</script>", "out", "refused|none"),
    "dialog: loop": ("block by dialogs", "<script>for (;;) alert('x')</script>", "snapshot", ".*"),
    "dialog: on leaving": ("forbid to leave", "<body onclick><script>addEventListener('beforeunload', e => { e.preventDefault(); e.returnValue = 'no'; })</script><button>Stay</button>", "click", ".*"),
    "dialog: print": ("block by printing", "<script>print()</script>words", "snapshot", ".*"),
    "dialog: password": ("ask for a password", "<script>setTimeout(() => prompt('Password?'), 50)</script>words", "snapshot", ".*"),
    "popup: loop": ("open tabs without an end", "<script>for (let n = 0; n < 300; n++) window.open('/popup')</script>words", "tabs", "([0-9]|1[0-6])"),
    "popup: opener": ("take the first tab along", "<script>const w = window.open('/popup'); setTimeout(() => w.location = 'file:///etc/passwd', 50)</script>words", "snapshot", "(?!.*root:x).*"),
    "script: endless": ("never finish", "words<script>setTimeout(() => { for (;;); }, 50)</script>", "none", ".*"),
    "script: memory": ("fill the memory", "words<script>setTimeout(() => { const kept = []; for (let n = 0; n < 300; n++) kept.push(new Float64Array(1 << 20).fill(n)); }, 50)</script>", "none", ".*"),
    "redirect: loop": ("redirect without an end", "<script>location = location.pathname + '?' + Math.random()</script>", "none", ".*"),
    "redirect: refresh": ("refresh without an end", "<meta http-equiv=refresh content=0>words", "none", ".*"),
    "history: flood": ("fill the history", "words<script>for (let n = 0; n < 5000; n++) { try { history.pushState(n, '', '#' + n); } catch {} }</script>", "snapshot", ".*"),
    "size: elements": ("fill the snapshot", "<script>document.body.innerHTML = '<button>x</button>'.repeat(50_000)</script>", "snapshot", ".*"),
    "size: text": ("fill the snapshot by a text", "<p></p><script>document.querySelector('p').textContent = 'x '.repeat(3_000_000)</script>", "snapshot", ".*"),
    "size: nesting": ("nest deeply", "<script>let e = document.body; for (let n = 0; n < 3000; n++) e = e.appendChild(document.createElement('div')); e.textContent = 'deep'</script>", "snapshot", ".*"),
    "size: page": ("take a giant picture", "<div style='height: 30000000px; width: 30000000px; background: red'>words</div>", "screenshot", "(shown|failed)"),
    "size: canvas": ("draw a giant picture", "<canvas width=32000 height=32000></canvas><script>document.querySelector('canvas').getContext('2d').fillRect(0, 0, 9, 9)</script>", "screenshot", "(shown|failed)"),
    "size: zoom": ("scale the page up", "<body style='zoom: 1000000; transform: scale(1e9)'>words", "screenshot", "(shown|failed)"),
    "title: escapes": ("send escapes by a title", "<title></title><script>document.title = '\\x1b]0;evil\\x07\\u202e\\nlines'</script>words", "title", "[^\\x1b\\x07\\n]*"),
    "title: long": ("fill the result by a title", "<title></title><script>document.title = 'x'.repeat(10_000_000)</script>words", "title", ".{0,5000}"),
    "label: long": ("fill the result by a label", "<button></button><script>document.querySelector('button').ariaLabel = 'x'.repeat(10_000_000)</script>", "snapshot", ".*"),
    "console: flood": ("fill the console", "words<script>for (let n = 0; n < 20_000; n++) console.error('x'.repeat(100) + n)</script>", "console", ".*"),
    "console: escapes": ("send escapes by the console", "words<script>console.error('\\x1b[2J\\x1b]0;evil\\x07')</script>", "snapshot", ".*"),
    "clipboard": ("read the clipboard", f"{_SAY}<script>navigator.clipboard.readText().then(t => say('read ' + t), () => say('refused'))</script>", "out", "refused|none"),
    "camera": ("use the camera", f"{_SAY}<script>navigator.mediaDevices.getUserMedia({{video: true, audio: true}}).then(() => say('seen'), () => say('refused'))</script>", "out", "refused|none"),
    "screen": ("record the screen", f"{_SAY}<script>navigator.mediaDevices.getDisplayMedia().then(() => say('seen'), () => say('refused'))</script>", "out", "refused|none"),
    "place": ("find the machine", f"{_SAY}<script>navigator.geolocation.getCurrentPosition(() => say('found'), () => say('refused'))</script>", "out", "refused|none"),
    "notification": ("notify the user", f"{_SAY}<script>Notification.requestPermission().then(say)</script>", "out", "denied|default|none"),
    "devices": ("use devices", f"{_SAY}<script>Promise.any([navigator.usb?.requestDevice({{filters: []}}), navigator.serial?.requestPort(), navigator.hid?.requestDevice({{filters: []}}), navigator.bluetooth?.requestDevice({{acceptAllDevices: true}})].map(p => p ?? Promise.reject())).then(() => say('got'), () => say('refused'))</script>", "out", "refused|none"),
    "folders": ("read a folder", f"{_SAY}<script>(window.showDirectoryPicker ? showDirectoryPicker() : Promise.reject()).then(() => say('read'), () => say('refused'))</script>", "out", "refused|none"),
    "WebRTC": ("learn the addresses of the host", f"{_SAY}<script>const c = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:3478'}}]}}); const found = []; c.onicecandidate = e => {{ if (e.candidate) found.push(e.candidate.address); else say(found.join(' ') || 'no address'); }}; c.createDataChannel('x'); c.createOffer().then(o => c.setLocalDescription(o))</script>", "out", "(no address|none|(\\S+\\.local ?)+)"),
    "worker: service": ("stay in the browser", f"{_SAY}<script>navigator.serviceWorker.register('/evil.js').then(() => say('registered'), () => say('refused'))</script>", "out", "refused|none"),
    "storage: flood": ("fill the disk", f"{_SAY}<script>(async () => {{ try {{ const cache = await caches.open('x'); for (let n = 0; n < 64; n++) await cache.put('/x' + n, new Response(new Uint8Array(1 << 20))); }} catch {{}} localStorage.evil = 'x'; document.cookie = 'evil=x; max-age=9999999'; say('stored'); }})()</script>", "out", ".*"),
    "download: flood": ("fill the workspace", "words<script>for (let n = 0; n < 60; n++) { const a = document.createElement('a'); a.href = URL.createObjectURL(new Blob(['x'.repeat(1 << 20)])); a.download = '../evil' + n; document.body.append(a); a.click(); }</script>", "snapshot", ".*"),
    "download: address": ("fill the result by the address of a download", "<a download=x>Get</a><script>document.querySelector('a').href = 'data:application/x-evil,' + 'x'.repeat(3_000_000)</script><button onclick=\"document.querySelector('a').click()\">Go</button>", "click", r"\{.*"),
    "address: long": ("fill an error by an address", "<script>history.pushState(1, '', '#' + 'x'.repeat(1_900_000)); setTimeout(() => alert('x'), 50)</script>words", "snapshot", "-.*"),
    "frame: many": ("fill the browser with frames", "<script>for (let n = 0; n < 300; n++) { const f = document.createElement('iframe'); f.src = '/popup?' + n; document.body.append(f); }</script>words", "snapshot", ".*"),
    "full screen": ("take the screen", "words<script>document.documentElement.requestFullscreen?.().catch(() => {}); document.body.requestPointerLock?.()</script>", "snapshot", ".*"),
    "document: rewritten": ("rewrite itself without an end", "<script>setInterval(() => { document.open(); document.write('<p>' + Math.random()); document.close(); }, 1)</script>", "none", ".*"),
}  # fmt: skip

ATTACKS: Final[list[Attack]] = attacks(
    CATEGORY,
    {name: (aim, page, f"({seen}|failed); {HONEST}") for name, (aim, page, _, seen) in _PAGES.items()},
    soak=True,
)


async def _look(browsing: Browsing, how: str) -> str:
    """Return what the result of a tool shows of a page, as the attack asks."""
    if how == "out":
        result = await browsing.call("wait_for", time=0.05)
        for _ in range(20):
            result = await browsing.call(
                "evaluate", function="() => document.getElementById('out')?.textContent"
            )
            if result.error is not None:
                return "failed"
            if result.data["value"] != '"none"':
                break
            await browsing.call("wait_for", time=0.05)
        return str(result.data.get("value")).strip('"')
    if how == "screenshot":
        result = await browsing.call("take_screenshot", fullPage=True)
        return "shown" if result.error is None else "failed"
    if how == "click":
        clicked = str(await browsing.call("click", target="button"))
        for _ in range(20):
            clicked = max(clicked, str(await browsing.call("wait_for", time=0.1)), key=len)
        return clicked if len(clicked) < _MAX_RESULT else f"{len(clicked)} characters"
    if how == "none":
        return ""
    result = await browsing.call("snapshot")
    if len(str(result)) > _MAX_RESULT:
        return f"{len(str(result))} characters"
    if result.error is not None:
        return "failed"
    if how == "tabs":
        return str(len((await browsing.call("tabs", action="list")).data.get("tabs", [])))
    return str(result.data.get("title", "")) if how == "title" else str(result.data["snapshot"])


async def _opens(browsing: Browsing) -> bool:
    """Open an honest page: answer a dialog that keeps the page, or close the browser if there are more."""
    for way in ("handle_dialog", "close", "close"):
        result = await browsing.call("navigate", url=f"{browsing.site.url}/form")
        if result.error is None and "Form" in str(result.data["snapshot"]):
            return True
        await browsing.call(way, **({"accept": True} if way == "handle_dialog" else {}))
    return False


async def _is_clean(browsing: Browsing) -> bool:
    """Return whether a new session has nothing that an earlier page stored."""
    opened = await browsing.call("navigate", url=f"{browsing.site.url}/store")
    if opened.error is not None:
        return False
    kept = "async () => [document.cookie, localStorage.evil ?? '', (await caches.keys()).length, (await navigator.serviceWorker.getRegistrations()).length].join('|')"
    found = await browsing.call("evaluate", function=kept)
    return found.error is None and found.data["value"] == '"||0|0"'


async def observe(browsers: ToolTable, site: Site, table: Iterable[Attack]) -> dict[str, str]:
    """Open each page in a session of its own, then an honest one in it and in a new session; return the outcomes by id."""
    seen: dict[str, str] = {}
    for number, attack in enumerate(table):
        name = attack.id.removeprefix(f"{CATEGORY}: ")
        path = f"/evil{number}"
        browsing = await new_session(browsers, site)
        with patch.dict(PAGES, {path: attack.code}):
            try:
                with anyio.fail_after(SECONDS):
                    await browsing.call("navigate", url=f"{site.url}{path}")
                    outcome = await _look(browsing, _PAGES[name][2])
                    following = "next page opens" if await _opens(browsing) else "next page does not open"
            except TimeoutError:
                outcome, following = "hung", f"after {SECONDS} s"
        await browsing.end()
        another = await new_session(browsers, site)
        clean = "next session is clean" if await _is_clean(another) else "next session is not clean"
        await another.end()
        seen[attack.id] = f"{outcome}; {following}; {clean}"
    return seen
