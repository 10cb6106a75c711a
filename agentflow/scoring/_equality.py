"""Equality of expressions, decided numerically: equal ones agree to many digits at several points.

Nothing is expanded, factored or kept exactly, so no expression is too complex: every intermediate number has the same
number of digits and a bounded size.
"""

import importlib
import operator
import threading
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Final, Protocol, TypeAlias

from agentflow.scoring._expressions import Apply, Expression, Number, Symbol

_LOCK: Final = threading.Lock()
"""mpmath changes the precision of its context for a while, so threads take turns."""
_DIGITS: Final = 400
_MAX_VALUE: Final = 1e300
_NEAR: Final = 1e-25
_NOTHING: Final = 1e-60
_MAX_EXPONENT: Final = 1000
_MAX_FACTORIAL: Final = 170
_POINTS: Final = (
    (Fraction(37, 89), Fraction(97, 61)),
    (Fraction(131, 57), Fraction(-41, 73)),
    (Fraction(-53, 31), Fraction(29, 43)),
    (Fraction(19, 23), Fraction(67, 59)),
)
"""Points of comparison for expressions with variables: the first variable's value, and the step to each further one's."""
_CONSTANTS: Final = frozenset({"pi", "e", "i"})


class _Value(Protocol):
    """Number of mpmath, which has no type annotations."""

    @property
    def real(self) -> "_Value": ...
    @property
    def imag(self) -> "_Value": ...
    def __add__(self, other: "_Value") -> "_Value": ...
    def __sub__(self, other: "_Value") -> "_Value": ...
    def __mul__(self, other: "_Value | float") -> "_Value": ...
    def __rmul__(self, other: float) -> "_Value": ...
    def __truediv__(self, other: "_Value | int") -> "_Value": ...
    def __rtruediv__(self, other: int) -> "_Value": ...
    def __pow__(self, other: "_Value") -> "_Value": ...
    def __mod__(self, other: int) -> float: ...
    def __neg__(self) -> "_Value": ...
    def __pos__(self) -> "_Value": ...
    def __abs__(self) -> "_Value": ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __lt__(self, other: "_Value | float") -> bool: ...
    def __gt__(self, other: "_Value | float") -> bool: ...
    def __le__(self, other: "_Value | float") -> bool: ...


_Function: TypeAlias = Callable[..., _Value]


class _Numbers(Protocol):
    """Context of mpmath: numbers with a fixed precision, and functions of them."""

    dps: int
    pi: _Value
    e: _Value
    j: _Value
    ln: _Function
    exp: _Function
    factorial: _Function
    binomial: _Function

    def mpf(self, value: int) -> _Value: ...
    def mpc(self, value: _Value) -> _Value: ...


def same_expression(expression: Expression, other: Expression, *, tolerance: float = 0.0) -> bool:
    """Return whether two expressions have the same value wherever both are real.

    :param tolerance: relative tolerance.
    """
    if expression == other:
        return True
    with _LOCK:
        return _same_everywhere(expression, other, tolerance)


def _same_everywhere(expression: Expression, other: Expression, tolerance: float) -> bool:
    names = sorted({*_variables(expression), *_variables(other)})
    compared = False
    for start, step in _POINTS if names else _POINTS[:1]:
        point = {name: start + step * index for index, name in enumerate(names)}
        same = _same_at(expression, other, point, tolerance)
        if same is False:
            return False
        compared = compared or same is True
    return compared


def _variables(expression: Expression) -> Iterator[str]:
    match expression:
        case Symbol(name):
            if name not in _CONSTANTS:
                yield name
        case Apply(_, arguments):
            for argument in arguments:
                yield from _variables(argument)
        case Number():
            pass


def _same_at(
    expression: Expression, other: Expression, point: Mapping[str, Fraction], tolerance: float
) -> bool | None:
    """Compare the values at a point; `None` if one of them has no real value there."""
    try:
        left, right = _value(expression, point), _value(other, point)
    except (ArithmeticError, ValueError):
        return None
    real = [abs(value.imag) < _NOTHING for value in (left, right)]
    if point and real[0] != real[1]:
        return None
    size = max(abs(left), abs(right))
    return bool(size < _NOTHING or abs(left - right) <= max(_NEAR, tolerance) * size)


def _value(expression: Expression, point: Mapping[str, Fraction]) -> _Value:
    """Return the value at a point.

    :raises ArithmeticError: if it is undefined, or an intermediate value is too large.
    """
    numbers = _numbers()
    match expression:
        case Number(fraction):
            value = numbers.mpc(numbers.mpf(fraction.numerator) / fraction.denominator)
        case Symbol(name) if name in point:
            value = numbers.mpf(point[name].numerator) / point[name].denominator
        case Symbol(name):
            value = {"pi": +numbers.pi, "e": +numbers.e, "i": numbers.j}[name]
        case Apply(function, arguments):
            value = _functions()[function](*[_value(argument, point) for argument in arguments])
    if not abs(value) < _MAX_VALUE:
        raise OverflowError
    return numbers.mpc(value)


@cache
def _numbers() -> _Numbers:
    numbers: _Numbers = importlib.import_module("mpmath").mp.clone()
    numbers.dps = _DIGITS
    return numbers


@cache
def _functions() -> Mapping[str, _Function]:
    numbers = _numbers()
    names = "floor ceil sqrt ln sin cos tan cot sec csc asin acos atan sinh cosh tanh"
    plain: dict[str, _Function] = {name: getattr(numbers, name) for name in names.split()}
    arcs = {f"arc{name}": plain[f"a{name}"] for name in ("sin", "cos", "tan")}
    careful = {name: _small(plain[name]) for name in ("sinh", "cosh", "tanh")}
    signs = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "neg": "neg", "abs": "abs"}
    return {
        **{sign: getattr(operator, name) for sign, name in signs.items()},
        **plain,
        **arcs,
        **careful,
        "^": _power,
        "root": _root,
        "exp": _small(numbers.exp),
        "log": _log,
        "factorial": lambda *values: numbers.factorial(*map(_whole, values)),
        "binom": lambda *values: numbers.binomial(*map(_whole, values)),
    }


def _log(value: _Value, base: _Value | None = None) -> _Value:
    """Return the logarithm; natural without a base."""
    ln = _numbers().ln
    return ln(value) if base is None else ln(value) / ln(base)


def _small(function: _Function) -> _Function:
    """Restrict a function to arguments for which it stays small."""

    def checked(value: _Value) -> _Value:
        if abs(value) > _MAX_EXPONENT:
            raise OverflowError
        return function(value)

    return checked


def _power(base: _Value, exponent: _Value) -> _Value:
    if abs(exponent) > _MAX_EXPONENT or (not base and exponent.real < 0):
        raise OverflowError
    return base**exponent


def _root(value: _Value, degree: _Value) -> _Value:
    if not degree:
        raise ZeroDivisionError
    odd = not degree.imag and degree.real % 2 == 1
    # The real root, if there is one.
    if odd and not value.imag and value.real < 0:
        return -_power(-value, 1 / degree)
    return _power(value, 1 / degree)


def _whole(value: _Value) -> int:
    whole = value.real
    if value.imag or not -1 < whole <= _MAX_FACTORIAL or whole % 1:
        raise OverflowError
    return int(whole)
