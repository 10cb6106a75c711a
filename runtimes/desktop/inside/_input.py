"""Keyboard and pointer of a display."""

from Xlib import XK, X
from Xlib.display import Display
from Xlib.ext import xtest

_NAMED = {"\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", "\x1b": "Escape", "\x7f": "Delete"}
_UNICODE = 0x01000000
_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_UP, _DOWN, _LEFT, _RIGHT = 4, 5, 6, 7


class Keyboard:
    """Keys of one display. A character without a key is assigned to an unused one."""

    def __init__(self, display: Display) -> None:
        self._display = display
        first, last = display.display.info.min_keycode, display.display.info.max_keycode
        self._keys: dict[int, tuple[int, bool]] = {}
        self._unused: list[int] = []
        for offset, symbols in enumerate(display.get_keyboard_mapping(first, last - first + 1)):
            if not any(symbols):
                self._unused.append(first + offset)
            for level, symbol in enumerate(symbols[:2]):
                if symbol:
                    self._keys.setdefault(symbol, (first + offset, level == 1))
        self._given: list[int] = []
        self._shift = self._keys[XK.XK_Shift_L][0]

    def press(self, name: str, *, down: bool) -> None:
        """Press or release a key, named by its keysym or character.

        :raises ValueError: if there is no such key.
        """
        symbol = XK.string_to_keysym(_NAMED.get(name, name)) or (_symbol(name) if len(name) == 1 else 0)
        if not symbol:
            raise ValueError(f"no key {name!r}")
        self._assign([symbol])
        code, shifted = self._keys[symbol]
        if down and shifted:
            self._fake(self._shift, down=True)
        self._fake(code, down=down)
        if shifted and not down:
            self._fake(self._shift, down=False)
        self._display.sync()

    def type(self, text: str) -> None:
        """Type a text.

        :raises ValueError: naming the first character that cannot be typed; then nothing was typed.
        """
        self.check(text)
        symbols = [_symbol(character) for character in text]
        pieces = max(1, len(self._unused) + len(self._given))
        for start in range(0, len(symbols), pieces):
            piece = symbols[start : start + pieces]
            self._assign(piece)
            for symbol in piece:
                self._stroke(*self._keys[symbol])
            self._display.sync()

    @staticmethod
    def check(text: str) -> None:
        """Check that a text can be typed.

        :raises ValueError: naming the first character that cannot.
        """
        for character in text:
            if not _symbol(character):
                raise ValueError(f"the character {character!r} cannot be typed")

    def _stroke(self, code: int, shifted: bool) -> None:
        if shifted:
            self._fake(self._shift, down=True)
        self._fake(code, down=True)
        self._fake(code, down=False)
        if shifted:
            self._fake(self._shift, down=False)

    def _fake(self, code: int, *, down: bool) -> None:
        xtest.fake_input(self._display, X.KeyPress if down else X.KeyRelease, code)

    def _assign(self, symbols: list[int]) -> None:
        """Assign keys to the keysyms that have none, reusing the least recently assigned keys."""
        wanted = dict.fromkeys(symbol for symbol in symbols if symbol not in self._keys)
        for symbol in wanted:
            if not self._unused:
                oldest = next(one for one in self._given if one not in symbols)
                self._given.remove(oldest)
                self._unused.append(self._keys.pop(oldest)[0])
            code = self._unused.pop()
            self._display.change_keyboard_mapping(code, [(symbol, symbol)])
            self._keys[symbol] = (code, False)
            self._given.append(symbol)
        if wanted:
            self._display.sync()


def _symbol(character: str) -> int:
    """Return the keysym of a character; 0 if there is none."""
    name = _NAMED.get(character)
    if name is not None:
        return XK.string_to_keysym(name)
    code = ord(character)
    if 0x20 <= code < 0x7F or 0xA0 <= code <= 0xFF:
        return code
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code <= 0xDFFF:
        return 0
    return _UNICODE + code


class Pointer:
    """Pointer of one display."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        xtest.fake_input(self._display, X.MotionNotify, x=x, y=y)
        self._display.sync()

    def button(self, name: str, *, down: bool) -> None:
        """Press or release a button."""
        xtest.fake_input(self._display, X.ButtonPress if down else X.ButtonRelease, _BUTTONS[name])
        self._display.sync()

    def scroll(self, clicks: int, *, horizontal: bool) -> None:
        """Turn the wheel; up and right are positive."""
        forward, backward = (_RIGHT, _LEFT) if horizontal else (_UP, _DOWN)
        number = forward if clicks > 0 else backward
        for _ in range(abs(clicks)):
            xtest.fake_input(self._display, X.ButtonPress, number)
            xtest.fake_input(self._display, X.ButtonRelease, number)
        self._display.sync()
