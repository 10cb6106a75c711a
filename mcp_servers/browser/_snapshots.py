"""Snapshots of a page: its state as tools return it, and the element names in it."""

from __future__ import annotations

import contextlib
import re
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import anyio

from agentflow.actors import together
from mcp_servers.browser._schemas import MAX_TITLE_CHARS, MAX_URL_CHARS, Dialog, PageState, TabInfo
from mcp_servers.core._running import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from playwright.async_api import Dialog as OpenDialog

    from mcp_servers.browser._state import BrowserState, Tab
    from mcp_servers.core._call import CallContext
    from mcp_servers.core._sessions import Session


MAX_ERRORS = 20
MAX_ERROR_CHARS = 300
SNAPSHOT_SECONDS = 15
MAX_DIFF_LINES = 2_000
"""Longer snapshots are compared only up to their first difference, to bound the time."""
_MARKED = re.compile(r"\[ref=((?:f\d+)?e\d+)\]")
_REF = re.compile(r"(f\d+)?e(\d+)")


async def page_state(
    state: BrowserState,
    session: Session,
    context: CallContext,
    *,
    snapshot: bool = True,
    text: str | None = None,
    title: str | None = None,
) -> PageState:
    """Return the state of the current tab, with the errors, notes and downloads not reported yet.

    :param text: the snapshot, if already taken.
    :param title: the title, if already known.
    """
    tab = state.current
    if tab is not None and text is None and snapshot and not tab.is_blocked and not tab.crashed:
        text, title = await with_title(tab, snapshot_of)
    if text is not None:
        text = shown(text, "snapshot.txt", state.settings.snapshot_characters, session, context)
    notes, state.notes = state.notes, []
    downloads, state.downloaded = state.downloaded, []
    if tab is None:
        return PageState(
            url="",
            title="",
            snapshot=None,
            tabs=[],
            dialog=None,
            file_chooser=False,
            downloads=downloads,
            console=[],
            note=" ".join(["No tab is open.", *notes]),
        )
    errors, tab.errors = tab.errors, []
    return PageState(
        url=tab.page.url[:MAX_URL_CHARS],
        title=await title_of(tab) if title is None else title,
        snapshot=text,
        tabs=await tab_infos(state) if len(state.tabs) > 1 else [],
        dialog=_dialog_info(tab.dialog) if tab.dialog else None,
        file_chooser=tab.chooser is not None,
        downloads=downloads,
        console=[error[:MAX_ERROR_CHARS] for error in errors[:MAX_ERRORS]],
        note=" ".join(notes),
    )


async def snapshot_of(tab: Tab, *, depth: int | None = None, boxes: bool | None = None) -> str:
    """Return the page's snapshot with the element names known to the client."""
    text = await tab.page.aria_snapshot(mode="ai", depth=depth, boxes=boxes, timeout=SNAPSHOT_SECONDS * 1000)
    return tab.names.shown(text)


async def with_title(tab: Tab, read: Callable[[Tab], Awaitable[str]]) -> tuple[str, str]:
    """Return what `read` returns and the page's title, requested concurrently to save a round trip."""
    text, title = await together((partial(read, tab), partial(title_of, tab)))
    return text, title


async def tab_infos(state: BrowserState) -> list[TabInfo]:
    """Describe all tabs."""
    return [
        TabInfo(
            index=index,
            title=await title_of(tab),
            url=tab.page.url[:MAX_URL_CHARS],
            current=tab is state.current,
        )
        for index, tab in enumerate(state.tabs)
    ]


async def title_of(tab: Tab) -> str:
    """Return the page's title; empty if the page does not answer now."""
    from playwright.async_api import Error

    title = ""
    if not tab.is_blocked and not tab.crashed:
        # A page that is navigating has none.
        with contextlib.suppress(Error), anyio.move_on_after(1):
            title = (await tab.page.title())[:MAX_TITLE_CHARS]
    return title


def _dialog_info(dialog: OpenDialog) -> Dialog:
    return Dialog(
        type=dialog.type,
        message=dialog.message[:MAX_URL_CHARS],
        default=dialog.default_value[:MAX_URL_CHARS],
    )


def is_ref(target: str) -> bool:
    """Return whether `target` is a ref of a snapshot; anything else is a selector."""
    return _REF.fullmatch(target) is not None


def without_refs(snapshot: str) -> str:
    """Return a snapshot without refs."""
    return _MARKED.sub("", snapshot)


class RefNames:
    """Translation between the element names known to the client and the page's own. Initially they are equal.

    Chromium numbers elements as they are first seen, so a page that is loaded again for a fork has other numbers. The
    translation keeps the names of the parent's snapshots valid in the fork.
    """

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._real: dict[str, str] = {}
        self._beyond = 0

    def align(self, recorded: str, real: str) -> str:
        """Name the elements of the snapshot `real` as in `recorded`, line by line.

        :return: the first line that differs in more than names; empty if none does.
        """
        names: dict[str, str] = {}
        difference = ""
        old, new = recorded.splitlines(), real.splitlines()
        plain_old, plain_new = [without_refs(line) for line in old], [without_refs(line) for line in new]
        for old_start, new_start, size in _common(plain_old, plain_new):
            for left, right in zip(
                old[old_start : old_start + size], new[new_start : new_start + size], strict=True
            ):
                names.update(zip(_MARKED.findall(right), _MARKED.findall(left), strict=True))
        if plain_old != plain_new:
            pairs = zip_longest(plain_old, plain_new, fillvalue="")
            difference = next((left or right for left, right in pairs if left != right)).strip()
        self._shown, self._real, self._beyond = {}, {}, 0
        if difference or any(real != shown for real, shown in names.items()):
            self._shown = names
            self._real = {shown: real for real, shown in names.items()}
            taken = [_parts(name)[1] for name in (*_MARKED.findall(recorded), *_MARKED.findall(real))]
            self._beyond = 1 + max(taken, default=0)
        return difference

    def shown(self, snapshot: str) -> str:
        """Return a snapshot of the page with the names known to the client."""
        if not self._beyond:
            return snapshot
        return _MARKED.sub(lambda match: f"[ref={self.shown_name(match[1])}]", snapshot)

    def shown_name(self, real: str) -> str:
        """Return the name by which the client knows an element."""
        if not self._beyond or real in self._shown:
            return self._shown.get(real, real)
        # Elements that appeared later get numbers beyond all those in use.
        frame, number = _parts(real)
        return f"{frame}e{number + self._beyond}"

    def real_name(self, shown: str) -> str:
        """Return the page's own name of an element."""
        if not self._beyond or shown in self._real:
            return self._real.get(shown, shown)
        frame, number = _parts(shown)
        # No element is named `e0`: an element of the parent that the fork lacks is not found.
        return f"{frame}e{max(number - self._beyond, 0)}"


def _common(old: list[str], new: list[str]) -> list[tuple[int, int, int]]:
    """Return runs of equal lines: start in `old`, start in `new`, and length."""
    if old == new:
        return [(0, 0, len(old))]
    if len(old) + len(new) > MAX_DIFF_LINES:
        same = next((at for at, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), 0)
        return [(0, 0, same)]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]


def _parts(name: str) -> tuple[str, int]:
    match = _REF.fullmatch(name)
    assert match is not None
    return match[1] or "", int(match[2])
