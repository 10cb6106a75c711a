"""Screenshots, pointer and keyboard of a desktop."""

import io

import pytest
from PIL import Image

from agentflow.errors import CannotFork
from runtimes import Outcome
from runtimes.desktop import DISPLAY, Desktop
from tests.runtimes.desktop._waiting import content, eventually, heard, launch, terminal, window


@pytest.mark.promise("desktop:picture")
async def test_a_screenshot_is_a_picture_of_the_requested_size(desktop: Desktop) -> None:
    screen = await desktop.screenshot()
    with Image.open(io.BytesIO(screen.png)) as picture:
        assert picture.format == "PNG"
        assert picture.size == (screen.width, screen.height) == (800, 600)


@pytest.mark.promise("desktop:typing")
@pytest.mark.parametrize("text", ["plain text, 1 < 2 & 'quotes' \\ ~", "Grüße, naïve: 3 € → ñ 漢字 🙂"])
async def test_a_typed_text_arrives_character_by_character(desktop: Desktop, text: str) -> None:
    await desktop.exec(["rm", "-f", "typed.txt.ready", "typed.txt"])
    await terminal(desktop, "typed", "typed.txt")
    await desktop.type(text + "\n")
    assert await content(desktop, "typed.txt", "\n") == text + "\n"
    # Ctrl-D ends the program that reads, and with it the terminal.
    await desktop.key("Control_L", down=True)
    await desktop.key("d", down=True)
    await desktop.key("d", down=False)
    await desktop.key("Control_L", down=False)
    await eventually(lambda: gone(desktop, "typed"))


async def gone(desktop: Desktop, title: str) -> bool:
    return all(window.title != title for window in await desktop.windows())


@pytest.mark.promise("desktop:bad_keys")
async def test_an_untypable_text_is_refused_before_anything_is_typed(desktop: Desktop) -> None:
    await terminal(desktop, "untyped", "untyped.txt")
    with pytest.raises(ValueError, match=r"'\\x07' cannot be typed"):
        await desktop.type("no\a")
    with pytest.raises(ValueError, match=r"'\\x07' cannot be typed"):
        await desktop.type("no\a", interval=0.001)
    with pytest.raises(ValueError, match="no key 'Retrun'"):
        await desktop.key("Retrun", down=True)
    await desktop.type("yes\n", interval=0.001)
    assert await content(desktop, "untyped.txt", "\n") == "yes\n"
    await desktop.exec(["pkill", "xterm"])
    await eventually(lambda: gone(desktop, "untyped"))


@pytest.mark.promise("desktop:pointer")
async def test_moves_clicks_and_wheel_turns_reach_the_window_under_the_pointer(
    desktop: Desktop,
) -> None:
    await launch(desktop, "xev -name events -geometry 300x200+100+100 > events.txt")
    there = await window(desktop, "events")
    await desktop.move(there.x + 40, there.y + 50)
    await desktop.button("left", down=True)
    await desktop.button("left", down=False)
    await desktop.button("middle", down=True)
    await desktop.button("middle", down=False)
    await desktop.scroll(1)
    await desktop.scroll(-2)
    await desktop.scroll(1, horizontal=True)
    await desktop.key("F5", down=True)
    await desktop.key("F5", down=False)
    events = await heard(desktop, "events.txt", ButtonRelease=6, KeyRelease=1)
    await desktop.exec(["pkill", "xev"])
    await eventually(lambda: gone(desktop, "events"))
    pressed = [block for block in events.split("\n\n") if block.startswith("ButtonPress")]
    assert [block.partition("button ")[2].partition(",")[0] for block in pressed] == [
        "1",
        "2",
        "4",
        "5",
        "5",
        "7",
    ]
    assert "(40,50)" in pressed[0]
    assert "keysym 0xffc2, F5" in events


@pytest.mark.promise("desktop:windows")
async def test_windows_are_listed_topmost_last_and_a_title_bar_moves_its_window(desktop: Desktop) -> None:
    await launch(desktop, "xev -name under -geometry 200x100+50+50")
    await window(desktop, "under")
    await launch(desktop, "xev -name over -geometry 200x100+400+300")
    over = await window(desktop, "over")
    assert [entry.title for entry in await desktop.windows()] == ["under", "over"]
    assert (over.application, over.width, over.height) == ("", 200, 100) or over.application
    bar = over.y - 10
    await desktop.move(over.x + 60, bar)
    await desktop.button("left", down=True)

    async def moving() -> bool:
        # A busy window manager handles all queued moves at once.
        await desktop.move(over.x + 50, bar)
        await desktop.move(over.x + 40, bar - 5)
        return not await moved_to(desktop, over.x, over.y)

    await eventually(moving)
    await desktop.move(over.x - 40, bar - 50)
    await eventually(lambda: moved_to(desktop, over.x - 100, over.y - 50))
    await desktop.button("left", down=False)
    await desktop.move(60, 60)
    await desktop.exec(["pkill", "xev"])
    await eventually(lambda: gone(desktop, "under"))


async def moved_to(desktop: Desktop, x: int, y: int) -> bool:
    return any((entry.x, entry.y) == (x, y) for entry in await desktop.windows())


@pytest.mark.promise("desktop:programs")
async def test_a_command_ends_and_its_background_processes_keep_running(desktop: Desktop) -> None:
    done = await desktop.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    late = await desktop.exec(["sleep", "100"], timeout=0.1)
    assert late.outcome is Outcome.TIMEOUT
    await desktop.exec(["sh", "-c", "setsid sleep 4321 &"])

    async def killed() -> bool:
        # A starting program cannot be found by its command line yet.
        return (await desktop.exec(["pkill", "-f", "sleep 4321"])).exit_code == 0

    await eventually(killed)


@pytest.mark.promise("desktop:files")
async def test_its_files_are_those_of_its_instance_and_other_commands_there_reach_its_screen(
    desktop: Desktop,
) -> None:
    await desktop.exec(["sh", "-c", "echo here > made.txt"])
    assert await desktop.instance.read("made.txt") == await desktop.read("made.txt") == b"here\n"
    seen = await desktop.instance.exec(["xprop", "-display", DISPLAY, "-root", "_NET_SUPPORTING_WM_CHECK"])
    assert b"window id" in seen.stdout


@pytest.mark.promise("desktop:fork")
async def test_a_desktop_refuses_to_be_copied_names_its_windows_and_continues(desktop: Desktop) -> None:
    await terminal(desktop, "unsaved", "unsaved.txt")
    with pytest.raises(CannotFork, match="a running desktop cannot be copied, with its windows 'unsaved'"):
        await desktop.fork()
    assert (await desktop.screenshot()).width == 800
