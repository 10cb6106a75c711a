"""Waiting until the screen stops changing."""

import anyio

from runtimes import Machine, Screen

PAUSE = 0.1
ALIKE = 3
"""Number of equal screenshots in a row: a caret that blinks every half second neither ends nor prolongs the wait."""


async def wait_unchanging(machine: Machine) -> Screen:
    """Return the screen once it has stopped changing. Wait forever if it never does."""
    last = await machine.screenshot()
    alike = 1
    while alike < ALIKE:
        await anyio.sleep(PAUSE)
        now = await machine.screenshot()
        alike = alike + 1 if now.png == last.png else 1
        last = now
    return last
