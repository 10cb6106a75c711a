"""Mathematical answers: equivalence in any notation, and expressions of the game of 24."""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final

from agentflow.scoring._answers import boxed, extract_answer, tidy
from agentflow.scoring._equality import same_expression
from agentflow.scoring._expressions import FUNCTIONS, Apply, Expression, Number, Symbol, parse

_LONGEST: Final = 1000
_SPACES: Final = re.compile(
    r"(?<!\\)\\[,;:!> ]|\\q?quad\b|~|\\displaystyle\b|\\left(?![a-z])|\\right(?![a-z])|\\big[lr]?\b"
)
_DOLLARS: Final = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]")
_TEXT: Final = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_GROUPS: Final = re.compile(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))")
_UNIT: Final = re.compile(
    r"(?<=[\d})])\s*(?:\^\\circ|\^\{\\circ\}|°|\\degree|degrees?|(?:square |cubic )?(?:cm|mm|km|kg|meters?|metres?"
    r"|centimeters?|inch(?:es)?|feet|foot|miles?|hours?|minutes?|seconds?|days?|years?|units?|dollars?|cents?"
    r"|points?|percent)(?:\s*\^\s*\{?[23]\}?)?)\s*$",
    re.IGNORECASE,
)
_NAMED: Final = re.compile(
    r"^\s*(?:[A-Za-z]|\\[a-z]+)(?:_\w|_\{\w+\})?(?:\([a-z]\))?\s*(?:=|\\in\b)\s*(?=\S)"
)
_BASED: Final = re.compile(r"([0-9A-Fa-f]+)_\{?(\d+)\}?")
_MATRIX: Final = re.compile(r"\\begin\{([bpvB]?matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\}", re.DOTALL)
_RELATION: Final = re.compile(r"(<=|>=|\\leq?(?![a-z])|\\geq?(?![a-z])|≤|≥|<|>|=)")
_SIGNS: Final = {"\\le": "<=", "\\leq": "<=", "≤": "<=", "\\ge": ">=", "\\geq": ">=", "≥": ">="}
_TURNED: Final = {"<=": ">=", ">=": "<=", "<": ">", ">": "<", "=": "="}
_PLUS_MINUS: Final = re.compile(r"\\pm(?![a-z])|±")
_OPENING: Final = "([{⦃"
_CLOSING: Final = ")]}⦄"
_SEPARATOR: Final = re.compile(r"\s+(?:and|or)\s+|[,;]")
_SET: Final = frozenset({"", "{}", "⦃⦄"})
_MOST: Final = 40
_TIMES: Final = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(])")
_BREAK: Final = re.compile(r"\s+(?:or|and)\s+|[\n,;]")
_RESULT: Final = re.compile(r"\s*=\s*(.*)$")
_MARKS: Final = re.compile(r"\\(?:left|right)(?![a-z])|\\[,;:! ()\[\]]|[$`]")
_BESIDE: Final = re.compile(r"\d\s+\d")


def math_match(prediction: str, references: Sequence[str], *, tolerance: float = 0.0) -> float:
    r"""Return 1 if the prediction is equivalent to a reference: as an expression, equation, tuple, interval, set or matrix.

    If the prediction has a `\boxed{…}`, only its content counts.

    :param tolerance: relative tolerance of a value; 0 accepts only equality.
    """
    answer = _unboxed(prediction)
    return float(any(same_answer(answer, _unboxed(each), tolerance=tolerance) for each in references))


def same_answer(one: str, other: str, *, tolerance: float = 0.0) -> bool:
    """Return whether two answers are equivalent.

    >>> same_answer("1/2", "0.5")
    True
    """
    if max(len(one), len(other)) > _LONGEST:
        return one.strip() == other.strip()
    left, right = _clean(one), _clean(other)
    if not left or not right:
        return False
    if _squeezed(left) == _squeezed(right):
        return True
    return _Comparing(tolerance).same(left, right)


def _unboxed(text: str) -> str:
    inner = boxed(text)
    return text if inner is None else inner


def _clean(text: str) -> str:
    """Remove typesetting: dollars, spaces, `\\left`; unwrap text; join groups of digits."""
    text = text.strip().rstrip(".").strip()
    text = _DOLLARS.sub("", _SPACES.sub(" ", text))
    text = _TEXT.sub(r" \1 ", text).replace("\\{", "⦃").replace("\\}", "⦄")
    text = text.replace("\\lbrace", "⦃").replace("\\rbrace", "⦄").strip()
    if not text.startswith(tuple(_OPENING)):
        text = _GROUPS.sub("", text)
    return _UNIT.sub("", text.strip()).strip()


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text).casefold()


class _Comparing:
    """Compare two cleaned answers."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance

    def same(self, one: str, other: str) -> bool:
        """Compare in the first applicable way."""
        one, other = _unnamed(one, other)
        for compare in (self._based, self._words, self._matrices, self._unions, self._lists, self._relations):
            verdict = compare(one, other)
            if verdict is not None:
                return verdict
        return self._percentages(one, other) or self._expressions(one, other)

    def _expressions(self, one: str, other: str) -> bool:
        left, right = _parsed(one), _parsed(other)
        if left is None or right is None:
            return _squeezed(one) == _squeezed(other)
        infinite = [_infinity(each) for each in (left, right)]
        if any(infinite):
            return infinite[0] == infinite[1]
        return same_expression(left, right, tolerance=self._tolerance)

    def _percentages(self, one: str, other: str) -> bool:
        """Compare percentages: 50 % equals 0.5, and 50 if a percentage was asked for."""
        bare = [re.sub(r"\s*\\?%$", "", each) for each in (one, other)]
        if bare == [one, other]:
            return False
        if self._expressions(*bare):
            return True
        shares = [
            f"({plain})/100" if plain != each else each
            for plain, each in zip(bare, (one, other), strict=True)
        ]
        return self._expressions(*shares)

    def _based(self, one: str, other: str) -> bool | None:
        """Compare digits with a base: the base may be missing, but not wrong."""
        left, right = (_BASED.fullmatch(_squeezed(each)) for each in (one, other))
        if left and right:
            return left.groups() == right.groups() if left[1][0].isdigit() and right[1][0].isdigit() else None
        based, plain = (left, other) if left else (right, one)
        return based[1] == _squeezed(plain) if based and based[1][0].isdigit() else None

    def _words(self, one: str, other: str) -> bool | None:
        """Compare words, which are not products of variables."""
        if any(map(_is_word, (one, other))):
            return _squeezed(one) == _squeezed(other)
        return None

    def _matrices(self, one: str, other: str) -> bool | None:
        found = [_MATRIX.fullmatch(each.strip()) for each in (one, other)]
        if not any(found):
            return None
        if found[0] is None or found[1] is None:
            return False
        left, right = (
            [row.split("&") for row in re.split(r"\\\\", each[2].strip().removesuffix("\\\\"))]
            for each in found
            if each
        )
        return [len(row) for row in left] == [len(row) for row in right] and all(
            self.same(mine.strip(), theirs.strip())
            for row, another in zip(left, right, strict=True)
            for mine, theirs in zip(row, another, strict=True)
        )

    def _unions(self, one: str, other: str) -> bool | None:
        parts = [re.split(r"\\cup\b|∪", each) for each in (one, other)]
        if max(map(len, parts)) == 1:
            return None
        return self._unordered([each.strip() for each in parts[0]], [each.strip() for each in parts[1]])

    def _lists(self, one: str, other: str) -> bool | None:
        """Compare tuples and intervals in order, with their brackets; sets and enumerations in any order."""
        left, right = _bracketed(one), _bracketed(other)
        mine, theirs = _elements(left[1]), _elements(right[1])
        if max(len(mine), len(theirs)) == 1 and "⦃⦄" not in {left[0], right[0]}:
            return None
        if {left[0], right[0]} <= _SET:
            return self._unordered(mine, theirs)
        return left[0] == right[0] and len(mine) == len(theirs) and all(map(self.same, mine, theirs))

    def _unordered(self, mine: list[str], theirs: list[str]) -> bool:
        if len(mine) != len(theirs) or len(mine) > _MOST:
            return sorted(mine) == sorted(theirs)
        left = list(theirs)
        for each in mine:
            match = next((place for place, other in enumerate(left) if self.same(each, other)), None)
            if match is None:
                return False
            del left[match]
        return not left

    def _relations(self, one: str, other: str) -> bool | None:
        """Compare equations and inequalities: the same sides, possibly swapped, or the same up to a factor."""
        left, right = _relation(one), _relation(other)
        if left is None and right is None:
            return None
        if left is None or right is None or len(left) != len(right):
            return False
        turned = [_TURNED.get(each, each) for each in reversed(right)]
        if any(self._chain(left, each) for each in (right, turned)):
            return True
        return left[1] == right[1] == "=" and len(left) == 3 and self._proportional(left, right)

    def _chain(self, left: list[str], right: list[str]) -> bool:
        return left[1::2] == right[1::2] and all(map(self._expressions, left[::2], right[::2]))

    def _proportional(self, left: list[str], right: list[str]) -> bool:
        """Return whether the differences of the sides are proportional."""
        sides = [_parsed(each) for each in (left[0], left[2], right[0], right[2])]
        if any(each is None for each in sides):
            return False
        one, two, three, four = (each for each in sides if each is not None)
        mine, theirs = Apply("-", (one, two)), Apply("-", (three, four))
        if any(same_expression(each, Number(Fraction(0))) for each in (mine, theirs)):
            return False
        # Two functions are proportional if f(x) g(y) = f(y) g(x) for all x and y.
        return same_expression(Apply("*", (mine, _elsewhere(theirs))), Apply("*", (_elsewhere(mine), theirs)))


@lru_cache(maxsize=256)
def _parsed(text: str) -> Expression | None:
    return parse(text)


def _elsewhere(expression: Expression) -> Expression:
    """Rename the variables of an expression."""
    match expression:
        case Symbol(name):
            return expression if name in {"pi", "e", "i"} else Symbol(f"{name}'")
        case Apply(function, arguments):
            return Apply(function, tuple(map(_elsewhere, arguments)))
        case Number():
            return expression


def _infinity(expression: Expression) -> int:
    match expression:
        case Symbol("oo"):
            return 1
        case Apply("neg", (Symbol("oo"),)):
            return -1
        case _:
            return 0


def _unnamed(one: str, other: str) -> tuple[str, str]:
    """Remove `x =`, if the other answer has the same or none."""
    found = [_NAMED.match(each) for each in (one, other)]
    names = {_squeezed(each[0]) for each in found if each}
    plain = any(
        each is None and not _RELATION.search(text) for each, text in zip(found, (one, other), strict=True)
    )
    if len(names) != 1 or not (all(found) or plain):
        return one, other
    left, right = (
        text[each.end() :] if each else text for each, text in zip(found, (one, other), strict=True)
    )
    return left, right


def _is_word(text: str) -> bool:
    """Return whether it consists of words, not of variables and functions."""
    words = re.findall(r"[A-Za-z]+", text)
    if not re.fullmatch(r"[A-Za-z][A-Za-z\s'-]+", text) or any(
        word in FUNCTIONS | {"pi", "oo"} for word in words
    ):
        return False
    return any(len(word) > 1 and re.search("[eiou]" if len(word) == 2 else "[aeiou]", word) for word in words)


def _bracketed(text: str) -> tuple[str, str]:
    """Return the enclosing brackets with their content; without brackets, the text."""
    text = text.strip()
    if len(text) < 2 or text[0] not in _OPENING or text[-1] not in _CLOSING:
        return "", text
    for place, depth in _depths(text):
        if depth == 0:
            whole = place == len(text) - 1
            return (text[0] + text[-1], text[1:-1]) if whole else ("", text)
    return "", text


def _elements(text: str) -> list[str]:
    """Split at commas outside brackets; a plus-minus gives two parts."""
    depths = {0: 0} | dict(_depths(text))
    cuts = [each for each in _SEPARATOR.finditer(text) if depths[each.start()] == 0]
    starts, ends = [0, *(each.end() for each in cuts)], [*(each.start() for each in cuts), len(text)]
    found = [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return [signed for each in found if each for signed in _signs(each)]


def _signs(text: str) -> Iterator[str]:
    if not _PLUS_MINUS.search(text):
        yield text
        return
    for sign in "+-":
        yield _PLUS_MINUS.sub(sign, text).strip().removeprefix("+")


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Return the bracket depth after each character."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        yield place, depth


def _relation(text: str) -> list[str] | None:
    """Return sides and relation signs alternately; `None` without a sign."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) == 1 or not all(parts):
        return None
    return [_SIGNS.get(part, part) for part in parts]


def game24(
    prediction: str, references: Sequence[str] = (), *, numbers: Sequence[int] = (), target: int = 24
) -> float:
    """Return 1 if each expression uses every number exactly once, with + - * / and brackets, and equals the target.

    :param references: the numbers, or a solution from which they are read, unless `numbers` is given.
    :param numbers: the numbers to use.
    :param target: the value to reach.
    """
    wanted = sorted(map(Fraction, numbers)) or _given(references)
    pieces = _pieces(extract_answer(prediction))
    return float(bool(wanted) and bool(pieces) and all(_solves(piece, wanted, target) for piece in pieces))


def _given(references: Sequence[str]) -> list[Fraction]:
    first = _RESULT.sub("", _pieces(references[0])[0]) if references and _pieces(references[0]) else ""
    solution = parse(first)
    if solution is not None and _numbers_of(solution) and not _BESIDE.search(first):
        return sorted(_numbers_of(solution))
    return sorted(Fraction(digits) for digits in re.findall(r"\d{1,9}", references[0] if references else ""))


def _pieces(text: str) -> list[str]:
    plain = _TIMES.sub("*", _MARKS.sub("", tidy(text)))
    pieces = [piece.strip().rstrip(".") for piece in _BREAK.split(plain)]
    return [piece for piece in pieces if piece]


def _solves(piece: str, wanted: list[Fraction], target: int) -> bool:
    result = _RESULT.search(piece)
    if result and result[1].strip() != str(target):
        return False
    written = _RESULT.sub("", piece)
    read = parse(written)
    # Two adjacent numbers are neither a sum nor a longer number.
    if read is None or _BESIDE.search(written) or sorted(_numbers_of(read)) != wanted:
        return False
    try:
        return _value(read) == target
    except ArithmeticError:
        return False


def _numbers_of(expression: Expression) -> list[Fraction]:
    match expression:
        case Number(value):
            return [value]
        case Apply(_, arguments):
            return [number for argument in arguments for number in _numbers_of(argument)]
        case Symbol():
            return []


def _value(expression: Expression) -> Fraction:
    """Return the exact value.

    :raises ArithmeticError: on division by zero or an operation that the game does not allow.
    """
    match expression:
        case Number(value):
            return value
        case Apply("neg", (one,)):
            return -_value(one)
        case Apply("+" | "-" | "*" | "/" as sign, (one, other)):
            left, right = _value(one), _value(other)
            return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[sign](
                right
            )
        case _:
            raise ArithmeticError("not of this game")
