"""Waiting for the screen of a desktop: on a busy machine there is no upper bound on the start of programs."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from runtimes import Machine, Window

T = TypeVar("T")

__all__ = ["content", "eventually", "heard", "launch", "terminal", "window"]


async def eventually(look: Callable[[], Awaitable[T | None]], seconds: float = 90) -> T:
    """Return the result of `look` once it is true."""
    with anyio.fail_after(seconds):
        while True:
            result = await look()
            if result:
                return result
            await anyio.sleep(0.05)


async def launch(machine: Machine, line: str) -> None:
    """Start a program that keeps running."""
    done = await machine.exec(["sh", "-c", f"setsid sh -c '{line}' </dev/null >/dev/null 2>&1 &"])
    assert done.exit_code == 0, done


async def terminal(machine: Machine, title: str, file: str) -> None:
    """Start a terminal that writes typed text into a file, and wait until it can be typed into."""
    await launch(machine, f'xterm -T {title} -e sh -c "echo > {file}.ready; cat > {file}"')
    # The terminal discards text typed before the program in it reads.
    await content(machine, f"{file}.ready", "\n")
    await window(machine, title)


async def window(machine: Machine, title: str) -> Window:
    """Return the window of that title, once it has the focus."""

    async def look() -> Window | None:
        there = await machine.windows()
        return next((window for window in there if window.title == title and window.focused), None)

    return await eventually(look)


async def content(machine: Machine, path: str, wanted: str) -> str:
    """Return the text of a file, once it contains the expected text."""
    return await _text(machine, path, lambda text: wanted in text)


async def heard(machine: Machine, path: str, **counts: int) -> str:
    """Return the output of `xev`, once it has reported the given number of events of each kind."""

    def all_told(text: str) -> bool:
        return all(text.count(f"{kind} event") >= count for kind, count in counts.items())

    return await _text(machine, path, all_told)


async def _text(machine: Machine, path: str, wanted: Callable[[str], bool]) -> str:
    async def look() -> str | None:
        try:
            text = (await machine.read(path)).decode()
        except FileNotFoundError:
            return None
        return text if wanted(text) else None

    return await eventually(look)
