"""Bounded validation of values against schemas from untrusted authors.

A schema can take forever to check: a regular expression that backtracks, references that multiply. Regular expressions
are left to the server that asked for them, and each check has a limited number of steps.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from agentflow._typeguards import is_mapping

MAX_STEPS = 50_000
"""Maximum number of keywords that one check evaluates."""

MAX_LENGTH = 300

Checker = Callable[[object], str | None]
"""Returns one line about what is wrong with a value, or `None` if no error was found."""

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


class _TooCostly(Exception):
    """The step limit is exhausted."""


class _Steps:
    """Counter of evaluated keywords."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def counted(self, keyword: Keyword) -> Keyword:
        """Wrap a keyword so that it is counted."""

        def check(validator: object, value: object, instance: object, schema: object) -> Iterable[object]:
            self.left -= 1
            if self.left < 0:
                raise _TooCostly
            return keyword(validator, value, instance, schema) or ()

        return check


_LEFT_TO_THE_SERVER = ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "format")


def checker_of(schema: Mapping[str, object]) -> Checker:
    """Return a checker for the schema; an invalid schema checks nothing, and the server validates the value itself."""
    import referencing  # loaded with jsonschema when something is mounted

    # Imported by name: the library's stubs leave `extend` untyped.
    validators = importlib.import_module("jsonschema.validators")
    kind: _ValidatorKind = validators.validator_for(schema, default=validators.Draft202012Validator)
    steps = _Steps()
    keywords: dict[str, Keyword | None] = {
        name: steps.counted(keyword) for name, keyword in kind.VALIDATORS.items()
    }
    additional = kind.VALIDATORS.get("additionalProperties")
    if additional is not None:
        keywords["additionalProperties"] = steps.counted(_unless_by_pattern(additional))
    keywords.update(dict.fromkeys(_LEFT_TO_THE_SERVER))
    # An empty registry: no references are fetched.
    extended: _ValidatorKind = validators.extend(kind, keywords)
    validator = extended(schema, registry=referencing.Registry[object]())

    def check(value: object) -> str | None:
        steps.left = MAX_STEPS
        try:
            error = next(iter(validator.iter_errors(value)), None)
        except Exception:  # boundary: any keyword of an invalid schema can fail in its own way
            return None
        if error is None:
            return None
        place = ".".join(str(step) for step in error.absolute_path)
        message = " ".join(error.message.split())
        message = message if len(message) <= MAX_LENGTH else f"{message[:MAX_LENGTH]} …"
        return f"{place}: {message}" if place else message

    return check


def _unless_by_pattern(keyword: Keyword) -> Keyword:
    """Skip the keyword if other properties are named by patterns, which are not checked."""

    def check(validator: object, value: object, instance: object, schema: object) -> Iterable[object]:
        if is_mapping(schema) and "patternProperties" in schema:
            return ()
        return keyword(validator, value, instance, schema) or ()

    return check
