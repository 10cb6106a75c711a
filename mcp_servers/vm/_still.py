"""Waiting until nothing moves on the screen."""

import anyio

from runtimes import Machine, Screen

__all__ = ["until_still"]

PAUSE = 0.1
ALIKE = 3
"""Pictures in a row that are the same: a caret that blinks every half second does not end the wait, but does not prolong it."""


async def until_still(machine: Machine) -> Screen:
    """The screen, once it has been the same for a while. Waits for ever on one that never is."""
    last = await machine.screenshot()
    alike = 1
    while alike < ALIKE:
        await anyio.sleep(PAUSE)
        now = await machine.screenshot()
        alike = alike + 1 if now.png == last.png else 1
        last = now
    return last
