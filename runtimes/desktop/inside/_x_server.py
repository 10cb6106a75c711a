"""X server with its window manager, and the connection to it."""

import os
import time
from collections.abc import Mapping

from Xlib import X
from Xlib.display import Display
from Xlib.protocol.event import ClientMessage

from runtimes.desktop.inside._panel import BACKGROUND, PANEL, rules_with_menu, wants_panel, write_panel

FOLDER = "/tmp/.desktop"
"""Files of the desktop itself."""

_OPENBOX = "/usr/bin/openbox"
_BUS = "/usr/bin/dbus-daemon"
_READY_SECONDS, _PAUSE = 300.0, 0.002
_FONTS = "/usr/share/fonts/truetype/dejavu"

# Scanning all fonts takes longer than everything else together; title bars need only a few.
_FEW_FONTS = f"""<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{_FONTS}</dir><cachedir>{FOLDER}/cache/few</cachedir>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
<alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>Sans</family><prefer><family>DejaVu Sans</family></prefer></alias>
</fontconfig>
"""

# New windows get the focus, a click raises them, the title bar moves them; the empty screen has no menu.
_RULES = """<?xml version="1.0"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
<focus><focusNew>yes</focusNew><followMouse>no</followMouse></focus>
<placement><policy>Smart</policy><center>yes</center></placement>
<theme><name>Clearlooks</name><titleLayout>NLIMC</titleLayout></theme>
<desktops><number>1</number><popupTime>0</popupTime></desktops>
<keyboard>
<keybind key="A-F4"><action name="Close"/></keybind>
<keybind key="A-Tab"><action name="NextWindow"><dialog>none</dialog></action></keybind>
</keyboard>
<mouse><dragThreshold>1</dragThreshold><doubleClickTime>500</doubleClickTime>
<context name="Titlebar">
<mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
<mousebind button="Left" action="DoubleClick"><action name="ToggleMaximize"/></mousebind>
</context>
<context name="Titlebar Top Right Bottom Left TLCorner TRCorner BRCorner BLCorner">
<mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
</context>
<context name="Top"><mousebind button="Left" action="Drag"><action name="Resize"><edge>top</edge></action></mousebind></context>
<context name="Bottom"><mousebind button="Left" action="Drag"><action name="Resize"><edge>bottom</edge></action></mousebind></context>
<context name="Left"><mousebind button="Left" action="Drag"><action name="Resize"><edge>left</edge></action></mousebind></context>
<context name="Right"><mousebind button="Left" action="Drag"><action name="Resize"><edge>right</edge></action></mousebind></context>
<context name="TLCorner TRCorner BLCorner BRCorner">
<mousebind button="Left" action="Drag"><action name="Resize"/></mousebind></context>
<context name="Client">
<mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
<mousebind button="Middle" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
<mousebind button="Right" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
</context>
<context name="Close"><mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
<mousebind button="Left" action="Click"><action name="Close"/></mousebind></context>
<context name="Maximize"><mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
<mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind></context>
<context name="Iconify"><mousebind button="Left" action="Click"><action name="Iconify"/></mousebind></context>
</mouse>
</openbox_config>
"""


class XServer:
    """Running X server with a window manager."""

    def __init__(self, ready: int) -> None:
        # Caches belong to the desktop, not among the agent's files.
        desktop_variables = {"XDG_RUNTIME_DIR": FOLDER, "XDG_CACHE_HOME": f"{FOLDER}/cache"}
        panel = wants_panel(os.environ)
        self.environment = {
            name: value for name, value in os.environ.items() if name != PANEL
        } | desktop_variables
        """Environment of programs on this desktop."""
        # The number arrives in pieces, and the server dies if its pipe is closed early.
        number = b""
        while not number.endswith(b"\n"):
            piece = os.read(ready, 64)
            if not piece:
                raise SystemExit("the X server did not start")
            number += piece
        os.close(ready)
        os.makedirs(FOLDER, mode=0o700, exist_ok=True)
        rules = rules_with_menu(_RULES, FOLDER) if panel else _RULES
        for name, text in (("rules.xml", rules), ("fonts.xml", _FEW_FONTS)):
            with open(f"{FOLDER}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        fonts = {"FONTCONFIG_FILE": f"{FOLDER}/fonts.xml"} if os.path.isdir(_FONTS) else {}
        program = write_panel(FOLDER) if panel else []
        self._spawn(
            [_OPENBOX, "--sm-disable", "--config-file", f"{FOLDER}/rules.xml"], {**self.environment, **fonts}
        )
        self.display = Display()
        """Connection to the server."""
        self.root = self.display.screen().root
        """Root window."""
        self._wait_for_manager()
        if program:
            self.root.change_attributes(background_pixel=BACKGROUND)
            self.root.clear_area()
            self.display.sync()
            self._spawn(program, {**self.environment, **fonts})
            self._wait_for_panel()

    def start_bus(self, address: str) -> None:
        """Start the accessibility bus."""
        path = address.removeprefix("unix:path=")
        if os.path.lexists(path):
            os.unlink(path)
        options = ["--session", "--nofork", "--nopidfile", "--nosyslog", f"--address={address}"]
        self._spawn([_BUS, *options], self.environment)

    def _wait_for_manager(self) -> None:
        """Wait until the window manager answers: a window that opens earlier is never managed."""
        window = self.root.create_window(0, 0, 1, 1, 0, X.CopyFromParent)
        question = self.display.intern_atom("_NET_REQUEST_FRAME_EXTENTS")
        answer = self.display.intern_atom("_NET_FRAME_EXTENTS")
        message = ClientMessage(window=window, client_type=question, data=(32, [0] * 5))
        until = time.monotonic() + _READY_SECONDS
        while window.get_full_property(answer, X.AnyPropertyType) is None:
            if time.monotonic() > until:
                raise SystemExit("the window manager did not start")
            # Messages sent before it listens may be lost.
            self.root.send_event(message, X.SubstructureRedirectMask | X.SubstructureNotifyMask)
            self.display.sync()
            time.sleep(_PAUSE)
        window.destroy()
        self.display.sync()

    def _wait_for_panel(self) -> None:
        """Wait until the panel has taken its part of the screen."""
        area = self.display.intern_atom("_NET_WORKAREA")
        until = time.monotonic() + _READY_SECONDS
        while (
            work_area := self.root.get_full_property(area, X.AnyPropertyType)
        ) is None or not work_area.value[1]:
            if time.monotonic() > until:
                raise SystemExit("the panel did not start")
            time.sleep(_PAUSE)

    @staticmethod
    def _spawn(argv: list[str], environment: Mapping[str, str]) -> None:
        flags = (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)
        actions = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", flag, 0) for fd, flag in enumerate(flags)]
        os.posix_spawn(argv[0], argv, environment, file_actions=actions)
