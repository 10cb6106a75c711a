"""vm tools on a real desktop."""

from itertools import pairwise

import pytest

from agentflow.errors import InstanceGone
from mcp_servers import Image, ToolTable
from mcp_servers.vm import VmBackend
from runtimes import Machine
from tests.mcp_servers.live import Live, images
from tests.mcp_servers.vm._machines import machine_of
from tests.runtimes.desktop._waiting import content, eventually, heard, launch, terminal, window

POINTER_TOOLS = {
    "vm_click": {"x": 800, "y": 10},
    "vm_double_click": {"x": 10, "y": 600},
    "vm_right_click": {"x": -1, "y": 10},
    "vm_move": {"x": 5000, "y": 10},
    "vm_scroll": {"x": 10, "y": -5, "clicks": 1},
    "vm_drag": {"start_x": 1, "start_y": 1, "end_x": 1, "end_y": 601},
}


@pytest.mark.promise("vm:screenshot")
async def test_a_screenshot_is_shown_as_a_picture_with_its_size(live: Live) -> None:
    result = await live.call("vm_screenshot")
    assert result.data["size"] == {"width": 800, "height": 600}
    (picture,) = images(result)
    assert picture.mime == "image/png"
    assert picture.data.startswith(b"\x89PNG")
    assert "base64" not in str(result.data)


@pytest.mark.promise("vm:pointer")
async def test_the_pointer_tools_reach_the_window_under_them(live: Live, machine: Machine) -> None:
    await launch(machine, "xev -name events -geometry 300x200+100+100 > events.txt")
    there = await window(machine, "events")
    x, y = there.x + 30, there.y + 40
    assert (await live.data("vm_click", x=x, y=y))["clicked"] == {"x": x, "y": y}
    assert (await live.data("vm_click", x=x, y=y, button="middle"))["button"] == "middle"
    await live.data("vm_double_click", x=x, y=y)
    assert (await live.data("vm_right_click"))["clicked"] == {"x": x, "y": y}
    assert (await live.data("vm_scroll", x=x, y=y, clicks=-2))["clicks"] == -2
    await live.data("vm_drag", start_x=x, start_y=y, end_x=x + 80, end_y=y + 16)
    await live.data("vm_move", x=x, y=y)
    await live.data("vm_mouse_down")
    await live.data("vm_mouse_up")
    events = await heard(machine, "events.txt", ButtonRelease=9)
    await machine.exec(["pkill", "xev"])
    blocks = events.split("\n\n")
    buttons = [
        block.partition("button ")[2].partition(",")[0] for block in blocks if block.startswith("ButtonPress")
    ]
    assert buttons == ["1", "2", "1", "1", "3", "5", "5", "1", "1"]
    released = [block for block in blocks if block.startswith("ButtonRelease")]
    assert "(110,56)" in released[7]


@pytest.mark.promise("vm:pointer")
async def test_clicks_of_two_calls_never_become_a_double_click(live: Live, machine: Machine) -> None:
    await launch(machine, "xev -name events -geometry 300x200+100+100 > events.txt")
    there = await window(machine, "events")
    x, y = there.x + 30, there.y + 40
    for _ in range(2):
        await live.data("vm_click", x=x, y=y)
    await live.data("vm_drag", start_x=x, start_y=y, end_x=x + 8, end_y=y)
    await live.data("vm_double_click", x=x, y=y)
    events = await heard(machine, "events.txt", ButtonRelease=5)
    await machine.exec(["pkill", "xev"])
    times = [
        int(block.partition(", time ")[2].partition(",")[0])
        for block in events.split("\n\n")
        if block.startswith("ButtonPress")
    ]
    assert len(times) == 5
    # By the X server's clock, which programs use to detect double-clicks.
    assert min(later - earlier for earlier, later in pairwise(times[:4])) >= 400


@pytest.mark.promise("vm:keys")
async def test_text_keys_and_shortcuts_arrive(live: Live, machine: Machine) -> None:
    await terminal(machine, "keys", "keys.txt")
    assert (await live.data("vm_type", text="wrogn"))["length"] == 5
    for _ in range(2):
        assert (await live.data("vm_key", key="backspace"))["key"] == "BackSpace"
    await live.data("vm_type", text="ng € ✓", interval=0.001)
    await live.data("vm_key_down", key="shift")
    await live.data("vm_key", key="1")
    await live.data("vm_key_up", key="shift")
    await live.data("vm_key", key="?")
    await live.data("vm_key", key="enter")
    assert await content(machine, "keys.txt", "\n") == "wrong € ✓!?\n"
    assert (await live.data("vm_hotkey", keys=["ctrl", "d"]))["keys"] == ["Control_L", "d"]

    async def closed() -> bool:
        return not await machine.windows()

    await eventually(closed)


@pytest.mark.promise("vm:bad_arguments")
@pytest.mark.parametrize("tool", POINTER_TOOLS)
async def test_a_position_off_the_screen_is_refused(live: Live, tool: str) -> None:
    kind, message = await live.failure(tool, **POINTER_TOOLS[tool])
    assert kind == "bad_arguments"
    assert "is not on the screen: x 0 to 799, y 0 to 599" in message


@pytest.mark.promise("vm:bad_arguments")
@pytest.mark.parametrize(
    ("key", "hint"),
    [("entr", "Did you mean 'enter'?"), ("ctrl+c", "vm_hotkey"), ("pagedwn", "Did you mean 'pagedown'?")],
)
async def test_an_unknown_key_names_the_nearest_right_one(live: Live, key: str, hint: str) -> None:
    for tool, arguments in (("vm_key", {"key": key}), ("vm_hotkey", {"keys": ["ctrl", key]})):
        kind, message = await live.failure(tool, **arguments)
        assert kind == "bad_arguments"
        assert hint in message
        assert "\n" not in message


@pytest.mark.promise("vm:bad_arguments")
async def test_untypable_text_and_too_long_waits_are_refused(live: Live) -> None:
    assert "'\\x07' cannot be typed; nothing was typed" in (await live.failure("vm_type", text="a\a"))[1]
    assert "more than the 60 allowed" in (await live.failure("vm_wait", seconds=61))[1]
    assert "give both x and y" in (await live.failure("vm_right_click", x=1))[1]


@pytest.mark.promise("vm:wait")
async def test_waiting_ends_after_its_time_or_when_the_screen_stops_changing(live: Live) -> None:
    assert await live.data("vm_wait", seconds=0.01) == {
        "waited": 0.01,
        "still": None,
        "accessibility_tree": None,
    }
    still = await live.data("vm_wait", seconds=60, until_still=True)
    assert still["still"] is True
    moving = await live.data("vm_wait", seconds=0, until_still=True)
    assert moving["still"] is False


@pytest.mark.promise("vm:workspace")
async def test_the_machine_and_the_shell_of_a_session_have_the_same_files(
    live: Live, machine: Machine
) -> None:
    await live.bash("echo from the shell > ~/shared.txt")
    assert await machine.read("shared.txt") == b"from the shell\n"
    assert "window id" in await live.bash("DISPLAY=:0 xprop -root _NET_SUPPORTING_WM_CHECK")


@pytest.mark.promise("vm:fork")
async def test_a_session_with_a_desktop_refuses_to_fork_and_continues(live: Live) -> None:
    kind, message = await live.failure("session_fork")
    assert kind == "cannot_fork"
    assert "repeat its steps" in message
    await live.data("vm_screenshot")


async def started(table: ToolTable, **settings: object) -> Live:
    """Start a session with these settings."""
    result = await table.call("session_start", {"settings": {"vm": {"screen_size": [320, 240], **settings}}})
    assert result.ok, result
    return Live(table, str(result.data["session"]))


@pytest.mark.promise("vm:setup")
@pytest.mark.promise("vm:shown")
async def test_a_session_starts_prepared_and_shows_what_its_settings_request(table: ToolTable) -> None:
    dialog = 'zenity --info --title Greeting --text "$(cat ~/deep/greeting.txt)"'
    steps = [
        {
            "type": "upload",
            "parameters": {"files": [{"path": "/home/agent/deep/greeting.txt", "content": "Hello"}]},
        },
        {"type": "execute", "parameters": {"command": ["test", "-s", "/home/agent/deep/greeting.txt"]}},
        {"type": "launch", "parameters": {"command": dialog}},
        {"type": "wait", "parameters": {"window": "Greeting", "seconds": 100}},
    ]
    live = await started(
        table,
        setup=steps,
        screenshot="after",
        accessibility="after",
        settle_seconds=0,
        allow_actions=["move"],
    )

    async def greeting_is_shown() -> bool:
        moved = await live.call("vm_move", x=1, y=1)
        assert [type(part) for part in moved.parts] == [Image]
        return "Hello" in str(moved.data["accessibility_tree"])

    await eventually(greeting_is_shown)
    kind, message = await live.failure("vm_click", x=1, y=1)
    assert (kind, "Allowed: move." in message) == ("denied", True)
    await live.data("session_end")


@pytest.mark.promise("vm:setup")
async def test_a_step_that_fails_is_named_and_leaves_no_session(table: ToolTable) -> None:
    before = len(table.sessions)
    for step, why in (
        ({"type": "execute", "parameters": {"command": "echo no luck >&2; exit 7"}}, "exit code 7: no luck"),
        ({"type": "upload", "parameters": {"files": [{"path": "a", "local_path": "absent"}]}}, "absent"),
        ({"type": "wait", "parameters": {"window": "Nothing", "seconds": 0.01}}, "no window with 'Nothing'"),
    ):
        result = await table.call("session_start", {"settings": {"vm": {"setup": [step]}}})
        assert result.error is not None
        assert f"step 1 ({step['type']}) failed" in result.error.message
        assert why in result.error.message
    assert len(table.sessions) == before


BAD_SETTINGS: list[tuple[dict[str, object], str]] = [
    ({"screen": [1, 1]}, "screen"),
    ({"screen_size": [1, 1]}, "screen_size"),
    ({"machine": "qemu"}, "needs an image"),
    ({"allow_actions": ["clik"]}, "Did you mean 'click'?"),
    ({"setup": [{"type": "explode", "parameters": {}}]}, "setup"),
]


@pytest.mark.promise("vm:settings")
@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
async def test_invalid_settings_are_refused(
    table: ToolTable, settings: dict[str, object], message: str
) -> None:
    table.backends["vm"].check({})
    with pytest.raises(ValueError, match="settings of vm") as refused:
        table.backends["vm"].check(settings)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("vm:settings")
async def test_no_session_can_choose_an_image_or_enable_evaluation(table: ToolTable) -> None:
    for settings in ({"qemu": {"image": "/etc"}}, {"evaluate": True}):
        result = await table.call("session_start", {"settings": {"vm": settings}})
        assert result.error is not None
        assert result.error.kind == "denied"


@pytest.mark.promise("vm:evaluate:off")
async def test_a_server_without_evaluation_has_no_tool_for_it() -> None:
    for vm_settings, there in (({}, True), ({"evaluate": True}, True), ({"evaluate": False}, False)):
        async with ToolTable([VmBackend()], settings={"vm": vm_settings}) as table:
            assert ("vm_evaluate" in {tool.name for tool in table.tools}) is there
            called = await table.call("vm_evaluate", {"evaluator": {"func": "infeasible"}})
            assert called.error is not None
            assert (called.error.kind == "tool_not_found") is not there


@pytest.mark.promise("vm:ends")
async def test_the_end_of_a_session_ends_its_machine(table: ToolTable) -> None:
    live = await started(table)
    await live.data("vm_screenshot")
    machine = machine_of(live)
    await live.data("session_end")
    with pytest.raises(InstanceGone):
        await machine.screenshot()
