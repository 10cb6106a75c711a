"""The browser backend. A fork copies the session's pages: the same storage, history and form fields."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import anyio

from agentflow.actors import together
from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._chromium import BrowserProcess
from mcp_servers.browser._input_tools import ElementTools, MouseTools
from mcp_servers.browser._inspection_tools import InspectionTools, PdfTools
from mcp_servers.browser._navigation import NavigationTools, emulate
from mcp_servers.browser._page_actions import devtools_session, retry_while_swapping
from mcp_servers.browser._schemas import MAX_URL_CHARS
from mcp_servers.browser._script_state import connections, script_variables
from mcp_servers.browser._settings import SERVER_ONLY, BrowserSettings
from mcp_servers.browser._snapshots import snapshot_of
from mcp_servers.browser._state import BrowserState
from mcp_servers.core._backend import Backend
from mcp_servers.core._running import read_settings

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

    from playwright.async_api import Frame, Page, Route

    from mcp_servers.browser._state import Tab
    from mcp_servers.core._sessions import Session

_GROUPS: dict[str, tuple[type, ...]] = {
    "core": (NavigationTools, ElementTools, InspectionTools),
    "vision": (MouseTools,),
    "pdf": (PdfTools,),
}


class BrowserBackend(PdfTools, MouseTools, InspectionTools, ElementTools, NavigationTools, Backend):
    """Web pages in a sandboxed Chromium: one process per server, one browser context per session."""

    name = "browser"
    description = "Open web pages, read them, click, type, and take screenshots."
    settings_model = BrowserSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = SERVER_ONLY

    def __init__(self) -> None:
        self._browser = BrowserProcess(BrowserSettings())

    def unusable(self, settings: Mapping[str, object]) -> Mapping[str, str]:
        """Return the tools of disabled groups."""
        caps = read_settings(BrowserSettings, self.name, settings).caps
        return {
            verb: f"it belongs to the group {group!r}, which the setting browser.caps does not list."
            for group, parts in _GROUPS.items()
            if group not in caps
            for part in parts
            for verb in vars(part)
        }

    def configure(self, settings: Mapping[str, object]) -> None:
        """Apply the server's settings."""
        self._browser = BrowserProcess(read_settings(BrowserSettings, self.name, settings))

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Read the session's settings; its browser context is created on first use."""
        session.put(BrowserState(self._browser, read_settings(BrowserSettings, self.name, settings)))

    async def fork(self, session: Session, forked: Session) -> tuple[str, ...]:
        """Open the same pages with the same storage, history and form fields in a new context."""
        state = session.get(BrowserState)
        copy = BrowserState(self._browser, state.settings)
        forked.put(copy)
        async with state.lock:
            try:
                return await fork_state(state, copy)
            except BaseException:
                await copy.close()
                raise

    async def cleanup(self, session: Session) -> None:
        """Close the session's browser context."""
        try:
            state = session.get(BrowserState)
        except KeyError:
            return
        await state.close()

    async def shutdown(self) -> None:
        """Stop the browser."""
        await self._browser.close()


MAX_HISTORY = 30
MAX_DRAWINGS = 8
MAX_LOST_NAMES = 5
MAX_LOST_CHARS = 120
COMPARE_PAUSES = (0.0, 0.1, 0.2, 0.4, 0.8)
_BLANK = "about:blank"
_PATHS = """
  const pathOf = element => {
    const path = [];
    for (let node = element; node && node !== document.documentElement;) {
      const parent = node.parentNode;
      if (!parent)
        return null;
      path.unshift([...parent.children].indexOf(node));
      node = parent;
      if (node instanceof ShadowRoot) {
        path.unshift(-1);
        node = node.host;
      }
    }
    return path;
  };
  const at = (path, tag) => {
    let node = document.documentElement;
    for (const step of path) {
      node = step === -1 ? node?.shadowRoot : node?.children[step];
      if (!node)
        return null;
    }
    return node.tagName === tag ? node : null;
  };
  const all = root => [...root.querySelectorAll('*')].flatMap(
    element => element.shadowRoot ? [element, ...all(element.shadowRoot)] : [element]);
  const focused = () => {
    let element = document.activeElement;
    while (element?.shadowRoot?.activeElement)
      element = element.shadowRoot.activeElement;
    return element && element !== document.body ? element : null;
  };
"""
_STATE = """
  const digest = text => {
    let sum = 0;
    for (let index = 0; index < text.length; index++)
      sum = Math.imul(sum, 31) + text.charCodeAt(index) | 0;
    return sum;
  };
  const drawing = canvas => {
    try {
      return digest(canvas.toDataURL());
    } catch {
      // A drawing with pictures of other sites cannot be read.
      return 0;
    }
  };
"""
# Only fields that differ from what the page's own text says, except where that cannot be known.
READ = f"""() => {{
  {_PATHS}{_STATE}
  const fields = [], scrolled = [], drawings = [];
  let files = 0;
  for (const element of all(document)) {{
    const label = element.ariaLabel || element.name || element.id || element.tagName.toLowerCase();
    const add = (kind, value) => fields.push({{path: pathOf(element), tag: element.tagName, kind, value, label}});
    if (element instanceof HTMLCanvasElement) {{
      if (drawings.length < {MAX_DRAWINGS} && element.width * element.height)
        drawings.push(drawing(element));
    }} else if (element instanceof HTMLInputElement) {{
      if (element.type === 'file')
        files += element.files.length;
      else if (element.type === 'checkbox' || element.type === 'radio') {{
        if (element.checked !== element.defaultChecked)
          add('checked', element.checked);
        if (element.indeterminate)
          add('indeterminate', true);
      }} else if (element.value !== element.defaultValue)
        add('value', element.value);
    }} else if (element instanceof HTMLTextAreaElement) {{
      if (element.value !== element.defaultValue)
        add('value', element.value);
    }} else if (element instanceof HTMLSelectElement)
      add('selected', [...element.options].map(option => option.selected));
    else if (element instanceof HTMLDetailsElement)
      add('open', element.open);
    else if (element.isContentEditable && !element.parentElement?.isContentEditable)
      add('html', element.innerHTML);
    if (element !== document.scrollingElement && (element.scrollTop || element.scrollLeft))
      scrolled.push({{path: pathOf(element), tag: element.tagName, x: element.scrollLeft, y: element.scrollTop}});
  }}
  const focus = focused();
  let selection = null;
  try {{
    selection = focus && [focus.selectionStart ?? null, focus.selectionEnd ?? null];
  }} catch {{
    // Some kinds of fields have none.
  }}
  return {{
    fields, scrolled, files, drawings,
    title: document.title,
    markup: digest(document.documentElement.outerHTML.replace(/<title.*?<.title>/s, '')),
    history: digest(JSON.stringify(history.state)),
    opened: opener !== null,
    window: [scrollX, scrollY],
    focus: focus && {{path: pathOf(focus), tag: focus.tagName, selection}},
  }};
}}"""
# Events tell the page of what changed, as they did when it was done by hand.
WRITE = f"""state => {{
  {_PATHS}
  const set = (element, name, value) => {{
    for (let kind = element; kind; kind = Object.getPrototypeOf(kind)) {{
      const property = Object.getOwnPropertyDescriptor(kind, name);
      if (property?.set && kind !== element)
        return property.set.call(element, value);
    }}
    element[name] = value;
  }};
  const names = {{value: 'value', checked: 'checked', html: 'innerHTML', open: 'open', indeterminate: 'indeterminate'}};
  for (const {{path, tag, kind, value}} of state.fields) {{
    const element = path && at(path, tag);
    if (!element)
      continue;
    if (kind === 'selected') {{
      const options = [...element.options];
      if (options.length !== value.length || options.every((option, index) => option.selected === value[index]))
        continue;
      options.forEach((option, index) => option.selected = value[index]);
    }} else {{
      if (element[names[kind]] === value)
        continue;
      set(element, names[kind], value);
    }}
    if (kind === 'open' || kind === 'indeterminate')
      continue;
    element.dispatchEvent(new InputEvent('input', {{bubbles: true, composed: true}}));
    if (kind !== 'html')
      element.dispatchEvent(new Event('change', {{bubbles: true}}));
  }}
}}"""
SCROLL = f"""state => {{
  {_PATHS}
  const focus = state.focus && state.focus.path && at(state.focus.path, state.focus.tag);
  if (focus) {{
    focus.focus({{preventScroll: true}});
    try {{
      if (state.focus.selection && state.focus.selection[0] !== null)
        focus.setSelectionRange(...state.focus.selection);
    }} catch {{
      // Some kinds of fields have none.
    }}
  }}
  for (const {{path, tag, x, y}} of state.scrolled)
    (path && at(path, tag))?.scrollTo({{left: x, top: y, behavior: 'instant'}});
  scrollTo({{left: state.window[0], top: state.window[1], behavior: 'instant'}});
}}"""
READ_STORES = """async () => {
  const lines = [];
  try {
    for (const name of await caches.keys())
      lines.push('the cache ' + name + ' of ' + origin);
    for (const registration of await navigator.serviceWorker.getRegistrations())
      lines.push('the service worker of ' + registration.scope);
    for await (const name of (await navigator.storage.getDirectory()).keys())
      lines.push('the private file ' + name + ' of ' + origin);
  } catch {
    // Only secure origins have these.
  }
  return lines;
}"""
READ_SESSION_STORAGE = """() => {
  try {
    return [location.origin, Object.entries(sessionStorage)];
  } catch {
    return ['', []];
  }
}"""
# Runs before the page's own scripts; `%s` is an object from origins to entries.
KEEP_SESSION_STORAGE = """(() => {
  try {
    const entries = (%s)[location.origin];
    if (entries && !sessionStorage.length)
      entries.forEach(([key, value]) => sessionStorage.setItem(key, value));
  } catch {
    // Pages without an origin have no storage.
  }
})()"""


class _FrameState(TypedDict):
    """State of a frame, as `READ` returns it."""

    fields: list[dict[str, Any]]
    files: int
    scrolled: list[dict[str, Any]]
    window: list[float]
    drawings: list[int]
    title: str
    markup: int
    history: int
    opened: bool


@dataclass(frozen=True, slots=True)
class _PageContent:
    """State of a page that its fork should have."""

    snapshot: str
    frames: list[_FrameState | None]
    variables: Counter[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class _History:
    """Navigation history of a tab."""

    urls: list[str]
    """Addresses, oldest first."""
    current: int
    """Index of the current address."""


async def fork_state(state: BrowserState, copy: BrowserState) -> tuple[str, ...]:
    """Make `copy` like `state`.

    :return: one line for each part of the state that could not be copied.
    :raises ToolFailure: `cannot_fork`, while a dialog is open, or the browser has crashed.
    """
    copy.viewport, copy.offline, copy.files = state.viewport, state.offline, state.files
    if state.context is None:
        return ()
    from playwright.async_api import Error

    for tab in state.tabs:
        if tab.dialog is not None:
            message = f"a dialog is open on {tab.page.url[:MAX_URL_CHARS]}: answer it with browser_handle_dialog first."
            raise ToolFailure(ErrorKind.CANNOT_FORK, message)
    left_behind: list[str] = []
    try:
        with state.ignoring_new_pages():
            storage = await state.context.storage_state(indexed_db=True)
        await copy.ensure_context(storage)
        copies = [await _copy_tab(state, tab, copy) for tab in state.tabs]
        comparisons = await together([partial(_differences, new, content) for new, content, _ in copies])
        for index, (tab, (_, _, lines), differences) in enumerate(
            zip(state.tabs, copies, comparisons, strict=True)
        ):
            name = f"tab {index} ({tab.page.url[:MAX_URL_CHARS]})"
            left_behind += [f"{name}: {_one_line(line)}" for line in (*lines, *differences)]
        left_behind += [_one_line(line) for line in sorted(await _stores(state) - await _stores(copy))]
    except Error as error:
        message = f"the pages cannot be copied: {error.message.splitlines()[0]}"
        raise ToolFailure(ErrorKind.CANNOT_FORK, message) from None
    if state.current is not None and copy.tabs:
        copy.current = copy.tabs[state.tabs.index(state.current)]
    return tuple(left_behind)


async def _copy_tab(
    state: BrowserState, tab: Tab, copy: BrowserState
) -> tuple[Tab, _PageContent | None, list[str]]:
    """Open the same page in the copy and restore its state.

    :return: the new tab, the state that it should have, and what is known to be lost.
    """
    if tab.crashed:
        return await copy.open_tab(), None, ["its page has crashed"]
    lines = await connections(tab.page)
    if tab.chooser is not None:
        lines.append("the open file chooser")
    if tab.downloads:
        lines.append("running downloads")
    content = await _content_of(tab, await snapshot_of(tab))
    history = await _history_of(tab.page)
    storage = [await _session_storage(frame) for frame in tab.page.frames]
    new = await copy.open_tab()
    new.media = tab.media.copy()
    if new.media:
        await emulate(new)
    await _replay_history(new.page, history, KEEP_SESSION_STORAGE % json.dumps(dict(storage)))
    for script in (WRITE, SCROLL):
        with anyio.move_on_after(state.settings.settle_seconds):
            await copy.until_settled(frozenset())
        await _write(new.page, script, content.frames)
    if files := sum(frame["files"] for frame in content.frames if frame):
        lines.append(f"{files} chosen files")
    new.console.extend(tab.console)
    new.errors.clear()
    return new, content, lines


async def _content_of(tab: Tab, snapshot: str) -> _PageContent:
    frames = [await _read(frame) for frame in tab.page.frames]
    return _PageContent(snapshot, frames, await script_variables(tab.page))


async def _differences(tab: Tab, expected: _PageContent | None) -> list[str]:
    """Give the elements the parent's names; return what the page lacks."""
    lines: list[str] = []
    if expected is None:
        return lines
    for pause in COMPARE_PAUSES:
        # The parent's page has had more time to render.
        await anyio.sleep(pause)
        content = await _content_of(tab, await tab.page.aria_snapshot(mode="ai"))
        lines = list(_lost(expected, content, tab.names.align(expected.snapshot, content.snapshot)))
        if not lines:
            break
    return lines


def _lost(expected: _PageContent, content: _PageContent, difference: str) -> Iterator[str]:
    """Compare a page with its parent, whose snapshot has `difference` as its first different line."""
    names = sorted({name for name, _ in expected.variables - content.variables})
    if names:
        yield f"the script variables {_listed(names)}"
    if difference:
        yield f"the reloaded page differs, first at {difference!r}"
    for number, (old, new) in enumerate(zip_longest(expected.frames, content.frames)):
        if old and new:
            yield from _lost_of_frame(old, new, is_main=not number, differs=bool(difference))
        elif old:
            yield "a frame"


def _lost_of_frame(old: _FrameState, new: _FrameState, *, is_main: bool, differs: bool) -> Iterator[str]:
    if is_main and old["title"] != new["title"]:
        yield f"the title {old['title']!r}"
    fields = [field["label"] for field in old["fields"] if field not in new["fields"]]
    if fields:
        yield f"the content of the form fields {_listed(fields)}"
    if (old["window"], old["scrolled"]) != (new["window"], new["scrolled"]):
        yield "the scroll position"
    if old["drawings"] != new["drawings"]:
        yield "the drawing on a canvas"
    elif old["markup"] != new["markup"] and not differs:
        yield "changes of elements that a snapshot does not show"
    if old["history"] != new["history"]:
        yield "the state of the history entry (history.state)"
    if old["opened"] and not new["opened"]:
        yield "the connection to the page that opened it (window.opener)"


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_LOST_NAMES
    return ", ".join(names[:MAX_LOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LOST_CHARS else f"{line[:MAX_LOST_CHARS]} …"


async def _history_of(page: Page) -> _History:
    async with devtools_session(page) as ask:
        history = await ask("Page.getNavigationHistory")
    current: int = history["currentIndex"]
    first = max(current - MAX_HISTORY, 0)
    entries = history["entries"][first : current + MAX_HISTORY + 1]
    return _History([entry["url"] for entry in entries], current - first)


async def _replay_history(page: Page, history: _History, script: str) -> None:
    """Rebuild the history and open the current address. Earlier addresses are not requested until the client goes back."""
    from playwright.async_api import Error

    async with await page.add_init_script(script):
        *earlier, last = history.urls
        if history.current == len(earlier) and (earlier == [_BLANK] or history.urls == [_BLANK]):
            if last != _BLANK:
                # A page that cannot be opened shows the same error again.
                with contextlib.suppress(Error):
                    await page.goto(last)
            return
        await page.route("**/*", _blank)
        await _visit(page, history)
        await page.unroute("**/*", _blank)
        with contextlib.suppress(Error):
            await page.reload()


async def _visit(page: Page, history: _History) -> None:
    from playwright.async_api import Error

    for index, url in enumerate(history.urls):
        if index or url != _BLANK:
            with contextlib.suppress(Error):
                await page.goto(url, wait_until="commit")
            if not index:
                # A new tab starts with a blank page; this history does not.
                async with devtools_session(page) as ask:
                    await ask("Page.resetNavigationHistory")
    for _ in range(len(history.urls) - 1 - history.current):
        await retry_while_swapping(lambda: page.go_back(wait_until="commit"))


async def _blank(route: Route) -> None:
    await route.fulfill(status=200, content_type="text/html", body="")


async def _read(frame: Frame) -> _FrameState | None:
    from playwright.async_api import Error

    try:
        return await frame.evaluate(READ)
    except Error:
        # A frame without a document, or one that is navigating, has no state.
        return None


async def _session_storage(frame: Frame) -> tuple[str, list[list[str]]]:
    """Return the frame's origin and the entries of its session storage."""
    from playwright.async_api import Error

    try:
        return await frame.evaluate(READ_SESSION_STORAGE)
    except Error:
        return "", []


async def _stores(state: BrowserState) -> set[str]:
    """Return one line for each store of the pages' sites that Playwright does not copy."""
    from playwright.async_api import Error

    lines: set[str] = set()
    for frame in (frame for tab in state.tabs if not tab.crashed for frame in tab.page.frames):
        with contextlib.suppress(Error):
            lines.update(await frame.evaluate(READ_STORES))
    return lines


async def _write(page: Page, script: str, frames: list[_FrameState | None]) -> None:
    """Restore the states of the frames, in order."""
    from playwright.async_api import Error

    for frame, state in zip(page.frames, frames, strict=False):
        if state:
            # A frame that is navigating has no fields; the comparison names them.
            with contextlib.suppress(Error):
                await frame.evaluate(script, state)
