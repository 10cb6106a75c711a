"""Screen, keyboard and pointer, without help from inside the guest."""

import io
import struct
from collections.abc import Sequence

import anyio
import pytest
from PIL import Image

from agentflow.errors import InstanceGone, NotOffered, RuntimeFailure
from runtimes import Outcome
from runtimes.qemu import QemuMachine, QemuRuntime, _machine
from tests.runtimes.qemu._guests import console, shows, until

PRINTABLE = "".join(map(chr, range(32, 127)))


@pytest.mark.promise("qemu:screen")
async def test_a_screenshot_is_a_picture_of_the_screen(machine: QemuMachine) -> None:
    screen = await machine.screenshot()
    picture = Image.open(io.BytesIO(screen.png))
    assert picture.size == (screen.width, screen.height) == (720, 400)
    colours = picture.convert("RGB").getcolors()
    assert colours is not None
    assert len(colours) > 1


@pytest.mark.promise("qemu:keyboard")
async def test_a_key_is_seen_on_the_screen(machine: QemuMachine) -> None:
    before = (await machine.screenshot()).png
    await machine.key("x", down=True)
    await machine.key("x", down=False)

    async def changed() -> bool:
        return (await machine.screenshot()).png != before

    await until(changed)


@pytest.mark.promise("qemu:keyboard")
async def test_every_character_of_a_us_keyboard_can_be_typed(machine: QemuMachine) -> None:
    await machine.type("cat > typed\n" + PRINTABLE + "\n\tend\n")
    await machine.key("Control_L", down=True)
    await machine.key("d", down=True)
    await machine.key("d", down=False)
    await machine.key("Control_L", down=False)
    await machine.type("echo over\n")
    await shows(machine, "over")
    assert (await machine.read("/root/typed")).decode() == PRINTABLE + "\n\tend\n"


@pytest.mark.promise("qemu:keyboard")
async def test_a_keystroke_waits_until_the_guest_has_read_the_previous_one(
    machine: QemuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, commands = machine.qemu.qmp.execute, list[str]()
    untaken = 0

    async def slow(command: str, /, *, fds: Sequence[int] = (), **arguments: object) -> object:
        nonlocal untaken
        commands.append(command)
        answer = await execute(command, fds=fds, **arguments)
        if command == "human-monitor-command" and untaken:
            untaken -= 1
            return "portb[0x0064] = 0x1d\r\n"
        return answer

    monkeypatch.setattr(machine.qemu.qmp, "execute", slow)
    for press in (machine.type("x"), machine.key("y", down=True), machine.key("y", down=False)):
        untaken = 3
        await press
        assert untaken == 0
        assert commands[-4:] == ["human-monitor-command"] * 4
    untaken = 1 << 60
    monkeypatch.setattr(_machine, "_TAKING_SECONDS", 0.1)
    with pytest.raises(RuntimeFailure, match="the guest does not read keystrokes"):
        await machine.type("z")


@pytest.mark.promise("qemu:keyboard")
async def test_keys_are_named_by_x_keysyms(machine: QemuMachine) -> None:
    for name in ("e", "c", "h", "o", "space", "A", "exclam", "7", "minus", "Return"):
        await machine.key(name, down=True)
        await machine.key(name, down=False)
    await shows(machine, "A!7-")


@pytest.mark.promise("qemu:keyboard:unknown")
async def test_an_untypable_character_is_named_before_anything_is_typed(machine: QemuMachine) -> None:
    before = await console(machine)
    with pytest.raises(ValueError, match="'é' cannot be typed"):
        await machine.type("echo café\n")
    with pytest.raises(ValueError, match="no key 'Hyper_Q'"):
        await machine.key("Hyper_Q", down=True)
    await machine.type("echo still\n")
    await shows(machine, "still")
    assert (await console(machine))[: len(before)] == [*before[:-1], "# echo still"]


@pytest.mark.promise("qemu:pointer")
async def test_the_pointer_its_buttons_and_its_wheel_work(machine: QemuMachine) -> None:
    events = "$(grep -l Tablet /sys/class/input/event*/device/name | cut -d/ -f5)"
    listens = "ls -l /proc/[0-9]*/fd | grep -q /dev/input/event"
    script = f"setsid cat /dev/input/{events} >/tmp/events & until {listens}; do :; done"
    assert (await machine.exec(["sh", "-c", script])).exit_code == 0
    await machine.screenshot()
    await machine.move(0, 0)
    await machine.move(719, 399)
    await machine.button("left", down=True)
    await machine.button("left", down=False)
    await machine.button("right", down=True)
    await machine.button("right", down=False)
    await machine.scroll(2)
    await machine.scroll(-1)
    heard: list[tuple[int, int, int]] = []

    async def all_there() -> bool:
        data = await machine.read("/tmp/events")
        heard[:] = [(kind, code, value) for _, _, kind, code, value in struct.iter_unpack("=qqHHi", data)]
        return heard.count((2, 8, -1)) == 1

    await until(all_there)
    positions = [(code, value) for kind, code, value in heard if kind == 3]
    last = dict(positions)
    assert [last[0] * 720 // 32768, last[1] * 400 // 32768] == [719, 399]
    assert [(code, value) for kind, code, value in heard if kind == 1] == [
        (0x110, 1),
        (0x110, 0),
        (0x111, 1),
        (0x111, 0),
    ]
    assert [value for kind, code, value in heard if (kind, code) == (2, 8)] == [1, 1, -1]


@pytest.mark.promise("qemu:pointer")
async def test_a_position_off_the_screen_is_refused(machine: QemuMachine) -> None:
    with pytest.raises(ValueError, match=r"\(720, 10\) is not on the screen, which is 720 x 400"):
        await machine.move(720, 10)
    with pytest.raises(ValueError, match="is not on the screen"):
        await machine.move(-1, 10)


@pytest.mark.promise("qemu:door")
async def test_evaluators_can_run_commands_and_read_files_inside(machine: QemuMachine) -> None:
    result = await machine.exec(["sh", "-c", "id -u; printf 'a\\0b' >&2; exit 7"])
    assert (result.outcome, result.exit_code, result.stdout, result.stderr) == (
        Outcome.OK,
        7,
        b"0\n",
        b"a\0b",
    )
    assert (
        await machine.exec(["printf", "%s|", "a b", "$HOME", "'", "ü\n"])
    ).stdout == b"a b|$HOME|'|\xc3\xbc\n|"
    await machine.exec(["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x > /tmp/large"])
    assert await machine.read("/tmp/large") == b"x" * 300_000
    assert await machine.read("/proc/self/comm") == b"cat\n"
    with pytest.raises(FileNotFoundError):
        await machine.read("/nowhere")
    with pytest.raises(IsADirectoryError):
        await machine.read("/tmp")
    with pytest.raises(ValueError, match="NUL"):
        await machine.exec(["echo", "a\0b"])


@pytest.mark.promise("qemu:door:timeout")
async def test_a_command_inside_that_times_out_is_killed_with_its_children(
    machine: QemuMachine,
) -> None:
    result = await machine.exec(["sh", "-c", "echo begun; tail -f /dev/null & tail -f /dev/null"], timeout=5)
    assert (result.outcome, result.stdout) == (Outcome.TIMEOUT, b"begun\n")
    assert (await machine.exec(["pidof", "tail"])).stdout == b""
    with anyio.move_on_after(0.2):
        await machine.exec(["sleep", "1"])
    assert (await machine.exec(["echo", "next"])).stdout == b"next\n"


@pytest.mark.promise("qemu:not_offered")
async def test_an_unsupported_operation_is_refused_in_one_line(machine: QemuMachine) -> None:
    for look in (machine.windows, machine.accessibility):
        with pytest.raises(NotOffered) as refused:
            await look()
        assert "\n" not in str(refused.value)


@pytest.mark.promise("qemu:gone")
async def test_every_method_of_an_ended_machine_reports_its_end(runtime: QemuRuntime) -> None:
    stopped, killed = await runtime.start(), await runtime.start()
    await stopped.stop()
    await stopped.stop()
    killed.qemu.kill()
    await killed.qemu.qmp.ended.wait()
    for machine in (stopped, killed):
        for call in (
            machine.screenshot(),
            machine.move(1, 1),
            machine.button("left", down=True),
            machine.scroll(1),
            machine.key("a", down=True),
            machine.type("a"),
            machine.exec(["true"]),
            machine.read("/x"),
            machine.windows(),
            machine.accessibility(),
            machine.fork(),
        ):
            with pytest.raises(InstanceGone):
                await call
    await killed.stop()
