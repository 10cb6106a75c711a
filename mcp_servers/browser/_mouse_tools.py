"""Tools of the group `vision`: the mouse, by pixel coordinates."""

from typing import TYPE_CHECKING, Annotated

import anyio
from pydantic import Field

from mcp_servers.browser._page_actions import act, until_blocked_or_done
from mcp_servers.browser._schemas import Button, PageState
from mcp_servers.core._call import CallContext
from mcp_servers.core._session import Session
from mcp_servers.core._tool import tool

if TYPE_CHECKING:
    from mcp_servers.browser._state import Tab


Across = Annotated[float, Field(description="Pixels from the left edge of the page.")]
Down = Annotated[float, Field(description="Pixels from the upper edge of the page.")]


class MouseTools:
    """Mouse tools by pixel coordinates."""

    @tool(title="Move mouse", open_world=True)
    async def mouse_move_xy(self, session: Session, context: CallContext, x: Across, y: Down) -> PageState:
        """Move the mouse to a position on the page.

        Use it with coordinates from a screenshot, for elements without a ref.
        """

        async def do(tab: "Tab") -> None:
            await until_blocked_or_done(tab, lambda: tab.page.mouse.move(x, y))

        return await act("browser_mouse_move_xy", session, context, do)

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

        async def do(tab: "Tab") -> None:
            mouse = tab.page.mouse
            await until_blocked_or_done(
                tab, lambda: mouse.click(x, y, button=button, click_count=clickCount, delay=delay)
            )

        return await act("browser_mouse_click_xy", session, context, do)

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

        async def do(tab: "Tab") -> None:
            mouse = tab.page.mouse

            async def drag() -> None:
                await mouse.move(startX, startY)
                await mouse.down()
                await mouse.move(endX, endY, steps=5)
                await mouse.up()

            await until_blocked_or_done(tab, drag)

        return await act("browser_mouse_drag_xy", session, context, do)

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

        async def do(tab: "Tab") -> None:
            await until_blocked_or_done(tab, lambda: tab.page.mouse.down(button=button))

        return await act("browser_mouse_down", session, context, do)

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

        async def do(tab: "Tab") -> None:
            await until_blocked_or_done(tab, lambda: tab.page.mouse.up(button=button))

        return await act("browser_mouse_up", session, context, do)

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

        async def do(tab: "Tab") -> None:
            await until_blocked_or_done(tab, lambda: tab.page.mouse.wheel(deltaX, deltaY))
            # Scrolling takes a few frames.
            with anyio.move_on_after(1):
                await until_blocked_or_done(tab, lambda: tab.page.evaluate(_STILL))

        return await act("browser_mouse_wheel", session, context, do)


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
