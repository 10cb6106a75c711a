"""Desktops: time until the window manager answers, and time of a screenshot.

Baseline: Xvfb and openbox on this machine, and Pillow's screenshot of that screen with the same compression. Baseline
starts alternate with ours and wait until the window manager has set its name, which is before it answers.
"""

import io
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
from PIL import ImageGrab
from Xlib.display import Display
from Xlib.error import DisplayConnectionError

from benchmarks._rows import Row
from runtimes import Window
from runtimes.desktop import Desktop, DesktopRuntime
from runtimes.process import ProcessRuntime

ROUNDS = 9
PICTURES = 30
SIZE = "1280x800x24"


def since(begin: float) -> float:
    """Milliseconds since then."""
    return (time.perf_counter() - begin) * 1000


@contextmanager
def plain(folder: Path) -> Generator[str]:
    """Start Xvfb and openbox alone, until the window manager has set its name; return the display."""
    reader, writer = os.pipe()
    argv = ["Xvfb", "-displayfd", str(writer), "-screen", "0", SIZE, "-nolisten", "tcp"]
    with subprocess.Popen(argv, pass_fds=[writer], stderr=subprocess.DEVNULL) as server:
        os.close(writer)
        with os.fdopen(reader) as told:
            name = f":{told.readline().strip()}"
        environment = {**os.environ, "DISPLAY": name, "XDG_CACHE_HOME": str(folder)}
        openbox = ["openbox", "--sm-disable"]
        with subprocess.Popen(openbox, env=environment, stderr=subprocess.DEVNULL) as manager:
            while not named(name):
                time.sleep(0.002)
            yield name
            manager.kill()
        server.kill()


def named(name: str) -> bool:
    """Return whether the screen has a window manager."""
    try:
        display = Display(name)
    except DisplayConnectionError:
        return False
    there = display.screen().root.get_full_property(display.intern_atom("_NET_SUPPORTING_WM_CHECK"), 0)
    display.close()
    return there is not None


def plain_ready(folder: Path) -> float:
    """Milliseconds until they are there."""
    begin = time.perf_counter()
    with plain(folder):
        return since(begin)


def plain_pictures(folder: Path) -> list[float]:
    """Milliseconds for each picture."""
    taken: list[float] = []
    with plain(folder) as name:
        for _ in range(PICTURES):
            begin = time.perf_counter()
            ImageGrab.grab(xdisplay=name).save(io.BytesIO(), "PNG", compress_level=1)
            taken.append(since(begin))
    return taken


async def ready(desktops: DesktopRuntime) -> float:
    """Milliseconds until a new desktop is there, its sandbox included."""
    begin = time.perf_counter()
    desktop = await desktops.start()
    milliseconds = since(begin)
    await desktop.stop()
    return milliseconds


async def picture(desktop: Desktop, window: Window, number: int) -> float:
    """Return the milliseconds of a screenshot after a change: a window was moved."""
    x, y = window.x + 40 + number * 8, window.y - 10
    await desktop.move(x, y)
    await desktop.button("left", down=True)
    await desktop.move(x + 8, y)
    await desktop.button("left", down=False)
    begin = time.perf_counter()
    await desktop.screenshot()
    return since(begin)


async def first_window(desktop: Desktop) -> Window:
    """The window, once there is one."""
    while True:
        if windows := await desktop.windows():
            return windows[0]
        await anyio.sleep(0.02)


async def measure() -> list[Row]:
    """The figures."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ProcessRuntime(preload=(), idle=False) as runtime,
            DesktopRuntime(runtime) as desktops,
        ):
            await ready(desktops)
            ours: list[float] = []
            theirs: list[float] = []
            for _ in range(ROUNDS):
                theirs.append(await anyio.to_thread.run_sync(plain_ready, Path(folder)))
                ours.append(await ready(desktops))
            desktop = await desktops.start()
            await desktop.exec(["sh", "-c", "setsid xev -geometry 300x200+100+100 >/dev/null &"])
            window = await first_window(desktop)
            pictures = [await picture(desktop, window, number) for number in range(PICTURES)]
            alone = await anyio.to_thread.run_sync(plain_pictures, Path(folder))
    return [
        Row(
            "desktop: ready, ms",
            statistics.median(ours),
            statistics.median(theirs),
            "Xvfb and openbox alone",
            250.0,
        ),
        Row(
            "desktop: screenshot, ms",
            statistics.median(pictures),
            statistics.median(alone),
            "ImageGrab and PNG",
            20.0,
        ),
    ]


if __name__ == "__main__":
    for row in anyio.run(measure):
        print(row)
