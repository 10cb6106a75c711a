"""Panel of a desktop: a menu on the empty screen, and buttons that start a terminal, a file manager, an editor and a browser."""

import os
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

PANEL = "AGENTFLOW_DESKTOP_PANEL"
"""Environment variable that asks for a panel."""
BACKGROUND = 0x3A5A78
"""Colour of the empty screen."""

_TINT2 = "/usr/bin/tint2"
_FONT = "DejaVu Sans 10"
_PROGRAMS = {
    "Terminal": "/usr/bin/xterm -fa Monospace -fs 10 -geometry 90x26",
    "Files": "/usr/bin/pcmanfm --no-desktop",
    "Editor": "/usr/bin/l3afpad",
    "Browser": "/usr/lib/chromium/chromium --no-sandbox --test-type --no-first-run --disable-gpu --password-store=basic",
}
"""Programs by the words of their buttons; one that is not installed has no button."""

# Buttons have words, as icon themes differ. There is no clock: the same steps give the same picture.
_PANEL = f"""panel_items = {{items}}
panel_position = top left horizontal
panel_size = 100% 30
panel_layer = top
panel_padding = 6 2 6
rounded = 0
border_width = 1
background_color = #20303f 100
border_color = #8fa3b5 60
panel_background_id = 0
rounded = 3
border_width = 1
background_color = #34495e 100
border_color = #8fa3b5 60
font_shadow = 0
taskbar_mode = single_desktop
taskbar_padding = 4 0 4
task_text = 1
task_icon = 0
task_font = {_FONT}
task_font_color = #ffffff 100
task_maximum_size = 200 28
task_background_id = 2
task_active_background_id = 1
mouse_left = toggle_iconify
"""
_BUTTON = """button = new
button_text = {text}
button_font = {font}
button_font_color = #ffffff 100
button_background_id = 2
button_padding = 10 0
button_lclick_command = {command}
"""
_MENU = """<?xml version="1.0" encoding="UTF-8"?>
<openbox_menu xmlns="http://openbox.org/3.4/menu"><menu id="root-menu" label="Menu">
{items}
</menu></openbox_menu>
"""
_ITEM = "<item label={label}><action name={action}><command>{command}</command></action></item>"
_ROOT = """<context name="Root">
<mousebind button="Left" action="Press"><action name="ShowMenu"><menu>root-menu</menu></action></mousebind>
<mousebind button="Right" action="Press"><action name="ShowMenu"><menu>root-menu</menu></action></mousebind>
</context>
</mouse>"""


def rules_with_menu(rules: str, folder: str) -> str:
    """Return the rules of the window manager with a menu on the empty screen."""
    menu = f"<menu><file>{folder}/menu.xml</file></menu>\n</openbox_config>"
    return rules.replace("</mouse>", _ROOT).replace("</openbox_config>", menu)


def write_panel(folder: str) -> list[str]:
    """Write the files of the menu and the panel; return the panel's program with its arguments."""
    programs = {text: line for text, line in _PROGRAMS.items() if os.path.exists(line.split()[0])}
    items = [
        _ITEM.format(label=quoteattr(text), action='"Execute"', command=line)
        for text, line in programs.items()
    ]
    buttons = [_BUTTON.format(text=text, font=_FONT, command=line) for text, line in programs.items()]
    panel = _PANEL.format(items="P" * len(buttons) + "T") + "".join(buttons)
    for name, text in (("menu.xml", _MENU.format(items="\n".join(items))), ("panel.conf", panel)):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    return [_TINT2, "-c", f"{folder}/panel.conf"]


def wants_panel(environment: Mapping[str, str]) -> bool:
    """Tell whether a panel is asked for."""
    return environment.get(PANEL) == "1"
