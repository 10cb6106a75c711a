"""The tools of the vm backend."""

from collections.abc import Collection, Mapping
from typing import Annotated

import anyio
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext
from mcp_servers.core._running import check_settings, read_settings, sendable
from mcp_servers.core._session import Session
from mcp_servers.core._tool import tool
from mcp_servers.vm import _results as out
from mcp_servers.vm._acting import Acting
from mcp_servers.vm._evaluator import Evaluator
from mcp_servers.vm._machines import Machines
from mcp_servers.vm._settings import VmSettings
from mcp_servers.vm._steps import do_steps
from mcp_servers.vm._still import until_still
from runtimes import Button

__all__ = ["VmBackend"]

X = Annotated[int, Field(description="Pixels from the left edge of the screen.")]
Y = Annotated[int, Field(description="Pixels from the upper edge of the screen.")]
MouseButton = Annotated[Button, Field(description="Which button: left, middle or right.")]
Key = Annotated[
    str,
    Field(
        min_length=1, max_length=40, description="A character, or a name: enter, tab, ctrl, pgdn, f5, Return."
    ),
]


class VmBackend(Backend):
    """A machine with a screen in each session: it is looked at, pointed and typed at as a person would."""

    name = "vm"
    description = "Look at the screen of a machine, and use its pointer and keyboard."
    reserved = frozenset({"evaluate", "qemu"})

    def __init__(self) -> None:
        self._machines = Machines()

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that can't be used."""
        check_settings(VmSettings, self.name, settings)

    def hidden(self, settings: Mapping[str, object]) -> Collection[str]:
        """Without judging there is no tool for it."""
        try:
            return () if read_settings(VmSettings, self.name, settings).evaluate else ("evaluate",)
        except ToolFailure:
            return ()  # `check` says what is wrong with the settings

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Start the session's machine and prepare it."""
        chosen = read_settings(VmSettings, self.name, settings)
        machine = await self._machines.start(session, chosen)
        try:
            acting = await Acting.on(machine, chosen)
            await do_steps(chosen.setup, machine, session)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await machine.stop()
            raise
        session.put(acting)

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the running machine; one that can't be copied says so."""
        forked.put(await session.get(Acting).fork())

    async def cleanup(self, session: Session) -> None:
        """Stop the machine."""
        await session.get(Acting).machine.stop()

    async def shutdown(self) -> None:
        """Stop what all machines stand on."""
        await self._machines.close()

    @tool(title="Take a screenshot", read_only=True)
    async def screenshot(self, session: Session, context: CallContext) -> out.Shot:
        """Show the screen as it is now, and what applications tell of their windows, where they do.

        Use it first, and whenever you need to know what the screen shows: coordinates of the other tools are pixels
        of this picture. The pointer itself may not be on it.
        """
        return await session.get(Acting).shot(context)

    @tool(title="Click")
    async def click(
        self, session: Session, context: CallContext, x: X, y: Y, button: MouseButton = "left"
    ) -> out.Clicked:
        """Move the pointer to a place and click there.

        Use it to press buttons, choose entries, and give a window or a field the keyboard.
        """
        return await self._click("vm_click", session, context, (x, y), button, 1)

    @tool(title="Double-click")
    async def double_click(self, session: Session, context: CallContext, x: X, y: Y) -> out.Clicked:
        """Move the pointer to a place and click twice with the left button.

        Use it to open things, and to select a word.
        """
        return await self._click("vm_double_click", session, context, (x, y), "left", 2)

    @tool(title="Right-click")
    async def right_click(
        self,
        session: Session,
        context: CallContext,
        x: Annotated[
            int | None, Field(description="Pixels from the left edge; with neither, where the pointer is.")
        ] = None,
        y: Annotated[
            int | None, Field(description="Pixels from the upper edge; with neither, where the pointer is.")
        ] = None,
    ) -> out.Clicked:
        """Click with the right button, at a place or where the pointer is.

        Use it to open the menu of a thing.
        """
        acting = session.get(Acting)
        if (x is None) != (y is None):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "vm_right_click: give both x and y, or neither.")
        place = acting.pointer if x is None or y is None else (x, y)
        return await self._click("vm_right_click", session, context, place, "right", 1)

    @tool(title="Move the pointer", destructive=False, idempotent=True)
    async def move(self, session: Session, context: CallContext, x: X, y: Y) -> out.Moved:
        """Move the pointer to a place, without a click.

        Use it to show hints and submenus that open under the pointer.
        """
        acting = session.get(Acting)
        acting.begin("vm_move", (x, y))
        await acting.move(x, y)
        return await acting.tell(out.Moved, context, position=out.Point(x=x, y=y))

    @tool(title="Drag")
    async def drag(
        self,
        session: Session,
        context: CallContext,
        start_x: Annotated[int, Field(description="Where to press: pixels from the left edge.")],
        start_y: Annotated[int, Field(description="Where to press: pixels from the upper edge.")],
        end_x: Annotated[int, Field(description="Where to release: pixels from the left edge.")],
        end_y: Annotated[int, Field(description="Where to release: pixels from the upper edge.")],
    ) -> out.Dragged:
        """Press the left button at one place, move to another, release it there.

        Use it to move windows and files, to select text and to pull sliders.
        """
        acting = session.get(Acting)
        start, end = (start_x, start_y), (end_x, end_y)
        acting.begin("vm_drag", start, end)
        await acting.drag(start, end)
        places = {"start": out.Point(x=start_x, y=start_y), "end": out.Point(x=end_x, y=end_y)}
        return await acting.tell(out.Dragged, context, **places)

    @tool(title="Scroll")
    async def scroll(
        self,
        session: Session,
        context: CallContext,
        x: X,
        y: Y,
        clicks: Annotated[int, Field(ge=-100, le=100, description="How far: positive up, negative down.")],
    ) -> out.Scrolled:
        """Move the pointer to a place and turn the wheel there.

        Use it to see what is above or below in a page, a list or a text.
        """
        acting = session.get(Acting)
        acting.begin("vm_scroll", (x, y))
        await acting.move(x, y)
        await acting.machine.scroll(clicks)
        return await acting.tell(out.Scrolled, context, position=out.Point(x=x, y=y), clicks=clicks)

    @tool(title="Type text")
    async def type(
        self,
        session: Session,
        context: CallContext,
        text: Annotated[str, Field(max_length=20_000, description="What to type; a line end presses Enter.")],
        interval: Annotated[float, Field(ge=0, le=1, description="Seconds between two characters.")] = 0.0,
    ) -> out.Typed:
        """Type a text on the keyboard, into whatever has it.

        Use it to fill fields and write texts, after a click into the field. For keys that write nothing use vm_key.
        """
        acting = session.get(Acting)
        acting.begin("vm_type")
        try:
            await acting.machine.type(sendable("vm_type", text), interval=interval)
        except ValueError as error:
            message = f"vm_type: {error}; nothing was typed. Use vm_key for keys that write nothing."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None
        return await acting.tell(out.Typed, context, typed=text, length=len(text))

    @tool(title="Press a key")
    async def key(self, session: Session, context: CallContext, key: Key) -> out.KeyPressed:
        """Press a key and release it.

        Use it for Enter, Tab, Escape, arrows, function keys.
        """
        acting = session.get(Acting)
        acting.begin("vm_key")
        symbol = (await acting.together("vm_key", [key]))[0]
        return await acting.tell(out.KeyPressed, context, key=symbol)

    @tool(title="Press keys together")
    async def hotkey(
        self,
        session: Session,
        context: CallContext,
        keys: Annotated[
            list[Key],
            Field(min_length=1, max_length=6, description="In their order: ['ctrl', 'shift', 't']."),
        ],
    ) -> out.HotkeyPressed:
        """Press keys one after the other, hold them, and release them in reverse.

        Use it for shortcuts: ctrl and c, alt and F4.
        """
        acting = session.get(Acting)
        acting.begin("vm_hotkey")
        return await acting.tell(out.HotkeyPressed, context, keys=await acting.together("vm_hotkey", keys))

    @tool(title="Press a mouse button")
    async def mouse_down(
        self, session: Session, context: CallContext, button: MouseButton = "left"
    ) -> out.Pressed:
        """Press a button of the pointer where it is, and hold it.

        Use it with vm_move and vm_mouse_up for a drag with stops on the way.
        """
        acting = session.get(Acting)
        acting.begin("vm_mouse_down")
        await acting.machine.button(button, down=True)
        return await acting.tell(out.Pressed, context, button=button)

    @tool(title="Release a mouse button", idempotent=True)
    async def mouse_up(
        self, session: Session, context: CallContext, button: MouseButton = "left"
    ) -> out.Pressed:
        """Release a button of the pointer where it is.

        Use it to end what vm_mouse_down began.
        """
        acting = session.get(Acting)
        acting.begin("vm_mouse_up")
        await acting.machine.button(button, down=False)
        return await acting.tell(out.Pressed, context, button=button)

    @tool(title="Hold a key")
    async def key_down(self, session: Session, context: CallContext, key: Key) -> out.KeyPressed:
        """Press a key and hold it.

        Use it to hold ctrl or shift while you click; vm_key_up releases it.
        """
        acting = session.get(Acting)
        acting.begin("vm_key_down")
        return await acting.tell(out.KeyPressed, context, key=await acting.key("vm_key_down", key, down=True))

    @tool(title="Release a key", idempotent=True)
    async def key_up(self, session: Session, context: CallContext, key: Key) -> out.KeyPressed:
        """Release a key.

        Use it to end what vm_key_down began.
        """
        acting = session.get(Acting)
        acting.begin("vm_key_up")
        return await acting.tell(out.KeyPressed, context, key=await acting.key("vm_key_up", key, down=False))

    @tool(title="Wait", read_only=True)
    async def wait(
        self,
        session: Session,
        context: CallContext,
        seconds: Annotated[float, Field(ge=0, description="How long, at most.")] = 1.0,
        until_still: Annotated[
            bool, Field(description="Go on as soon as nothing moves on the screen.")
        ] = False,
    ) -> out.Waited:
        """Wait, for some seconds or until nothing moves on the screen.

        Use it after something that takes time: a program that starts, a page that loads.
        """
        return await _wait(session.get(Acting), context, seconds, still=until_still)

    @tool(title="Call the task done", destructive=False, idempotent=True)
    async def done(self, session: Session) -> out.Done:
        """Say that the task is done.

        Use it once, when the screen shows that everything asked for has been done.
        """
        session.get(Acting).failed = False
        return out.Done()

    @tool(title="Call the task impossible", destructive=False, idempotent=True)
    async def fail(
        self,
        session: Session,
        reason: Annotated[str | None, Field(max_length=2_000, description="Why it can't be done.")] = None,
    ) -> out.Failed:
        """Say that the task can't be done.

        Use it when what is asked for is impossible on this machine, not when a step went wrong.
        """
        session.get(Acting).failed = True
        return out.Failed(reason=reason)

    @tool(title="Evaluate the task", destructive=True)
    async def evaluate(
        self,
        session: Session,
        evaluator: Annotated[
            Evaluator,
            Field(
                description="What to look at and what to compare it with: func, result, expected, options, conj."
            ),
        ],
    ) -> out.Evaluated:
        """Look inside the machine and score what was done, from 0 to 1.

        For whoever judges a task, not for who does it. func names one comparison or several; result says what to
        read (a file, a process, windows, the accessibility tree, a part of the screen, a command's output), expected
        what it should be.
        """
        from mcp_servers.vm._evaluating import evaluate  # only judges need it

        return await evaluate(evaluator, session.get(Acting), session)

    @staticmethod
    async def _click(
        name: str,
        session: Session,
        context: CallContext,
        place: tuple[int, int],
        button: Button,
        times: int,
    ) -> out.Clicked:
        acting = session.get(Acting)
        acting.begin(name, place)
        await acting.move(*place)
        await acting.click(button, times)
        clicked = out.Point(x=place[0], y=place[1])
        return await acting.tell(out.Clicked, context, clicked=clicked, button=button)


async def _wait(acting: Acting, context: CallContext, seconds: float, *, still: bool) -> out.Waited:
    most = acting.settings.wait_seconds
    if seconds > most:
        message = f"vm_wait: {seconds:g} seconds are more than the {most:g} allowed."
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    with anyio.move_on_after(seconds) as scope:
        if still:
            await until_still(acting.machine)
        else:
            await anyio.sleep(seconds)
    was_still = not scope.cancelled_caught if still else None
    return await acting.tell(out.Waited, context, waited=seconds, still=was_still)
