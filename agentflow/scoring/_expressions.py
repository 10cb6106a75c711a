r"""Parser of mathematical expressions in plain text or LaTeX. Python never evaluates any of it.

The number of characters and the nesting are bounded. Text that can't be parsed gives `None`.
"""

import re
from fractions import Fraction
from typing import Final, TypeAlias

from msgspec import Struct


class Number(Struct, frozen=True):
    """An exact number."""

    value: Fraction


class Symbol(Struct, frozen=True):
    """A name: a variable, or a constant such as `pi`."""

    name: str
    """The name, without a backslash."""


class Apply(Struct, frozen=True):
    """An operator or function with its arguments."""

    function: str
    """`+ - * / ^`, `neg`, or a function's name."""
    arguments: tuple["Expression", ...]


Expression: TypeAlias = Number | Symbol | Apply
"""A mathematical expression."""

FUNCTIONS: Final = frozenset([
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "ln", "log", "exp", "sqrt", "abs", "floor", "ceil",
])  # fmt: skip
"""Functions that are written by name."""
_MAX_TEXT: Final = 1000
_MAX_DIGITS: Final = 200
_MAX_DEPTH: Final = 40
_CONSTANTS: Final = {"π": "pi", "∞": "oo", "infty": "oo", "infinity": "oo", "inf": "oo", "Pi": "pi"}
_SIGNS: Final = {
    "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "∕": "/", "⁄": "/", "−": "-", "–": "-", "√": "sqrt",
    r"\cdot": "*", r"\times": "*", r"\div": "/", r"\ast": "*", "**": "^", r"\lvert": "|", r"\rvert": "|",
    r"\lbrace": "{", r"\rbrace": "}",
}  # fmt: skip
_COMMANDS: Final = {"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom"}
_RAISED: Final = {raised: f"^{digit}" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_HALVES: Final = {"½": "(1/2)", "⅓": "(1/3)", "⅔": "(2/3)", "¼": "(1/4)", "¾": "(3/4)"}
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<command>\\[A-Za-z]+)|(?P<word>[^\W\d_]+(?:_\w+|_\{\w+\})?)"
    r"|(?P<sign>\*\*|[-+*/^!()\[\]{}|,_×·⋅∗÷∕⁄−–√]))"
)


class _Unreadable(Exception):
    """The text is not a supported expression."""


def parse(text: str) -> Expression | None:
    """Parse a text as one expression; `None` if it is not one."""
    try:
        return _Parser(_split(text)).whole()
    except _Unreadable:
        return None


def _split(text: str) -> list[str]:
    """Return the tokens: numbers, names without backslashes, signs."""
    if len(text) > _MAX_TEXT:
        raise _Unreadable
    for written, meant in {**_RAISED, **_HALVES}.items():
        text = text.replace(written, meant)
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match or len(match[0]) > _MAX_DIGITS:
            raise _Unreadable
        tokens.extend(_names(match))
        position = match.end()
    return tokens


def _names(match: re.Match[str]) -> list[str]:
    if command := match["command"]:
        name = command[1:]
        name = _COMMANDS.get(name, name)
        return [_SIGNS.get(command) or _CONSTANTS.get(name) or name]
    if sign := match["sign"]:
        return [_SIGNS.get(sign, sign)]
    if word := match["word"]:
        word = word.replace("{", "").replace("}", "")
        base = word.partition("_")[0]
        is_known = word in FUNCTIONS or word in {"pi", "binom", "oo"} or word in _CONSTANTS
        if is_known or len(base) == 1:
            return [_CONSTANTS.get(word, word)]
        if base in FUNCTIONS:
            return [base, "_", word.partition("_")[2]]
        return _letters(word)
    return [match["number"]]


def _letters(word: str) -> list[str]:
    """Split a product of variables, functions and constants: `xy`, `xsin`, `rpi`. A longer word is not a product."""
    for name in sorted(FUNCTIONS | {"pi"}, key=len, reverse=True):
        before, separator, after = word.partition(name)
        if separator and len(before) <= 2 and len(after) <= 1:
            return [*before, name, *after]
    if len(word) > 3 or "_" in word:
        raise _Unreadable
    return list(word)


class _Parser:
    """Recursive-descent parser with implicit products."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._bars = 0

    def whole(self) -> Expression:
        read = self._sum()
        if self._next is not None:
            raise _Unreadable
        return read

    @property
    def _next(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _take(self) -> str:
        token = self._next
        if token is None:
            raise _Unreadable
        self._position += 1
        return token

    def _accept(self, *tokens: str) -> str | None:
        return self._take() if self._next in tokens else None

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise _Unreadable

    def _sum(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unreadable
        read = self._product()
        while sign := self._accept("+", "-"):
            read = Apply(sign, (read, self._product()))
        self._depth -= 1
        return read

    def _product(self) -> Expression:
        read = self._signed()
        while True:
            if sign := self._accept("*", "/"):
                read = Apply(sign, (read, self._signed()))
            elif self._starts_factor():
                read = self._beside(read)
            else:
                return read

    def _beside(self, read: Expression) -> Expression:
        """Parse two factors without a sign between them: a mixed number, or a product."""
        whole = isinstance(read, Number) and read.value.denominator == 1
        after = self._next or ""
        if whole and after == "frac":
            part = self._power()
            mixed = isinstance(part, Apply) and all(
                isinstance(argument, Number) for argument in part.arguments
            )
            return Apply("+" if mixed else "*", (read, part))
        if whole and after[0].isdigit():
            part = self._number()
            self._expect("/")
            return Apply("+", (read, Apply("/", (part, self._number()))))
        if after[0].isdigit() and not isinstance(read, Apply):
            raise _Unreadable
        return Apply("*", (read, self._power()))

    def _starts_factor(self) -> bool:
        token = self._next
        if token is None or token in {"+", "-", "*", "/", "^", "!", ")", "]", "}", ",", "_"}:
            return False
        return token != "|" or self._bars == 0

    def _signed(self) -> Expression:
        negative = False
        while sign := self._accept("+", "-"):
            negative ^= sign == "-"
        read = self._power()
        return Apply("neg", (read,)) if negative else read

    def _power(self) -> Expression:
        base = self._factorial()
        return Apply("^", (base, self._script())) if self._accept("^") else base

    def _script(self) -> Expression:
        """Parse an exponent: in braces, or signed and right-associative."""
        if self._next == "{":
            return self._group("{", "}")
        if self._accept("-"):
            return Apply("neg", (self._script(),))
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unreadable
        read = self._power()
        self._depth -= 1
        return read

    def _factorial(self) -> Expression:
        read = self._atom()
        while self._accept("!"):
            read = Apply("factorial", (read,))
        return read

    def _atom(self) -> Expression:
        token = self._next or ""
        for opening, closing in ("()", "[]", "{}"):
            if token == opening:
                return self._group(opening, closing)
        if token == "|":
            return self._bar()
        if token[:1].isdigit() or token[:1] == ".":
            return self._number()
        if not token or not token[0].isalpha():
            raise _Unreadable
        self._take()
        if token in FUNCTIONS or token in {"frac", "binom"}:
            return self._function(token)
        return Symbol(token)

    def _number(self) -> Number:
        token = self._take()
        if not (token[0].isdigit() or token[0] == "."):
            raise _Unreadable
        return Number(Fraction(token))

    def _group(self, opening: str, closing: str) -> Expression:
        self._expect(opening)
        bars, self._bars = self._bars, 0
        read = self._sum()
        self._bars = bars
        self._expect(closing)
        return read

    def _bar(self) -> Expression:
        self._expect("|")
        self._bars += 1
        read = self._sum()
        self._bars -= 1
        self._expect("|")
        return Apply("abs", (read,))

    def _function(self, name: str) -> Expression:
        if name in {"frac", "binom"}:
            both = (self._argument(), self._argument())
            return Apply("/" if name == "frac" else name, both)
        if name == "sqrt" and self._next == "[":
            root = self._group("[", "]")
            return Apply("root", (self._argument(), root))
        base = None
        if self._accept("_"):
            base = self._group("{", "}") if self._next == "{" else self._atom()
        power = self._script() if self._accept("^") else None
        arguments = (self._operand(name),) if base is None else (self._operand(name), base)
        read = Apply(name, arguments)
        return Apply("^", (read, power)) if power is not None else read

    def _argument(self) -> Expression:
        r"""Parse an argument of a LaTeX command: in braces, or one sign or digit, as in `\frac12`."""
        token = self._next or ""
        if token == "{":
            return self._group("{", "}")
        if token[:1].isdigit() and len(token) > 1:
            self._tokens[self._position : self._position + 1] = [token[0], token[1:]]
        return self._atom()

    def _operand(self, name: str) -> Expression:
        """Parse the argument of a function: a group, or else the product that follows."""
        if self._next in {"(", "[", "{", "|"}:
            return self._atom()
        if name == "sqrt":
            return self._argument()
        read = self._signed()
        while self._starts_factor() and self._next not in FUNCTIONS and self._next not in {"(", "[", "|"}:
            read = Apply("*", (read, self._power()))
        return read
