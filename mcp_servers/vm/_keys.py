"""Key names: those of pyautogui, X keysyms, and single characters."""

from typing import Final

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.core._failures import did_you_mean

_NAMES: Final[dict[str, str]] = {
    "alt": "Alt_L",
    "altleft": "Alt_L",
    "altright": "Alt_R",
    "apps": "Menu",
    "backspace": "BackSpace",
    "capslock": "Caps_Lock",
    "cmd": "Super_L",
    "command": "Super_L",
    "ctrl": "Control_L",
    "control": "Control_L",
    "ctrlleft": "Control_L",
    "ctrlright": "Control_R",
    "del": "Delete",
    "delete": "Delete",
    "down": "Down",
    "end": "End",
    "enter": "Return",
    "esc": "Escape",
    "escape": "Escape",
    "home": "Home",
    "insert": "Insert",
    "left": "Left",
    "menu": "Menu",
    "meta": "Super_L",
    "numlock": "Num_Lock",
    "option": "Alt_L",
    "pagedown": "Page_Down",
    "pageup": "Page_Up",
    "pause": "Pause",
    "pgdn": "Page_Down",
    "pgup": "Page_Up",
    "printscreen": "Print",
    "prntscrn": "Print",
    "prtsc": "Print",
    "return": "Return",
    "right": "Right",
    "scrolllock": "Scroll_Lock",
    "shift": "Shift_L",
    "shiftleft": "Shift_L",
    "shiftright": "Shift_R",
    "space": "space",
    "spacebar": "space",
    "super": "Super_L",
    "tab": "Tab",
    "up": "Up",
    "win": "Super_L",
    "winleft": "Super_L",
    "winright": "Super_R",
    **{f"f{number}": f"F{number}" for number in range(1, 25)},
    **{f"num{digit}": f"KP_{digit}" for digit in range(10)},
    "add": "KP_Add",
    "decimal": "KP_Decimal",
    "divide": "KP_Divide",
    "multiply": "KP_Multiply",
    "subtract": "KP_Subtract",
}
"""pyautogui's names, in lower case -> X keysyms."""

_CHARACTERS: Final[dict[str, str]] = {
    " ": "space",
    "!": "exclam",
    '"': "quotedbl",
    "#": "numbersign",
    "$": "dollar",
    "%": "percent",
    "&": "ampersand",
    "'": "apostrophe",
    "(": "parenleft",
    ")": "parenright",
    "*": "asterisk",
    "+": "plus",
    ",": "comma",
    "-": "minus",
    ".": "period",
    "/": "slash",
    ":": "colon",
    ";": "semicolon",
    "<": "less",
    "=": "equal",
    ">": "greater",
    "?": "question",
    "@": "at",
    "[": "bracketleft",
    "\\": "backslash",
    "]": "bracketright",
    "^": "asciicircum",
    "_": "underscore",
    "`": "grave",
    "{": "braceleft",
    "|": "bar",
    "}": "braceright",
    "~": "asciitilde",
    "\n": "Return",
    "\r": "Return",
    "\t": "Tab",
}
_X: Final = {
    *_NAMES.values(),
    *_CHARACTERS.values(),
    "KP_Enter",
    "ISO_Left_Tab",
    "Hyper_L",
    "Meta_L",
    "Meta_R",
}


def keysym(tool: str, name: str) -> str:
    """Return the X keysym of a key.

    :raises ToolFailure: `bad_arguments`, naming the nearest valid one.
    """
    if len(name) == 1:
        return _CHARACTERS.get(name, name)
    if name in _X:
        return name
    found = _NAMES.get(name.lower().replace("_", "").replace(" ", ""))
    if found is not None:
        return found
    hint = (
        did_you_mean(name, _NAMES) or did_you_mean(name, _X) or " Known: enter, ctrl, pgdn, f5, a, Return, …"
    )
    if "+" in name:
        hint = " For several keys at once use vm_hotkey with a list."
    raise ToolFailure(ErrorKind.BAD_ARGUMENTS, f"{tool}: no key {name!r}.{hint}")
