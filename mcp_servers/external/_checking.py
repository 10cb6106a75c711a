"""Checks values against a schema that somebody else wrote, without trusting it.

A schema may be made to cost for ever: an expression that backtracks, references that multiply. Expressions are left to the
server that asked for them, and each check has a bounded number of steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, cast

__all__ = ["Checker", "checker_of"]

STEPS = 50_000
"""Keywords that one check may look at."""

LONGEST = 300

Checker = Callable[[object], str | None]
"""Says in one line what is wrong with a value; `None`: nothing, as far as it could be checked."""

Keyword = Callable[[object, object, object, object], Iterable[object] | None]


class _Wrong(Protocol):
    @property
    def message(self) -> str: ...
    @property
    def absolute_path(self) -> Iterable[object]: ...


class _Validator(Protocol):
    def iter_errors(self, instance: object) -> Iterator[_Wrong]: ...


class _ValidatorKind(Protocol):
    VALIDATORS: Mapping[str, Keyword]

    def __call__(self, schema: object, *, registry: object) -> _Validator: ...
    def check_schema(self, schema: object) -> None: ...


class _Library(Protocol):
    Draft202012Validator: _ValidatorKind

    def validator_for(self, schema: object, *, default: _ValidatorKind) -> _ValidatorKind: ...
    def extend(self, kind: _ValidatorKind, keywords: Mapping[str, Keyword | None]) -> _ValidatorKind: ...


class _TooCostly(Exception):
    """The steps are used up."""


class _Steps:
    """Counts the keywords that a check looks at."""

    def __init__(self) -> None:
        self.left = STEPS

    def counted(self, keyword: Keyword) -> Keyword:
        """The keyword, counted."""

        def check(validator: object, value: object, instance: object, schema: object) -> Iterable[object]:
            self.left -= 1
            if self.left < 0:
                raise _TooCostly
            return keyword(validator, value, instance, schema) or ()

        return check


_LEFT_TO_THE_SERVER = ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "format")


def checker_of(schema: Mapping[str, object]) -> Checker:
    """A check against the schema; one that can't be used checks nothing, and the server sees for itself."""
    import referencing  # loaded with jsonschema, by whoever mounts something
    from jsonschema import validators

    library = cast("_Library", validators)
    kind = library.validator_for(schema, default=library.Draft202012Validator)
    steps = _Steps()
    keywords: dict[str, Keyword | None] = {
        name: steps.counted(keyword) for name, keyword in kind.VALIDATORS.items()
    }
    additional = kind.VALIDATORS.get("additionalProperties")
    if additional is not None:
        keywords["additionalProperties"] = steps.counted(_unless_by_pattern(additional))
    keywords.update(dict.fromkeys(_LEFT_TO_THE_SERVER))
    # An empty registry: nothing is fetched from anywhere.
    validator = library.extend(kind, keywords)(schema, registry=referencing.Registry[object]())

    def check(value: object) -> str | None:
        steps.left = STEPS
        try:
            wrong = next(iter(validator.iter_errors(value)), None)
        except Exception:  # boundary: there are as many ways to get a schema wrong as there are keywords
            return None
        if wrong is None:
            return None
        place = ".".join(str(step) for step in wrong.absolute_path)
        message = " ".join(wrong.message.split())
        message = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
        return f"{place}: {message}" if place else message

    return check


def _unless_by_pattern(keyword: Keyword) -> Keyword:
    """Which properties are additional can't be said where others are named by expressions."""

    def check(validator: object, value: object, instance: object, schema: object) -> Iterable[object]:
        if "patternProperties" in cast("Mapping[str, object]", schema):
            return ()
        return keyword(validator, value, instance, schema) or ()

    return check
