"""Accessibility trees of applications."""

import pytest

from agentflow.errors import NotOffered
from runtimes import Runtime
from runtimes.desktop import Desktop, DesktopOptions, open_desktop
from tests.runtimes.desktop._waiting import eventually, launch, window


@pytest.mark.promise("desktop:accessibility")
async def test_a_dialog_lists_its_fields_and_buttons_with_their_positions(desktop: Desktop) -> None:
    assert (await desktop.accessibility()) == ""
    await launch(desktop, 'zenity --entry --title Name --text "Your name" > answer.txt')
    await window(desktop, "Name")

    async def tree_with_button() -> str | None:
        tree = await desktop.accessibility()
        return tree if "OK" in tree else None

    tree = await eventually(tree_with_button)
    lines = [line.strip() for line in tree.splitlines()]
    assert lines[0] == 'application "zenity"'
    assert any(line.startswith('label "Your name" [') for line in lines)
    (button,) = [line for line in lines if line.startswith('push-button "OK"')]
    x, y, width, height = map(int, button.rpartition("[")[2].rstrip("]").split(","))
    await desktop.type("Ada")

    async def filled() -> bool:
        return 'text "" editable focused = "Ada"' in await desktop.accessibility()

    await eventually(filled)
    await desktop.move(x + width // 2, y + height // 2)
    await desktop.button("left", down=True)
    await desktop.button("left", down=False)

    async def answered() -> bool:
        return await desktop.read("answer.txt") == b"Ada\n"

    await eventually(answered)


@pytest.mark.promise("desktop:accessibility")
async def test_a_desktop_without_accessibility_reports_it(runtime: Runtime) -> None:
    desktop = await open_desktop(await runtime.start(), DesktopOptions(accessibility=False), owned=True)
    with pytest.raises(NotOffered, match="started without `accessibility`"):
        await desktop.accessibility()
    await desktop.stop()
