"""Start, end and isolation of desktops."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, Self

import anyio
import pytest

from agentflow.errors import InstanceGone, IsolationUnavailable, RuntimeFailure
from runtimes import InstanceSpec, Limits, Runtime, pack_frame
from runtimes.desktop import DISPLAY, Desktop, DesktopOptions, DesktopRuntime, _desktop, open_desktop
from runtimes.desktop._desktop import DriverClient
from runtimes.desktop.inside import _panel
from runtimes.desktop.inside._wire import pack
from tests.runtimes.desktop._waiting import eventually


@pytest.mark.promise("desktop:ends")
async def test_a_stopped_desktop_leaves_no_process_in_its_instance(runtime: Runtime) -> None:
    instance = await runtime.start()
    before = (await instance.usage()).processes
    desktop = await open_desktop(instance)
    await desktop.exec(["sh", "-c", "setsid sleep 4321 &"])
    await desktop.stop()
    await desktop.stop()

    async def left() -> bool:
        # A killed process may still be dying.
        return (await instance.usage()).processes == before

    await eventually(left)
    for call in (desktop.screenshot(), desktop.move(1, 1), desktop.read("x"), desktop.fork()):
        with pytest.raises(InstanceGone):
            await call
    again = await open_desktop(instance, DesktopOptions(width=320, height=200))
    assert (await again.screenshot()).width == 320
    await instance.stop()
    await eventually(lambda: ended(again))


async def ended(desktop: Desktop) -> bool:
    """Return true once it reports its end: after a crash its processes take a moment to die."""
    try:
        await desktop.screenshot()
    except InstanceGone as gone:
        return "the desktop has ended" in str(gone)
    return False


@pytest.mark.promise("desktop:ends")
async def test_a_desktop_whose_x_server_dies_has_ended(runtime: Runtime) -> None:
    async with DesktopRuntime(runtime) as desktops:
        desktop = await desktops.start()
        await desktop.exec(["pkill", "-KILL", "Xvfb"])
        await eventually(lambda: ended(desktop))


@pytest.mark.promise("desktop:at_once")
async def test_a_long_command_delays_neither_screenshots_nor_the_pointer(runtime: Runtime) -> None:
    async with DesktopRuntime(runtime) as desktops:
        desktop = await desktops.start()
        async with anyio.create_task_group() as group:
            group.start_soon(desktop.exec, ["sleep", "1000"])
            with anyio.fail_after(60):
                for _ in range(3):
                    await desktop.move(5, 5)
                    await desktop.screenshot()
            group.cancel_scope.cancel()
        assert (await desktop.screenshot()).width == 1280


@pytest.mark.promise("desktop:isolated")
async def test_no_other_instance_reaches_its_screen_and_it_has_no_network(runtime: Runtime) -> None:
    async with DesktopRuntime(runtime) as desktops:
        desktop = await desktops.start()
        other = await runtime.start()
        refused = await other.exec(["xprop", "-display", DISPLAY, "-root"])
        assert refused.exit_code != 0
        assert b"unable to open display" in refused.stderr
        listening = await desktop.exec(
            ["sh", "-c", "cat /proc/net/tcp /proc/net/tcp6 | grep -v local_address"]
        )
        assert listening.stdout == b""
        await other.stop()


@pytest.mark.promise("desktop:limits")
async def test_a_desktop_counts_against_its_instances_limits(runtime: Runtime) -> None:
    spec = InstanceSpec(limits=Limits(processes=2))
    async with DesktopRuntime(runtime, spec=spec) as desktops:
        with pytest.raises(RuntimeFailure, match="the desktop did not start"):
            await desktops.start()


@pytest.mark.promise("desktop:missing")
async def test_a_missing_part_is_named_with_its_package(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_desktop, "PROGRAMS", {"/usr/bin/no-such-server": "xvfb"})
    monkeypatch.setattr(_desktop, "PACKAGES", ("no_such_package",))
    desktops = DesktopRuntime(runtime)
    with pytest.raises(
        IsolationUnavailable, match=r"apt-get install xvfb.*needs the extra desktop: .* extras add desktop"
    ):
        await desktops.start()
    assert any("apt-get install xvfb" in note for note in desktops.capabilities.notes)


@pytest.mark.promise("desktop:panel")
def test_a_panel_has_buttons_and_a_menu_for_the_installed_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {"Shell": "/bin/sh -i", "Nothing": "/usr/bin/no-such-program"}
    monkeypatch.setattr(_panel, "_PROGRAMS", programs)
    command = _panel.write_panel(str(tmp_path))
    panel, menu = (tmp_path / "panel.conf").read_text(), (tmp_path / "menu.xml").read_text()
    assert command[-1] == str(tmp_path / "panel.conf")
    assert "button_text = Shell" in panel
    assert "<command>/bin/sh -i</command>" in menu
    assert "Nothing" not in panel + menu
    rules = "<keyboard></keyboard><mouse></mouse></openbox_config>"
    assert f"<file>{tmp_path}/menu.xml</file>" in _panel.rules_with_menu(rules, str(tmp_path))


@pytest.mark.promise("desktop:panel")
def test_a_missing_program_of_the_panel_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_desktop, "PANEL_PROGRAMS", {"/usr/bin/no-such-panel": "tint2"})
    assert _desktop.missing_parts() == []
    assert "apt-get install tint2" in _desktop.missing_parts(panel=True)[0]


@pytest.mark.promise("desktop:options")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0, 800, 96), "invalid screen size 0x800"),
        ((1280, 100_000, 96), "invalid screen size 1280x100000"),
        ((1280, 800, 1), "invalid dpi 1"),
    ],
)
def test_an_unsupported_screen_size_is_refused(options: tuple[int, int, int], message: str) -> None:
    width, height, dpi = options
    with pytest.raises(ValueError, match=message):
        DesktopOptions(width=width, height=height, dpi=dpi)


class Liar:
    """Stream with scripted output, as if code inside had replaced the driver."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.killed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def send(self, data: bytes) -> None:
        pass

    async def close_stdin(self) -> None:
        pass

    async def receive(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        while self._pieces:
            yield "stdout", self._pieces.pop(0)

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None:
        self.killed = True


@pytest.mark.promise("desktop:distrust")
@pytest.mark.parametrize(
    "piece",
    [b"\xff" * 16, pack_frame(b"[]"), pack_frame(b"{x}"), pack_frame(b"1")],
)
async def test_a_malformed_answer_ends_the_desktop(piece: bytes) -> None:
    stream = Liar(piece, pack_frame(pack({"id": 1})))
    with pytest.raises(InstanceGone):
        await DriverClient(stream).ask("screenshot")
    assert stream.killed


class Slow(Liar):
    """Stream that delays the second request, with scripted output."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.takes = anyio.Event()
        self.answers, self._heard = anyio.create_memory_object_stream[bytes](9)

    async def send(self, data: bytes) -> None:
        self.questions += 1
        if self.questions == 2:
            await self.takes.wait()

    async def receive(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        async for piece in self._heard:
            yield "stdout", piece

    def close(self) -> None:
        self.answers.close()
        self._heard.close()


@pytest.mark.promise("desktop:at_once")
async def test_a_request_that_is_still_being_sent_delays_no_other_answer() -> None:
    stream = Slow()
    link = DriverClient(stream)
    answered: list[str] = []

    async def ask(op: str) -> None:
        await link.ask(op)
        answered.append(op)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for op in ("first", "second", "third"):
                group.start_soon(ask, op)
                await anyio.wait_all_tasks_blocked()
            for number in (1, 3):
                await stream.answers.send(pack_frame(pack({"id": number})))
                await anyio.wait_all_tasks_blocked()
            assert answered == ["first", "third"]
            stream.takes.set()
            await stream.answers.send(pack_frame(pack({"id": 2})))
    assert answered == ["first", "third", "second"]
    stream.close()


@pytest.mark.promise("desktop:distrust")
async def test_unrequested_answers_are_dropped_and_split_frames_are_joined() -> None:
    answer = pack_frame(pack({"id": 1, "width": 3}, b"abc"))
    unasked = b"".join(pack_frame(pack({"id": number}, bytes(1000))) for number in range(2, 50))
    stream = Liar(unasked + answer[:5], answer[5:9], answer[9:])
    assert await DriverClient(stream).ask("screenshot") == ({"id": 1, "width": 3}, b"abc")
