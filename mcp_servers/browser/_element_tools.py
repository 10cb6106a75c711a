"""Tools that act on elements of the page."""

import json
from typing import TYPE_CHECKING, Annotated

import anyio
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.browser._files import payloads, save
from mcp_servers.browser._page_actions import act, locate, stop_scripts, unless_blocked
from mcp_servers.browser._schemas import (
    Button,
    Element,
    Evaluated,
    FilePath,
    FormField,
    Modifier,
    PageState,
    Target,
)
from mcp_servers.browser._state import BrowserState
from mcp_servers.core._call import CallContext
from mcp_servers.core._session import Session
from mcp_servers.core._tool import tool

if TYPE_CHECKING:
    from playwright.async_api import Locator

    from mcp_servers.browser._state import Tab

__all__ = ["HandlingTools"]

LONGEST_TEXT = 200_000
LONGEST_VALUE = 1_000_000


# A function given as text is called; anything else is the value itself. `undefined` is `null` in JSON.
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


class HandlingTools:
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
        modifiers: Annotated[list[Modifier] | None, Field(description="Keys to hold meanwhile.")] = None,
    ) -> PageState:
        """Click an element: follow a link, press a button, tick a box.

        Use it with a ref of the last snapshot; the result shows the page afterwards.
        """

        async def do(tab: "Tab") -> None:
            place = await locate(tab, target)
            click = place.dblclick if doubleClick else place.click
            await unless_blocked(tab, lambda: click(button=button, modifiers=modifiers))

        return await act("browser_click", session, context, do)

    @tool(title="Type text", open_world=True)
    async def type(
        self,
        session: Session,
        context: CallContext,
        target: Target,
        text: Annotated[str, Field(max_length=LONGEST_TEXT, description="What the field is to hold.")],
        element: Element = None,
        submit: Annotated[bool, Field(description="Press Enter afterwards.")] = False,
        slowly: Annotated[
            bool, Field(description="Type character by character, for pages that listen to keys.")
        ] = False,
    ) -> PageState:
        """Put text into a field, replacing what it held.

        Use it for one field; browser_fill_form fills several.
        """

        async def do(tab: "Tab") -> None:
            place = await locate(tab, target)

            async def enter() -> None:
                if slowly:
                    await place.press_sequentially(text)
                else:
                    await place.fill(text)
                if submit:
                    await place.press("Enter")

            await unless_blocked(tab, enter)

        return await act("browser_type", session, context, do)

    @tool(title="Fill form", open_world=True)
    async def fill_form(
        self,
        session: Session,
        context: CallContext,
        fields: Annotated[
            list[FormField], Field(min_length=1, max_length=200, description="The fields, in their order.")
        ],
    ) -> PageState:
        """Fill several fields of a form at once.

        Use it instead of many calls of browser_type, browser_click and browser_select_option.
        """

        async def do(tab: "Tab") -> None:
            for field in fields:
                place = await locate(tab, field.target)
                await unless_blocked(tab, lambda place=place, field=field: _fill(place, field))

        return await act("browser_fill_form", session, context, do)

    @tool(title="Select option", open_world=True)
    async def select_option(
        self,
        session: Session,
        context: CallContext,
        target: Target,
        values: Annotated[list[str], Field(min_length=1, description="Values or texts of the options.")],
        element: Element = None,
    ) -> PageState:
        """Choose options of a list that drops down, or of one that allows several.

        Use it for what a snapshot calls a combobox or listbox with options.
        """

        async def do(tab: "Tab") -> None:
            place = await locate(tab, target)
            await unless_blocked(tab, lambda: place.select_option(values))

        return await act("browser_select_option", session, context, do)

    @tool(title="Hover mouse", open_world=True)
    async def hover(
        self, session: Session, context: CallContext, target: Target, element: Element = None
    ) -> PageState:
        """Put the mouse over an element.

        Use it for menus and hints that show only then.
        """

        async def do(tab: "Tab") -> None:
            place = await locate(tab, target)
            await unless_blocked(tab, place.hover)

        return await act("browser_hover", session, context, do)

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

        Use it to sort lists, or to move things on boards.
        """

        async def do(tab: "Tab") -> None:
            start, end = await locate(tab, startTarget), await locate(tab, endTarget)
            await unless_blocked(tab, lambda: start.drag_to(end))

        return await act("browser_drag", session, context, do)

    @tool(title="Drop files or data onto an element", open_world=True)
    async def drop(
        self,
        session: Session,
        context: CallContext,
        target: Target,
        element: Element = None,
        paths: Annotated[list[str] | None, Field(description="Files of the workspace to drop.")] = None,
        data: Annotated[
            dict[str, str] | None,
            Field(description="Data to drop: its type, such as `text/plain`, to its text."),
        ] = None,
    ) -> PageState:
        """Drop files or data onto an element, as if dragged from outside of the page.

        Use it for places that say “drop files here”; browser_file_upload is for buttons that ask for files.
        """
        if not paths and not data:
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "browser_drop: give paths, data, or both.")
        most = session.get(BrowserState).settings.file_bytes
        files = await payloads("browser_drop", session, paths or [], most)

        async def do(tab: "Tab") -> None:
            place = await locate(tab, target)
            if data and files:
                await unless_blocked(tab, lambda: place.drop({"files": files, "data": data}))
            elif files:
                await unless_blocked(tab, lambda: place.drop({"files": files}))
            else:
                await unless_blocked(tab, lambda: place.drop({"data": data or {}}))

        return await act("browser_drop", session, context, do)

    @tool(title="Press a key", open_world=True)
    async def press_key(
        self,
        session: Session,
        context: CallContext,
        key: Annotated[
            str, Field(min_length=1, max_length=100, description="`ArrowLeft`, `a`, `Control+A`, `Enter`, …")
        ],
    ) -> PageState:
        """Press a key, where the focus is.

        Use it for keyboard shortcuts, or to move with Tab and arrows.
        """

        async def do(tab: "Tab") -> None:
            await unless_blocked(tab, lambda: tab.page.keyboard.press(key))

        return await act("browser_press_key", session, context, do)

    @tool(title="Upload files", open_world=True)
    async def file_upload(
        self,
        session: Session,
        context: CallContext,
        paths: Annotated[
            list[str] | None,
            Field(description="Files of the workspace; without them the page is given none."),
        ] = None,
    ) -> PageState:
        """Give files of the workspace to a page that asks for them.

        Use it when a result shows `file_chooser`, after a click on the page's button for files.
        """
        most = session.get(BrowserState).settings.file_bytes
        files = await payloads("browser_file_upload", session, paths or [], most)

        async def give(tab: "Tab") -> None:
            chooser = tab.chooser
            if chooser is None:
                message = (
                    "browser_file_upload: the page asks for no files now; click its button for files first."
                )
                raise ToolFailure(ErrorKind.NOT_FOUND, message)
            tab.unblocked()
            if files:
                await unless_blocked(tab, lambda: chooser.set_files(files))

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
                max_length=LONGEST_TEXT,
                description="`() => …`, or `element => …` with a target.",
            ),
        ],
        target: Annotated[
            str | None, Field(min_length=1, description="An element: its ref or a selector.")
        ] = None,
        element: Element = None,
        filename: FilePath = None,
    ) -> Evaluated:
        """Run a JavaScript function in the page, and return what it returns.

        Use it to read or do what no other tool can.
        """
        state = session.get(BrowserState)
        value = "null"
        most = state.settings.file_bytes if filename else LONGEST_VALUE

        async def run(tab: "Tab") -> None:
            nonlocal value

            async def evaluate() -> str | None:
                if target is None:
                    return await tab.page.evaluate(_call_of(function, most))
                place = await locate(tab, target)
                return await place.evaluate(_call_of(function, most, on_element=True))

            with anyio.move_on_after(state.settings.script_seconds) as scope:
                value = await unless_blocked(tab, evaluate) or "null"
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
        return Evaluated(**dict(page), value=value)

    @tool(title="Run Playwright code (unsafe)", open_world=True)
    async def run_code_unsafe(
        self,
        session: Session,
        code: Annotated[str | None, Field(description="Code for Playwright's own process.")] = None,
        filename: Annotated[str | None, Field(description="A file with such code.")] = None,
    ) -> PageState:
        """Not offered by this server, which runs no code outside of pages.

        Use browser_evaluate for code in the page, and the other tools for the rest.
        """
        raise ToolFailure(ErrorKind.DENIED, f"browser_run_code_unsafe: {NO_CODE}")


NO_CODE = "this server runs no code outside of pages: use browser_evaluate, or the other tools."


async def _fill(place: "Locator", field: FormField) -> None:
    if field.type in ("textbox", "slider"):
        await place.fill(field.value)
    elif field.type in ("checkbox", "radio"):
        if field.value not in ("true", "false"):
            message = (
                f"browser_fill_form: {field.name}: a {field.type} is `true` or `false`, not {field.value!r}."
            )
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        await place.set_checked(field.value == "true")
    else:
        await place.select_option(label=field.value)


def _call_of(source: str, most: int, *, on_element: bool = False) -> str:
    """A function that calls the one whose text this is, on an element or alone, and returns its result as JSON of so many characters."""
    words = ("element", "element") if on_element else ("()", "")
    return _CALL % {"source": source, "argument": words[0], "passed": words[1], "most": most}
