"""Input tools: actions on elements of the page, the keyboard, and the mouse by pixel coordinates."""

import json
from typing import TYPE_CHECKING, Annotated

import anyio
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._files import file_payloads, save
from mcp_servers.browser._page_actions import (
    act,
    act_on_element,
    act_on_tab,
    locate,
    stop_scripts,
    until_blocked_or_done,
)
from mcp_servers.browser._schemas import (
    Button,
    Element,
    FilePath,
    FormField,
    Modifier,
    PageState,
    ScriptResult,
    Target,
)
from mcp_servers.browser._state import BrowserState
from mcp_servers.core._call import CallContext
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool

if TYPE_CHECKING:
    from playwright.async_api import Locator

    from mcp_servers.browser._state import Tab


MAX_TEXT_CHARS = 200_000
MAX_VALUE_CHARS = 1_000_000


# A function given as source text is called; any other expression is the value itself. `undefined` becomes `null`.
_CALL = """async %(argument)s => {
  const value = (
%(source)s
);
  const result = typeof value === 'function' ? await value(%(passed)s) : await value;
  const text = JSON.stringify(result, null, 1) ?? 'null';
  if (text.length > %(most)d)
    throw new RangeError(`the value has ${text.length} characters, more than %(most)d`);
  return text;
}"""
_STILL = """async () => {
  let before;
  for (let frame = 0; frame < 30; frame++) {
    const now = scrollX + ',' + scrollY;
    if (frame > 2 && now === before)
      return;
    before = now;
    await new Promise(requestAnimationFrame);
  }
}"""
Across = Annotated[float, Field(description="Pixels from the left edge of the page.")]
Down = Annotated[float, Field(description="Pixels from the upper edge of the page.")]


class ElementTools:
    """Tools that act on elements."""

    @tool(title="Click", open_world=True)
    async def click(
        self,
        session: Session,
        context: CallContext,
        target: Target,
        element: Element = None,
        doubleClick: Annotated[bool, Field(description="Click twice.")] = False,
        button: Annotated[Button, Field(description="The mouse button.")] = "left",
        modifiers: Annotated[
            list[Modifier] | None, Field(description="Modifier keys to hold during the click.")
        ] = None,
    ) -> PageState:
        """Click an element: follow a link, press a button, tick a box.

        Use it with a ref from the last snapshot; the result shows the page afterwards.
        """

        async def click(locator: "Locator") -> None:
            once_or_twice = locator.dblclick if doubleClick else locator.click
            await once_or_twice(button=button, modifiers=modifiers)

        return await act_on_element("browser_click", session, context, target, click)

    @tool(title="Type text", open_world=True)
    async def type(
        self,
        session: Session,
        context: CallContext,
        target: Target,
        text: Annotated[str, Field(max_length=MAX_TEXT_CHARS, description="The text to enter.")],
        element: Element = None,
        submit: Annotated[bool, Field(description="Press Enter afterwards.")] = False,
        slowly: Annotated[
            bool, Field(description="Type character by character, for pages that react to keys.")
        ] = False,
    ) -> PageState:
        """Type text into a field, replacing its content.

        Use it for a single field; use browser_fill_form for several.
        """

        async def enter(locator: "Locator") -> None:
            if slowly:
                await locator.press_sequentially(text)
            else:
                await locator.fill(text)
            if submit:
                await locator.press("Enter")

        return await act_on_element("browser_type", session, context, target, enter)

    @tool(title="Fill form", open_world=True)
    async def fill_form(
        self,
        session: Session,
        context: CallContext,
        fields: Annotated[
            list[FormField], Field(min_length=1, max_length=200, description="The fields, in order.")
        ],
    ) -> PageState:
        """Fill several fields of a form at once.

        Use it instead of several calls of browser_type, browser_click and browser_select_option.
        """

        async def fill(tab: "Tab") -> None:
            for field in fields:
                await _fill(await locate(tab, field.target), field)

        return await act_on_tab("browser_fill_form", session, context, fill)

    @tool(title="Select option", open_world=True)
    async def select_option(
        self,
        session: Session,
        context: CallContext,
        target: Target,
        values: Annotated[list[str], Field(min_length=1, description="Values or texts of the options.")],
        element: Element = None,
    ) -> PageState:
        """Select one or more options of a drop-down or list.

        Use it for elements that a snapshot calls combobox or listbox with options.
        """
        return await act_on_element(
            "browser_select_option", session, context, target, lambda locator: locator.select_option(values)
        )

    @tool(title="Hover mouse", open_world=True)
    async def hover(
        self, session: Session, context: CallContext, target: Target, element: Element = None
    ) -> PageState:
        """Move the mouse over an element.

        Use it for menus and hints that appear only on hover.
        """
        return await act_on_element(
            "browser_hover", session, context, target, lambda locator: locator.hover()
        )

    @tool(title="Drag mouse", open_world=True)
    async def drag(
        self,
        session: Session,
        context: CallContext,
        startTarget: Target,
        endTarget: Target,
        startElement: Element = None,
        endElement: Element = None,
    ) -> PageState:
        """Drag one element onto another.

        Use it to sort lists or to move cards on boards.
        """

        async def drag(tab: "Tab") -> None:
            start, end = await locate(tab, startTarget), await locate(tab, endTarget)
            await start.drag_to(end)

        return await act_on_tab("browser_drag", session, context, drag)

    @tool(title="Drop files or data onto an element", open_world=True)
    async def drop(
        self,
        session: Session,
        context: CallContext,
        target: Target,
        element: Element = None,
        paths: Annotated[
            list[str] | None, Field(description="Paths of files in the workspace to drop.")
        ] = None,
        data: Annotated[
            dict[str, str] | None,
            Field(description="Data to drop: a map from MIME types, such as `text/plain`, to texts."),
        ] = None,
    ) -> PageState:
        """Drop files or data onto an element, as if dragged from outside the page.

        Use it for areas that say “drop files here”; use browser_file_upload for buttons that ask for files.
        """
        if not paths and not data:
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "browser_drop: give paths, data, or both.")
        most = session.get(BrowserState).settings.file_bytes
        files = await file_payloads("browser_drop", session, paths or [], most)

        async def drop(locator: "Locator") -> None:
            await locator.drop({"files": files or None, "data": data or None})

        return await act_on_element("browser_drop", session, context, target, drop)

    @tool(title="Press a key", open_world=True)
    async def press_key(
        self,
        session: Session,
        context: CallContext,
        key: Annotated[
            str, Field(min_length=1, max_length=100, description="`ArrowLeft`, `a`, `Control+A`, `Enter`, …")
        ],
    ) -> PageState:
        """Press a key in the focused element.

        Use it for keyboard shortcuts, or to move with Tab and the arrow keys.
        """
        return await act_on_tab(
            "browser_press_key", session, context, lambda tab: tab.page.keyboard.press(key)
        )

    @tool(title="Upload files", open_world=True)
    async def file_upload(
        self,
        session: Session,
        context: CallContext,
        paths: Annotated[
            list[str] | None,
            Field(description="Paths of files in the workspace; leave it out to cancel."),
        ] = None,
    ) -> PageState:
        """Upload files of the workspace to a page that asks for them.

        Use it when a result shows `file_chooser`, after a click on the page's upload button.
        """
        most = session.get(BrowserState).settings.file_bytes
        files = await file_payloads("browser_file_upload", session, paths or [], most)

        async def give(tab: "Tab") -> None:
            chooser = tab.chooser
            if chooser is None:
                message = (
                    "browser_file_upload: the page does not ask for files now; click its upload button first."
                )
                raise ToolFailure(ErrorKind.NOT_FOUND, message)
            tab.unblocked()
            if files:
                await until_blocked_or_done(tab, lambda: chooser.set_files(files))

        return await act("browser_file_upload", session, context, give, answers=True)

    @tool(title="Evaluate JavaScript", open_world=True)
    async def evaluate(
        self,
        session: Session,
        context: CallContext,
        function: Annotated[
            str,
            Field(
                min_length=1,
                max_length=MAX_TEXT_CHARS,
                description="`() => …`, or `element => …` with a target.",
            ),
        ],
        target: Annotated[
            str | None, Field(min_length=1, description="An element: its ref or a selector.")
        ] = None,
        element: Element = None,
        filename: FilePath = None,
    ) -> ScriptResult:
        """Run a JavaScript function in the page and return its result.

        Use it to read or do something that no other tool can.
        """
        state = session.get(BrowserState)
        value = "null"
        most = state.settings.file_bytes if filename else MAX_VALUE_CHARS

        async def run(tab: "Tab") -> None:
            nonlocal value

            async def evaluate() -> str | None:
                if target is None:
                    return await tab.page.evaluate(_call_of(function, most))
                locator = await locate(tab, target)
                return await locator.evaluate(_call_of(function, most, on_element=True))

            with anyio.move_on_after(state.settings.script_seconds) as scope:
                value = await until_blocked_or_done(tab, evaluate) or "null"
            if scope.cancelled_caught:
                await stop_scripts(state, tab)
                seconds = state.settings.script_seconds
                raise ToolFailure(
                    ErrorKind.TIMEOUT, f"browser_evaluate: the script was stopped after {seconds:g} s."
                )

        page = await act("browser_evaluate", session, context, run)
        if filename is not None:
            value = json.dumps(
                {"path": (await save("browser_evaluate", session, filename, value.encode())).path}
            )
        return ScriptResult(**dict(page), value=value)


async def _fill(locator: "Locator", field: FormField) -> None:
    if field.type in ("textbox", "slider"):
        await locator.fill(field.value)
    elif field.type in ("checkbox", "radio"):
        if field.value not in ("true", "false"):
            message = f"browser_fill_form: {field.name}: a {field.type} must be `true` or `false`, not {field.value!r}."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        await locator.set_checked(field.value == "true")
    else:
        await locator.select_option(label=field.value)


def _call_of(source: str, most: int, *, on_element: bool = False) -> str:
    """Return a JavaScript function that calls `source` and returns its result as JSON of at most `most` characters."""
    words = ("element", "element") if on_element else ("()", "")
    return _CALL % {"source": source, "argument": words[0], "passed": words[1], "most": most}


class MouseTools:
    """Mouse tools by pixel coordinates."""

    @tool(title="Move mouse", open_world=True)
    async def mouse_move_xy(self, session: Session, context: CallContext, x: Across, y: Down) -> PageState:
        """Move the mouse to a position on the page.

        Use it with coordinates from a screenshot, for elements without a ref.
        """
        return await act_on_tab(
            "browser_mouse_move_xy", session, context, lambda tab: tab.page.mouse.move(x, y)
        )

    @tool(title="Click", open_world=True)
    async def mouse_click_xy(
        self,
        session: Session,
        context: CallContext,
        x: Across,
        y: Down,
        button: Annotated[Button, Field(description="The mouse button.")] = "left",
        clickCount: Annotated[int, Field(ge=1, le=10, description="Number of clicks.")] = 1,
        delay: Annotated[
            float, Field(ge=0, le=10_000, description="Milliseconds between pressing and releasing.")
        ] = 0,
    ) -> PageState:
        """Click at a position on the page.

        Use it with coordinates from a screenshot; for an element with a ref, use browser_click.
        """
        return await act_on_tab(
            "browser_mouse_click_xy",
            session,
            context,
            lambda tab: tab.page.mouse.click(x, y, button=button, click_count=clickCount, delay=delay),
        )

    @tool(title="Drag mouse", open_world=True)
    async def mouse_drag_xy(
        self,
        session: Session,
        context: CallContext,
        startX: Across,
        startY: Down,
        endX: Across,
        endY: Down,
    ) -> PageState:
        """Drag with the left button from one position on the page to another.

        Use it for canvases, sliders and maps.
        """

        async def drag(tab: "Tab") -> None:
            await tab.page.mouse.move(startX, startY)
            await tab.page.mouse.down()
            await tab.page.mouse.move(endX, endY, steps=5)
            await tab.page.mouse.up()

        return await act_on_tab("browser_mouse_drag_xy", session, context, drag)

    @tool(title="Press mouse down", open_world=True)
    async def mouse_down(
        self,
        session: Session,
        context: CallContext,
        button: Annotated[Button, Field(description="The mouse button.")] = "left",
    ) -> PageState:
        """Press a mouse button at the current position and hold it.

        Use it with browser_mouse_move_xy and browser_mouse_up for custom movements.
        """
        return await act_on_tab(
            "browser_mouse_down", session, context, lambda tab: tab.page.mouse.down(button=button)
        )

    @tool(title="Press mouse up", open_world=True)
    async def mouse_up(
        self,
        session: Session,
        context: CallContext,
        button: Annotated[Button, Field(description="The mouse button.")] = "left",
    ) -> PageState:
        """Release a mouse button.

        Use it after browser_mouse_down.
        """
        return await act_on_tab(
            "browser_mouse_up", session, context, lambda tab: tab.page.mouse.up(button=button)
        )

    @tool(title="Scroll mouse wheel", open_world=True)
    async def mouse_wheel(
        self,
        session: Session,
        context: CallContext,
        deltaX: Annotated[float, Field(description="Pixels to the right.")] = 0,
        deltaY: Annotated[float, Field(description="Pixels down.")] = 0,
    ) -> PageState:
        """Turn the mouse wheel at the current position.

        Use it to scroll the page, or a scrollable element under the mouse.
        """

        async def scroll(tab: "Tab") -> None:
            await tab.page.mouse.wheel(deltaX, deltaY)
            # Scrolling takes a few frames.
            with anyio.move_on_after(1):
                await tab.page.evaluate(_STILL)

        return await act_on_tab("browser_mouse_wheel", session, context, scroll)
