"""Mathematical answers: equivalence in any notation."""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from agentflow.scoring._answers import extract_answer, marked_answer, named_answer
from agentflow.scoring._equality import same_expression
from agentflow.scoring._expressions import FUNCTIONS, Apply, Expression, Number, Symbol, parse
from agentflow.scoring._math_verify import equal_by_math_verify, has_math_verify
from agentflow.text import without_reasoning

_MAX_ANSWER: Final = 1000
_MAX_PROSE: Final = 4000
"""Number of characters of a prediction that math-verify reads, from its end."""
_SPACES: Final = re.compile(
    r"(?<!\\)\\[,;:!> ]|\\q?quad\b|~|\\displaystyle\b|\\left(?![a-z])|\\right(?![a-z])|\\big[lr]?\b"
)
_DOLLARS: Final = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]")
_TEXT: Final = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_GROUPS: Final = re.compile(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))")
_TYPESET_GROUPS: Final = re.compile(r"(?<=\d),\\!\s*(?=\d{3}(?!\d))")
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
_RELATION: Final = re.compile(
    r"(<=|>=|\\leq?(?:slant)?(?![a-z])|\\geq?(?:slant)?(?![a-z])|\\lt(?![a-z])|\\gt(?![a-z])|≤|≥|⩽|⩾|<|>|=)"
)
_SIGNS: Final = {
    "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "≤": "<=", "⩽": "<=", "\\lt": "<",
    "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=", "≥": ">=", "⩾": ">=", "\\gt": ">",
}  # fmt: skip
_TURNED: Final = {"<=": ">=", ">=": "<=", "<": ">", ">": "<", "=": "="}
_PLUS_MINUS: Final = re.compile(r"\\pm(?![a-z])|±")
_OPENING: Final = "([{⦃"
_CLOSING: Final = ")]}⦄"
_SEPARATOR: Final = re.compile(r"\s+(?:and|or)\s+|[,;]")
_SET: Final = frozenset({"", "{}", "⦃⦄"})
_INTERVALS: Final = frozenset({"()", "[]", "(]", "[)"})
_VARIABLE: Final = re.compile(r"[A-Za-z]|\\[a-z]+")
_APART: Final = re.compile(r"\d\s+\d")
_DIGITS_APART: Final = re.compile(r"\d+(?:\s+\d+)+")
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:\s\d{3})+")
_MEMBER: Final = re.compile(r"^\s*[A-Za-z]\s*(?:\\in\b|∈)\s*")
_ENUMERATION: Final = re.compile(r"\s(?:or|and)\s|[,;]\s")
_MAX_ELEMENTS: Final = 40
_ROUNDING: Final = 1e-5
_SCIENTIFIC: Final = re.compile(r"(-?)(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,3})")
_VERB: Final = re.compile(r"\b(?:is|are|equals)\b:? +(?=\S)")
_HUGE: Final = re.compile(
    r"(?<!10)\^[\s{(]*\d{3}|\^[\s{(]*\d{4}|(?:\^[^^\n]{0,20}){3}|\d{3}[\s)}]*!|!\s*!|\d\s*\^[^!\s]{1,12}!|binom\S{0,20}\^"
    r"|\d{100}|(?:[({\[|][^({\[|\n)}\]]{0,12}){12}|(?:sqrt|frac|-){12}|[^\s$\\]{300}"
)
"""Mathematics that SymPy may compute without end."""


class MathVerdict(NamedTuple):
    """Verdict on a mathematical answer."""

    equal: bool
    """The answer is equivalent to a reference."""
    by: str
    """`built-in comparison` or `math-verify`."""


_BUILT_IN: Final = "built-in comparison"
_MATH_VERIFY: Final = "math-verify"


def math_match(
    prediction: str, references: Sequence[str], *, tolerance: float = 0.0, math_verify: bool = True
) -> float:
    """Return 1 if the prediction is equivalent to a reference: as an expression, equation, tuple, interval, set or matrix.

    :param tolerance: relative tolerance of a value; 0 accepts only equality.
    :param math_verify: let math-verify decide about answers that the built-in comparison rejects, if it is installed.
    """
    return float(judge_math(prediction, references, tolerance=tolerance, math_verify=math_verify).equal)


def judge_math(
    prediction: str, references: Sequence[str], *, tolerance: float = 0.0, math_verify: bool = True
) -> MathVerdict:
    """Compare a prediction with references. If it marks its answer, only that counts. See `math_match`."""
    prediction = without_reasoning(prediction)
    answers = _answers(prediction)
    right = [_answers(reference)[0] for reference in references]
    if any(same_answer(answer, other, tolerance=tolerance) for answer in answers for other in right):
        return MathVerdict(equal=True, by=_BUILT_IN)
    if math_verify and has_math_verify():
        named = named_answer(prediction)
        whole = prediction[-_MAX_PROSE:] if named is None else named
        left = [reference for reference in references if not _excluded(answers, reference)]
        verdict = equal_by_math_verify(whole, left) if left else None
        if verdict is not None:
            return MathVerdict(verdict, _MATH_VERIFY)
    return MathVerdict(equal=False, by=_BUILT_IN)


def _answers(text: str) -> list[str]:
    """Return the marked answer; without one, the readings of the text."""
    if (marked := marked_answer(text)) is not None:
        return [marked]
    extracted = extract_answer(text)
    verbs = [match.end() for match in _VERB.finditer(extracted)]
    return list(dict.fromkeys([text, extracted, extracted[verbs[-1] if verbs else 0 :]]))


def _excluded(answers: Sequence[str], reference: str) -> bool:
    """Return whether math-verify must not decide: the answers certainly differ, or computing may not end."""
    right = _answers(reference)[0]
    if not answers[0].strip() or not right.strip() or any(map(_HUGE.search, (answers[-1], right))):
        return True
    comparing = _Comparing(_ROUNDING)
    return any(
        comparing.refutes(_clean(answer), _clean(right))
        for answer in answers[:2]
        if len(answer) <= _MAX_ANSWER
    )


def same_answer(answer: str, other: str, *, tolerance: float = 0.0) -> bool:
    """Return whether two answers are equivalent.

    >>> same_answer("1/2", "0.5")
    True
    """
    if max(len(answer), len(other)) > _MAX_ANSWER:
        return answer.strip() == other.strip()
    left, right = _clean(answer), _clean(other)
    if not left or not right:
        return False
    if _same_text(left, right):
        return True
    return _Comparing(tolerance).same(left, right)


def _clean(text: str) -> str:
    """Remove typesetting: dollars, spaces, `\\left`; unwrap text; join groups of digits."""
    text = _TYPESET_GROUPS.sub("", text.strip().rstrip(".").strip())
    text = _DOLLARS.sub("", _SPACES.sub(" ", text))
    text = _TEXT.sub(r" \1 ", text).replace("\\{", "⦃").replace("\\}", "⦄")
    text = text.replace("\\lbrace", "⦃").replace("\\rbrace", "⦄").strip()
    if not text.startswith(tuple(_OPENING)):
        text = _GROUPS.sub("", text)
    return _UNIT.sub("", text.strip()).strip()


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text).casefold()


def _same_text(text: str, other: str) -> bool:
    """Return whether they differ only in case and spaces, but not in spaces between digits."""
    if _squeezed(text) != _squeezed(other):
        return False
    return bool(_APART.search(text)) == bool(_APART.search(other))


class _Comparing:
    """Compare two cleaned answers."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance

    def same(self, answer: str, other: str) -> bool:
        """Compare in the first applicable way."""
        answer, other = _unnamed(answer, other)
        answer, other = _as_intervals(answer, other)
        for compare in (self._based, self._words, self._matrices, self._unions, self._lists, self._relations):
            verdict = compare(answer, other)
            if verdict is not None:
                return verdict
        return self._percentages(answer, other) or self._expressions(answer, other)

    def refutes(self, answer: str, other: str) -> bool:
        """Return whether they certainly differ: words, digits with a base, tuples and enumerations of numbers.

        Several numbers are not one of them: otherwise `4 or 5` would be right for both.
        """
        answer, other = _unnamed(answer, other)
        for compare in (self._based, self._words):
            verdict = compare(answer, other)
            if verdict is not None:
                return not verdict
        if any(_DIGITS_APART.fullmatch(text) and not _THOUSANDS.fullmatch(text) for text in (answer, other)):
            return True
        both = [_bracketed(brackets) for brackets in (answer, other)]
        mine, theirs = (_elements(inner) for _, inner in both)
        if max(len(mine), len(theirs)) == 1 or not {brackets for brackets, _ in both} <= {"", "()"}:
            return False
        if len(mine) != len(theirs) and not any(map(_ENUMERATION.search, (answer, other))):
            return False
        return all(map(_is_number, (*mine, *theirs))) and self._lists(answer, other) is False

    def _expressions(self, answer: str, other: str) -> bool:
        """Compare values; `2e3` is read as `2·10³`, too."""
        readings = [[text, *_scientific(text)] for text in (answer, other)]
        return any(self._values(mine, theirs) for mine in readings[0] for theirs in readings[1])

    def _values(self, answer: str, other: str) -> bool:
        left, right = _parsed(answer), _parsed(other)
        if left is None or right is None:
            return _same_text(answer, other)
        infinite = [_infinity(value) for value in (left, right)]
        if any(infinite):
            return infinite[0] == infinite[1]
        return same_expression(left, right, tolerance=self._tolerance)

    def _percentages(self, answer: str, other: str) -> bool:
        """Compare percentages: 50 % equals 0.5, and 50 if a percentage was asked for."""
        bare = [re.sub(r"\s*\\?%$", "", text) for text in (answer, other)]
        if bare == [answer, other]:
            return False
        if self._expressions(*bare):
            return True
        shares = [
            f"({plain})/100" if plain != text else text
            for plain, text in zip(bare, (answer, other), strict=True)
        ]
        return self._expressions(*shares)

    def _based(self, answer: str, other: str) -> bool | None:
        """Compare digits with a base: the base may be missing, but not wrong."""
        left, right = (_BASED.fullmatch(_squeezed(text)) for text in (answer, other))
        if left and right:
            return left.groups() == right.groups() if left[1][0].isdigit() and right[1][0].isdigit() else None
        based, plain = (left, other) if left else (right, answer)
        return based[1] == _squeezed(plain) if based and based[1][0].isdigit() else None

    def _words(self, answer: str, other: str) -> bool | None:
        """Compare words, which are not products of variables."""
        if any(map(_is_word, (answer, other))):
            return _squeezed(answer) == _squeezed(other)
        return None

    def _matrices(self, answer: str, other: str) -> bool | None:
        matches = [_MATRIX.fullmatch(text.strip()) for text in (answer, other)]
        if not any(matches):
            return None
        if matches[0] is None or matches[1] is None:
            return False
        left, right = (
            [row.split("&") for row in re.split(r"\\\\", match[2].strip().removesuffix("\\\\"))]
            for match in matches
            if match
        )
        return [len(row) for row in left] == [len(row) for row in right] and all(
            self.same(mine.strip(), theirs.strip())
            for row, another in zip(left, right, strict=True)
            for mine, theirs in zip(row, another, strict=True)
        )

    def _unions(self, answer: str, other: str) -> bool | None:
        parts = [re.split(r"\\cup\b|∪", text) for text in (answer, other)]
        if max(map(len, parts)) == 1:
            return None
        return self._unordered([part.strip() for part in parts[0]], [part.strip() for part in parts[1]])

    def _lists(self, answer: str, other: str) -> bool | None:
        """Compare tuples and intervals in order, with their brackets; sets and enumerations in any order."""
        left, right = _bracketed(answer), _bracketed(other)
        mine, theirs = _elements(left[1]), _elements(right[1])
        if max(len(mine), len(theirs)) == 1 and "⦃⦄" not in {left[0], right[0]}:
            return None
        if {left[0], right[0]} <= _SET:
            return self._unordered(mine, theirs)
        return left[0] == right[0] and len(mine) == len(theirs) and all(map(self.same, mine, theirs))

    def _unordered(self, mine: list[str], theirs: list[str]) -> bool:
        if len(mine) != len(theirs) or len(mine) > _MAX_ELEMENTS:
            return sorted(mine) == sorted(theirs)
        left = list(theirs)
        for element in mine:
            match = next((index for index, other in enumerate(left) if self.same(element, other)), None)
            if match is None:
                return False
            del left[match]
        return not left

    def _relations(self, answer: str, other: str) -> bool | None:
        """Compare equations and inequalities: the same sides, possibly swapped, or the same up to a factor."""
        left, right = _relation(answer), _relation(other)
        if left is None and right is None:
            return None
        if left is None or right is None or len(left) != len(right):
            return False
        turned = [_TURNED.get(chain, chain) for chain in reversed(right)]
        if any(self._chain(left, sign) for sign in (right, turned)):
            return True
        return left[1] == right[1] == "=" and len(left) == 3 and self._proportional(left, right)

    def _chain(self, left: list[str], right: list[str]) -> bool:
        return left[1::2] == right[1::2] and all(map(self._expressions, left[::2], right[::2]))

    def _proportional(self, left: list[str], right: list[str]) -> bool:
        """Return whether the differences of the sides are proportional."""
        sides = [_parsed(side) for side in (left[0], left[2], right[0], right[2])]
        if any(side is None for side in sides):
            return False
        a, b, c, d = (side for side in sides if side is not None)
        mine, theirs = Apply("-", (a, b)), Apply("-", (c, d))
        if any(same_expression(difference, Number(Fraction(0))) for difference in (mine, theirs)):
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


def _unnamed(answer: str, other: str) -> tuple[str, str]:
    """Remove `x =`, if the other answer has the same or none."""
    matches = [_NAMED.match(match) for match in (answer, other)]
    names = {_squeezed(match[0]) for match in matches if match}
    plain = any(
        match is None and not _RELATION.search(text)
        for match, text in zip(matches, (answer, other), strict=True)
    )
    if len(names) != 1 or not (all(matches) or plain):
        return answer, other
    left, right = (
        text[match.end() :] if match else text for match, text in zip(matches, (answer, other), strict=True)
    )
    return left, right


def _scientific(text: str) -> list[str]:
    """Return the reading of `2e3` as a power of ten."""
    match = _SCIENTIFIC.fullmatch(_squeezed(text))
    return [f"{match[1]}{match[2]}*10^{{{int(match[3])}}}"] if match else []


def _is_number(text: str) -> bool:
    return parse(text) is not None and not re.search(r"[A-Za-z]", text)


def _as_intervals(answer: str, other: str) -> tuple[str, str]:
    """Write an inequality of one variable as an interval, if the other answer is one."""
    plain = [_MEMBER.sub("", text) for text in (answer, other)]
    kinds = [_bracketed(text)[0] for text in plain]
    if kinds[0] in _INTERVALS and not kinds[1]:
        return plain[0], _interval(other)
    if kinds[1] in _INTERVALS and not kinds[0]:
        return _interval(answer), plain[1]
    return answer, other


def _interval(text: str) -> str:
    sides = _relation(text) or []
    if len(sides) == 3 and _VARIABLE.fullmatch(sides[2]):
        sides = [sides[2], _TURNED.get(sides[1], ""), sides[0]]
    match sides:
        case [low, "<" | "<=" as first, middle, "<" | "<=" as second, high] if _VARIABLE.fullmatch(middle):
            return f"{'[' if first == '<=' else '('}{low},{high}{']' if second == '<=' else ')'}"
        case [variable, "<" | "<=" as sign, high] if _VARIABLE.fullmatch(variable):
            return f"(-oo,{high}{']' if sign == '<=' else ')'}"
        case [variable, ">" | ">=" as sign, low] if _VARIABLE.fullmatch(variable):
            return f"{'[' if sign == '>=' else '('}{low},oo)"
        case _:
            return text


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
    for index, depth in _depths(text):
        if depth == 0:
            whole = index == len(text) - 1
            return (text[0] + text[-1], text[1:-1]) if whole else ("", text)
    return "", text


def _elements(text: str) -> list[str]:
    """Split at commas outside brackets; a plus-minus gives two parts."""
    depths = {0: 0} | dict(_depths(text))
    cuts = [match for match in _SEPARATOR.finditer(text) if depths[match.start()] == 0]
    starts, ends = [0, *(cut.end() for cut in cuts)], [*(cut.start() for cut in cuts), len(text)]
    elements = [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return [signed for element in elements if element for signed in _signs(element)]


def _signs(text: str) -> Iterator[str]:
    if not _PLUS_MINUS.search(text):
        yield text
        return
    for sign in "+-":
        yield _PLUS_MINUS.sub(sign, text).strip().removeprefix("+")


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Return the bracket depth after each character."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        yield index, depth


def _relation(text: str) -> list[str] | None:
    """Return sides and relation signs alternately; `None` without a sign."""
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) == 1 or not all(parts):
        return None
    return [_SIGNS.get(part, part) for part in parts]
