"""Key names: X keysyms, and the keys of a US keyboard for each character."""

from typing import Final

_SHIFT: Final = "shift"

_PLAIN: Final = {
    " ": "spc", "'": "apostrophe", ",": "comma", "-": "minus", ".": "dot", "/": "slash", ";": "semicolon",
    "=": "equal", "[": "bracket_left", "\\": "backslash", "]": "bracket_right", "`": "grave_accent",
    "\n": "ret", "\r": "ret", "\t": "tab", "\b": "backspace", "\x1b": "esc", "\x7f": "delete",
    **{character: character for character in "abcdefghijklmnopqrstuvwxyz0123456789"},
}  # fmt: skip
"""Characters of a single key, and QEMU's name of that key."""

_SHIFTED: Final = dict(zip('~!@#$%^&*()_+{}|:"<>?', "`1234567890-=[]\\;',./", strict=True)) | {
    letter.upper(): letter for letter in "abcdefghijklmnopqrstuvwxyz"
}
"""Characters that need Shift, and the character of the same key without it."""

_SYMBOLS: Final = {
    "space": " ", "exclam": "!", "quotedbl": '"', "numbersign": "#", "dollar": "$", "percent": "%",
    "ampersand": "&", "apostrophe": "'", "quoteright": "'", "parenleft": "(", "parenright": ")", "asterisk": "*",
    "plus": "+", "comma": ",", "minus": "-", "period": ".", "slash": "/", "colon": ":", "semicolon": ";",
    "less": "<", "equal": "=", "greater": ">", "question": "?", "at": "@", "bracketleft": "[", "backslash": "\\",
    "bracketright": "]", "asciicircum": "^", "underscore": "_", "grave": "`", "quoteleft": "`", "braceleft": "{",
    "bar": "|", "braceright": "}", "asciitilde": "~",
}  # fmt: skip
"""X keysyms of characters."""

_NAMED: Final = {
    "Return": "ret", "Tab": "tab", "BackSpace": "backspace", "Escape": "esc", "Delete": "delete",
    "Insert": "insert", "Home": "home", "End": "end", "Page_Up": "pgup", "Prior": "pgup", "Page_Down": "pgdn",
    "Next": "pgdn", "Up": "up", "Down": "down", "Left": "left", "Right": "right", "Menu": "menu",
    "Print": "print", "Sys_Req": "sysrq", "Pause": "pause", "Caps_Lock": "caps_lock", "Num_Lock": "num_lock",
    "Scroll_Lock": "scroll_lock", "Shift_L": "shift", "Shift_R": "shift_r", "Control_L": "ctrl",
    "Control_R": "ctrl_r", "Alt_L": "alt", "Alt_R": "alt_r", "ISO_Level3_Shift": "alt_r", "Super_L": "meta_l",
    "Super_R": "meta_r", "Meta_L": "meta_l", "Meta_R": "meta_r", "KP_Enter": "kp_enter",
    "KP_Add": "kp_add", "KP_Subtract": "kp_subtract", "KP_Multiply": "kp_multiply", "KP_Divide": "kp_divide",
    "KP_Decimal": "kp_decimal", "KP_Separator": "kp_comma", "KP_Equal": "kp_equals",
    "XF86AudioMute": "audiomute", "XF86AudioLowerVolume": "volumedown", "XF86AudioRaiseVolume": "volumeup",
    **{f"KP_{digit}": f"kp_{digit}" for digit in range(10)},
    **{f"F{number}": f"f{number}" for number in range(1, 13)},
}  # fmt: skip
"""X keysyms of the other keys, and QEMU's names."""


def keys_of_character(character: str) -> tuple[str, ...] | None:
    """Return the keys that type a character, in pressing order; `None` if a US keyboard has none."""
    if character in _PLAIN:
        return (_PLAIN[character],)
    if character in _SHIFTED:
        return (_SHIFT, _PLAIN[_SHIFTED[character]])
    return None


def keys_of_name(name: str) -> tuple[str, ...]:
    """Return the keys of an X keysym, in pressing order.

    :raises ValueError: if there is no such key.
    """
    if name in _NAMED:
        return (_NAMED[name],)
    keys = keys_of_character(_SYMBOLS.get(name, name))
    if keys is None:
        raise ValueError(
            f"there is no key {name!r} on a US keyboard; use X's names: a, Return, Control_L, F5"
        )
    return keys


def keys_of_text(text: str) -> list[tuple[str, ...]]:
    """Return the keys that type a text.

    :raises ValueError: naming the first character that cannot be typed.
    """
    strokes: list[tuple[str, ...]] = []
    for character in text.replace("\r\n", "\n"):
        keys = keys_of_character(character)
        if keys is None:
            raise ValueError(f"{character!r} cannot be typed on a US keyboard; nothing was typed")
        strokes.append(keys)
    return strokes
