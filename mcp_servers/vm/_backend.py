"""Tools of the vm backend."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated

import anyio
from pydantic import Field

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext
from mcp_servers.core._running import read_settings, sendable
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool
from mcp_servers.vm import _results as out
from mcp_servers.vm._evaluation import Evaluation
from mcp_servers.vm._session_machine import MachineFactory, SessionMachine
from mcp_servers.vm._settings import VmSettings
from mcp_servers.vm._steps import run_steps, wait_unchanging
from runtimes import Button

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
    """Machine with a screen in each session, used as a person would: by screenshots, pointer and keyboard."""

    name = "vm"
    description = "Look at the screen of a machine, and use its pointer and keyboard."
    settings_model = VmSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = frozenset({"evaluate", "qemu"})

    def __init__(self) -> None:
        self._machines = MachineFactory()

    def hidden(self, settings: Mapping[str, object]) -> Collection[str]:
        """Hide `vm_evaluate` if evaluation is disabled."""
        try:
            return () if read_settings(VmSettings, self.name, settings).evaluate else ("evaluate",)
        except ToolFailure:
            return ()  # `check` reports invalid settings

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Start the session's machine and run its setup."""
        chosen = read_settings(VmSettings, self.name, settings)
        machine = await self._machines.start(session, chosen)
        try:
            acting = await SessionMachine.on(machine, chosen)
            await run_steps(chosen.setup, machine, session)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await machine.stop()
            raise
        session.put(acting)

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the running machine, or refuse with the reason."""
        forked.put(await session.get(SessionMachine).fork())

    async def cleanup(self, session: Session) -> None:
        """Stop the machine."""
        await session.get(SessionMachine).machine.stop()

    async def shutdown(self) -> None:
        """Stop the runtimes of all machines."""
        await self._machines.close()

    @tool(title="Take a screenshot", read_only=True)
    async def screenshot(self, session: Session, context: CallContext) -> out.MachineScreenshot:
        """Show the current screen, and the accessibility tree if the applications provide one.

        Use it first, and whenever you need to know what the screen shows: coordinates of the other tools are pixels
        of this picture. The pointer itself may not be visible.
        """
        return await session.get(SessionMachine).shot(context)

    @tool(title="Click")
    async def click(
        self, session: Session, context: CallContext, x: X, y: Y, button: MouseButton = "left"
    ) -> out.Clicked:
        """Move the pointer to a position and click there.

        Use it to press buttons, choose entries, and give a window or a field the keyboard focus.
        """
        return await self._click("vm_click", session, context, (x, y), button, 1)

    @tool(title="Double-click")
    async def double_click(self, session: Session, context: CallContext, x: X, y: Y) -> out.Clicked:
        """Move the pointer to a position and click twice with the left button.

        Use it to open things, and to select a word.
        """
        return await self._click("vm_double_click", session, context, (x, y), "left", 2)

    @tool(title="Right-click")
    async def right_click(
        self,
        session: Session,
        context: CallContext,
        x: Annotated[
            int | None, Field(description="Pixels from the left edge; omit both to click at the pointer.")
        ] = None,
        y: Annotated[
            int | None, Field(description="Pixels from the upper edge; omit both to click at the pointer.")
        ] = None,
    ) -> out.Clicked:
        """Click with the right button, at a position or at the pointer.

        Use it to open a context menu.
        """
        acting = session.get(SessionMachine)
        if (x is None) != (y is None):
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, "vm_right_click: give both x and y, or neither.")
        position = acting.pointer if x is None or y is None else (x, y)
        return await self._click("vm_right_click", session, context, position, "right", 1)

    @tool(title="Move the pointer", destructive=False, idempotent=True)
    async def move(self, session: Session, context: CallContext, x: X, y: Y) -> out.PointerMoved:
        """Move the pointer to a position, without a click.

        Use it to show hints and submenus that open under the pointer.
        """
        acting = session.get(SessionMachine).begin("vm_move", (x, y))
        await acting.move(x, y)
        return await acting.tell(out.PointerMoved, context, position=out.Point(x=x, y=y))

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
        """Press the left button at one position, move to another, release it there.

        Use it to move windows and files, to select text and to drag sliders.
        """
        start, end = (start_x, start_y), (end_x, end_y)
        acting = session.get(SessionMachine).begin("vm_drag", start, end)
        await acting.drag(start, end)
        points = {"start": out.Point(x=start_x, y=start_y), "end": out.Point(x=end_x, y=end_y)}
        return await acting.tell(out.Dragged, context, **points)

    @tool(title="Scroll")
    async def scroll(
        self,
        session: Session,
        context: CallContext,
        x: X,
        y: Y,
        clicks: Annotated[
            int, Field(ge=-100, le=100, description="Number of wheel clicks: positive up, negative down.")
        ],
    ) -> out.Scrolled:
        """Move the pointer to a position and turn the wheel there.

        Use it to see what is above or below in a page, a list or a text.
        """
        acting = session.get(SessionMachine).begin("vm_scroll", (x, y))
        await acting.move(x, y)
        await acting.machine.scroll(clicks)
        return await acting.tell(out.Scrolled, context, position=out.Point(x=x, y=y), clicks=clicks)

    @tool(title="Type text")
    async def type(
        self,
        session: Session,
        context: CallContext,
        text: Annotated[str, Field(max_length=20_000, description="Text to type; a newline presses Enter.")],
        interval: Annotated[float, Field(ge=0, le=1, description="Seconds between two characters.")] = 0.0,
    ) -> out.Typed:
        """Type a text on the keyboard, into the focused window.

        Use it to fill fields and write texts, after a click into the field. For keys that produce no text use vm_key.
        """
        acting = session.get(SessionMachine).begin("vm_type")
        try:
            await acting.machine.type(sendable("vm_type", text), interval=interval)
        except ValueError as error:
            message = f"vm_type: {error}; nothing was typed. Use vm_key for keys that produce no text."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message) from None
        return await acting.tell(out.Typed, context, typed=text, length=len(text))

    @tool(title="Press a key")
    async def key(self, session: Session, context: CallContext, key: Key) -> out.KeyPressed:
        """Press a key and release it.

        Use it for Enter, Tab, Escape, arrows, function keys.
        """
        acting = session.get(SessionMachine).begin("vm_key")
        symbol = (await acting.press_together("vm_key", [key]))[0]
        return await acting.tell(out.KeyPressed, context, key=symbol)

    @tool(title="Press keys together")
    async def hotkey(
        self,
        session: Session,
        context: CallContext,
        keys: Annotated[
            list[Key],
            Field(min_length=1, max_length=6, description="Keys in pressing order: ['ctrl', 'shift', 't']."),
        ],
    ) -> out.HotkeyPressed:
        """Press keys in order, hold them, and release them in reverse.

        Use it for shortcuts: ctrl and c, alt and F4.
        """
        acting = session.get(SessionMachine).begin("vm_hotkey")
        return await acting.tell(
            out.HotkeyPressed, context, keys=await acting.press_together("vm_hotkey", keys)
        )

    @tool(title="Press a mouse button")
    async def mouse_down(
        self, session: Session, context: CallContext, button: MouseButton = "left"
    ) -> out.Pressed:
        """Press a button at the pointer, and hold it.

        Use it with vm_move and vm_mouse_up for a drag with stops on the way.
        """
        acting = session.get(SessionMachine).begin("vm_mouse_down")
        await acting.machine.button(button, down=True)
        return await acting.tell(out.Pressed, context, button=button)

    @tool(title="Release a mouse button", idempotent=True)
    async def mouse_up(
        self, session: Session, context: CallContext, button: MouseButton = "left"
    ) -> out.Pressed:
        """Release a button at the pointer.

        Use it to end what vm_mouse_down started.
        """
        acting = session.get(SessionMachine).begin("vm_mouse_up")
        await acting.machine.button(button, down=False)
        return await acting.tell(out.Pressed, context, button=button)

    @tool(title="Hold a key")
    async def key_down(self, session: Session, context: CallContext, key: Key) -> out.KeyPressed:
        """Press a key and hold it.

        Use it to hold ctrl or shift while you click; vm_key_up releases it.
        """
        acting = session.get(SessionMachine).begin("vm_key_down")
        return await acting.tell(out.KeyPressed, context, key=await acting.key("vm_key_down", key, down=True))

    @tool(title="Release a key", idempotent=True)
    async def key_up(self, session: Session, context: CallContext, key: Key) -> out.KeyPressed:
        """Release a key.

        Use it to end what vm_key_down started.
        """
        acting = session.get(SessionMachine).begin("vm_key_up")
        return await acting.tell(out.KeyPressed, context, key=await acting.key("vm_key_up", key, down=False))

    @tool(title="Wait", read_only=True)
    async def wait(
        self,
        session: Session,
        context: CallContext,
        seconds: Annotated[float, Field(ge=0, description="Maximum time in seconds.")] = 1.0,
        until_still: Annotated[
            bool, Field(description="Return as soon as the screen stops changing.")
        ] = False,
    ) -> out.Waited:
        """Wait, for some seconds or until the screen stops changing.

        Use it after something that takes time: a program that starts, a page that loads.
        """
        acting = session.get(SessionMachine)
        most = acting.settings.wait_seconds
        if seconds > most:
            message = f"vm_wait: {seconds:g} seconds are more than the {most:g} allowed."
            raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
        with anyio.move_on_after(seconds) as scope:
            if until_still:
                await wait_unchanging(acting.machine)
            else:
                await anyio.sleep(seconds)
        still = not scope.cancelled_caught if until_still else None
        return await acting.tell(out.Waited, context, waited=seconds, still=still)

    @tool(title="Call the task done", destructive=False, idempotent=True)
    async def done(self, session: Session) -> out.TaskDone:
        """Report that the task is done.

        Use it once, when the screen shows that everything asked for has been done.
        """
        session.get(SessionMachine).failed = False
        return out.TaskDone()

    @tool(title="Call the task impossible", destructive=False, idempotent=True)
    async def fail(
        self,
        session: Session,
        reason: Annotated[
            str | None, Field(max_length=2_000, description="Reason why it is impossible.")
        ] = None,
    ) -> out.TaskFailed:
        """Report that the task is impossible.

        Use it when the request is impossible on this machine, not when a step went wrong.
        """
        session.get(SessionMachine).failed = True
        return out.TaskFailed(reason=reason)

    @tool(title="Evaluate the task", destructive=True)
    async def evaluate(
        self,
        session: Session,
        evaluator: Annotated[
            Evaluation,
            Field(description="Getters and comparisons: func, result, expected, options, conj."),
        ],
    ) -> out.EvaluationResult:
        """Inspect the machine and score the task, from 0 to 1.

        For evaluators of a task, not for the agent. func names one comparison or several; result says what to
        read (a file, a process, windows, the accessibility tree, a part of the screen, a command's output), expected
        what it should be.
        """
        from mcp_servers.vm._evaluation import evaluate  # imported only for evaluations

        return await evaluate(evaluator, session.get(SessionMachine), session)

    @staticmethod
    async def _click(
        name: str,
        session: Session,
        context: CallContext,
        position: tuple[int, int],
        button: Button,
        times: int,
    ) -> out.Clicked:
        acting = session.get(SessionMachine).begin(name, position)
        await acting.move(*position)
        await acting.click(button, times)
        clicked = out.Point(x=position[0], y=position[1])
        return await acting.tell(out.Clicked, context, clicked=clicked, button=button)
