"""Navigation tools: addresses, tabs, dialogs, window size, media features and waiting."""

import re
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import msgspec
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._page_actions import (
    act,
    act_on_tab,
    navigation_failure,
    retry_while_swapping,
    until_blocked_or_done,
)
from mcp_servers.browser._schemas import PageState
from mcp_servers.browser._snapshots import page_state, tab_infos
from mcp_servers.browser._state import BrowserState, MediaFeatures
from mcp_servers.core._call import CallContext
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool
from runtimes.egress import http_target, resolve_public

if TYPE_CHECKING:
    from mcp_servers.browser._state import Tab


MAX_WAIT_SECONDS = 30
ATTEMPTS = 4
ERROR_PAGE_SECONDS = 1
_INTERRUPTED = 'interrupted by another navigation to "'
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:(?!\d)")
_WITHOUT_NETWORK = ("about:blank", "data:")
_LOCAL = re.compile(r"(localhost|127\.[\d.]+|\[::1\])(:\d+)?(/|$)")


class NavigationTools:
    """Navigation tools."""

    @tool(title="Navigate to a URL", open_world=True)
    async def navigate(
        self,
        session: Session,
        context: CallContext,
        url: Annotated[
            str, Field(min_length=1, description="The address to open; `https://` may be omitted.")
        ],
    ) -> PageState:
        """Open an address in the current tab and return the page's snapshot.

        Use it to start, or to open an address that you know. To follow a link of the page, use browser_click.
        """
        return await act(
            "browser_navigate", session, context, lambda tab: go_to(session, tab, url), pause=False
        )

    @tool(title="Go back", open_world=True)
    async def navigate_back(self, session: Session, context: CallContext) -> PageState:
        """Go back to the previous page, as the browser's back button does.

        Use it when a link did not lead where you wanted.
        """

        async def back(tab: "Tab") -> None:
            # A previous page such as about:blank loads without a response.
            url = tab.page.url
            if (
                await until_blocked_or_done(tab, lambda: retry_while_swapping(tab.page.go_back)) is None
                and tab.page.url == url
                and not tab.is_blocked
            ):
                raise ToolFailure(ErrorKind.NOT_FOUND, "browser_navigate_back: there is no previous page.")

        return await act("browser_navigate_back", session, context, back, pause=False)

    @tool(title="Manage tabs", open_world=True)
    async def tabs(
        self,
        session: Session,
        context: CallContext,
        action: Annotated[Literal["list", "new", "close", "select"], Field(description="What to do.")],
        index: Annotated[
            int | None,
            Field(ge=0, description="The tab to close or select; by default `close` closes the current tab."),
        ] = None,
        url: Annotated[
            str | None, Field(min_length=1, description="The address to open in a new tab.")
        ] = None,
    ) -> PageState:
        """List, open, close or select tabs; the other tools act on the selected tab.

        Use it when a click opened another tab, or to keep a page open while you read another.
        """
        state = session.get(BrowserState)

        async def change(tab: "Tab") -> None:
            if action == "new":
                fresh = await state.open_tab()
                if url is not None:
                    await go_to(session, fresh, url)
            elif action == "select":
                if index is None:
                    raise ToolFailure(
                        ErrorKind.BAD_ARGUMENTS, "browser_tabs: select needs the index of a tab."
                    )
                state.current = _tab_at(state, index)
                await state.current.page.bring_to_front()
            elif action == "close":
                await state.close_tab(tab if index is None else _tab_at(state, index))

        page = await act(
            "browser_tabs", session, context, change, answers=action in ("list", "close"), pause=False
        )
        # Other tools list the tabs only if there are several.
        return page if page.tabs else page.model_copy(update={"tabs": await tab_infos(state)})

    @tool(title="Close browser", open_world=True)
    async def close(self, session: Session, context: CallContext) -> PageState:
        """Close all pages and delete their cookies and storage; the next call starts with an empty browser.

        Use it to start over as a new visitor.
        """
        state = session.get(BrowserState)
        async with state.lock:
            await state.close()
            return await page_state(state, session, context)

    @tool(title="Resize browser window", open_world=True)
    async def resize(
        self,
        session: Session,
        context: CallContext,
        width: Annotated[int, Field(ge=1, le=8_192, description="Width in pixels.")],
        height: Annotated[int, Field(ge=1, le=8_192, description="Height in pixels.")],
    ) -> PageState:
        """Change the size of the page.

        Use it to see a page as on a phone, or to fit more of it into a screenshot.
        """
        state = session.get(BrowserState)

        async def change(tab: "Tab") -> None:
            state.viewport = (width, height)
            for open_tab in state.tabs:
                await open_tab.page.set_viewport_size({"width": width, "height": height})

        return await act("browser_resize", session, context, change)

    @tool(title="Handle a dialog", open_world=True)
    async def handle_dialog(
        self,
        session: Session,
        context: CallContext,
        accept: Annotated[bool, Field(description="Accept it (OK), or dismiss it (Cancel).")],
        promptText: Annotated[str | None, Field(description="The text to enter in a prompt.")] = None,
    ) -> PageState:
        """Answer a dialog (alert, confirm, prompt, leave page) that blocks the page.

        Use it when a result shows a `dialog`.
        """

        async def answer(tab: "Tab") -> None:
            dialog = tab.dialog
            if dialog is None:
                raise ToolFailure(ErrorKind.NOT_FOUND, "browser_handle_dialog: no dialog is open.")
            tab.unblocked()
            if accept:
                await until_blocked_or_done(tab, lambda: dialog.accept(promptText or ""))
            else:
                await until_blocked_or_done(tab, dialog.dismiss)

        return await act("browser_handle_dialog", session, context, answer, answers=True)

    @tool(title="Emulate media features", open_world=True)
    async def emulate_media(
        self,
        session: Session,
        context: CallContext,
        colorScheme: Annotated[
            Literal["light", "dark", "keep"] | None,
            Field(description="prefers-color-scheme; null clears it."),
        ] = "keep",
        reducedMotion: Annotated[
            Literal["reduce", "no-preference", "keep"] | None,
            Field(description="prefers-reduced-motion; null clears it."),
        ] = "keep",
        forcedColors: Annotated[
            Literal["active", "none", "keep"] | None, Field(description="forced-colors; null clears it.")
        ] = "keep",
        contrast: Annotated[
            Literal["more", "no-preference", "keep"] | None,
            Field(description="prefers-contrast; null clears it."),
        ] = "keep",
        media: Annotated[
            Literal["screen", "print", "keep"] | None,
            Field(description="The CSS media type; null clears it."),
        ] = "keep",
    ) -> PageState:
        """Emulate media features such as a dark color scheme, reduced motion or print; omitted features stay unchanged.

        Use it to see the page as other users see it.
        """
        features = {
            "color_scheme": colorScheme,
            "reduced_motion": reducedMotion,
            "forced_colors": forcedColors,
            "contrast": contrast,
            "media": media,
        }
        changed = {name: value or "null" for name, value in features.items() if value != "keep"}

        async def change(tab: "Tab") -> None:
            tab.media.update(msgspec.convert(changed, MediaFeatures))
            await emulate(tab)

        return await act("browser_emulate_media", session, context, change)

    @tool(title="Wait for", read_only=True, open_world=True)
    async def wait_for(
        self,
        session: Session,
        context: CallContext,
        time: Annotated[
            float | None, Field(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait.")
        ] = None,
        text: Annotated[
            str | None, Field(min_length=1, description="Wait until this text is visible.")
        ] = None,
        textGone: Annotated[
            str | None, Field(min_length=1, description="Wait until this text is gone.")
        ] = None,
    ) -> PageState:
        """Wait for a text to appear or disappear, or for some seconds, and return the page's snapshot.

        Use it when a page is still loading after an action.
        """
        if time is None and text is None and textGone is None:
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "browser_wait_for: give time, text or textGone.")

        async def wait(tab: "Tab") -> None:
            if time is not None:
                with anyio.move_on_after(time):
                    await tab.until_blocked()
            milliseconds = MAX_WAIT_SECONDS * 1000
            if textGone is not None:
                await tab.page.get_by_text(textGone).first.wait_for(state="hidden", timeout=milliseconds)
            if text is not None:
                await tab.page.get_by_text(text).first.wait_for(state="visible", timeout=milliseconds)

        return await act_on_tab("browser_wait_for", session, context, wait)


async def go_to(session: Session, tab: "Tab", url: str) -> None:
    """Open an address in a tab.

    :raises ToolFailure: if it is refused or cannot be opened.
    """
    from playwright.async_api import Error

    state = session.get(BrowserState)
    address = _address(url)
    if not address.startswith(_WITHOUT_NETWORK):
        # The proxy checks again; checking here gives the reason before anything is requested.
        target = http_target(address)
        await resolve_public(target.host, target.port, state.process.policy)
    for left in reversed(range(ATTEMPTS)):
        tab.failed_navigation, epoch = None, tab.epoch
        try:
            await until_blocked_or_done(tab, lambda: tab.page.goto(address, wait_until="load"))
            return
        except Error as error:
            if "Download is starting" in error.message:
                # The address is a file, which is reported among the downloads.
                with anyio.move_on_after(state.settings.action_seconds):
                    await tab.until_download()
                return
            other = error.message.partition(_INTERRUPTED)[2]
            if left and other.startswith(("chrome-error:", address)):
                # The browser's error page for an earlier failure, or the previous attempt, interrupted this one.
                continue
            if state.is_lost:
                raise
            # Wait for the browser's error page, so that it cannot interrupt the next navigation.
            with anyio.move_on_after(ERROR_PAGE_SECONDS):
                await tab.until_navigated(epoch)
            raise navigation_failure(state, tab, address, error) from None


async def emulate(tab: "Tab") -> None:
    """Apply the tab's media features to its page."""
    await tab.page.emulate_media(**tab.media)


def _address(url: str) -> str:
    """Return the address with a scheme."""
    text = url.strip()
    if _SCHEME.match(text):
        return text
    return f"http://{text}" if _LOCAL.match(text) else f"https://{text}"


def _tab_at(state: BrowserState, index: int) -> "Tab":
    if index >= len(state.tabs):
        raise ToolFailure(
            ErrorKind.NOT_FOUND, f"browser_tabs: there is no tab {index}; there are {len(state.tabs)}."
        )
    return state.tabs[index]
