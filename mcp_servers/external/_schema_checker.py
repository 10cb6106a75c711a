"""Bounded validation of values against schemas from untrusted authors.

A schema can take forever to check: a regular expression that backtracks, references that multiply. Regular expressions
are left to the server that asked for them, and each check has a limited cost.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from agentflow._typeguards import is_list, is_mapping, is_object

MAX_COST = 500_000
"""Maximum cost of one check. A keyword costs 20, and 1 for each member of its value and of the instance."""
KEYWORD_COST = 20
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
    """The cost limit is exceeded."""


class _Budget:
    """Remaining cost of one check."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        self.left = MAX_COST
        self._sizes: dict[int, int] = {}
        # The library searches the whole schema for each reference if any part of it has a name.
        self._reference = 5 * _size(schema) if _has_names(schema) else 0

    def charged(self, name: str, keyword: Keyword) -> Keyword:
        """Wrap a keyword so that its cost is charged before it is evaluated."""

        def check(validator: object, value: object, instance: object, schema: object) -> Iterable[object]:
            members = _members(instance)
            cost = KEYWORD_COST + members
            if name == "uniqueItems":
                # Each item is compared with each other as a whole.
                cost += members * _size(instance)
            elif name in ("const", "enum"):
                # They are compared as a whole. The schema lives as long as its checker.
                cost += self._sizes.get(id(value)) or self._sizes.setdefault(id(value), _size(value))
            elif name in _REFERENCES:
                cost += self._reference
            else:
                cost += _members(value)
            self.left -= cost
            if self.left < 0:
                raise _TooCostly
            return keyword(validator, value, instance, schema) or ()

        return check


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_NAMES = ("$id", "id", *_ANCHORS)


def _has_names(schema: Mapping[str, object]) -> bool:
    """Return whether a part of the schema, other than its root, can be referred to by a name."""
    parts = (part for part in _parts(schema) if is_object(part))
    return any(name in part for part in parts for name in (_ANCHORS if part is schema else _NAMES))


def _members(value: object) -> int:
    return len(value) if is_object(value) or is_list(value) else 0


def _size(value: object) -> int:
    """Count a value and all values inside."""
    return sum(1 for _ in _parts(value))


def _parts(value: object) -> Iterator[object]:
    pending = [value]
    while pending:
        yield (part := pending.pop())
        if is_object(part):
            pending.extend(part.values())
        elif is_list(part):
            pending.extend(part)


_LEFT_TO_THE_SERVER = ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "format")


def checker_of(schema: Mapping[str, object]) -> Checker:
    """Return a checker for the schema; an invalid schema checks nothing, and the server validates the value itself.

    The validator is made for the first value, because many tools are never called.
    """
    made: list[Checker] = []

    def check(value: object) -> str | None:
        if not made:
            made.append(_made(schema))
        return made[0](value)

    return check


def _made(schema: Mapping[str, object]) -> Checker:
    import referencing  # loaded with jsonschema when something is mounted

    # Imported by name: the library's stubs leave `extend` untyped.
    validators = importlib.import_module("jsonschema.validators")
    kind: _ValidatorKind = validators.validator_for(schema, default=validators.Draft202012Validator)
    budget = _Budget(schema)
    keywords: dict[str, Keyword | None] = {
        name: budget.charged(name, keyword) for name, keyword in kind.VALIDATORS.items()
    }
    additional = kind.VALIDATORS.get("additionalProperties")
    if additional is not None:
        keywords["additionalProperties"] = budget.charged(
            "additionalProperties", _unless_by_pattern(additional)
        )
    keywords.update(dict.fromkeys(_LEFT_TO_THE_SERVER))
    # An empty registry: no references are fetched.
    extended: _ValidatorKind = validators.extend(kind, keywords)
    validator = extended(schema, registry=referencing.Registry[object]())

    def check(value: object) -> str | None:
        budget.left = MAX_COST
        try:
            error = next(iter(validator.iter_errors(value)), None)
        except Exception:  # boundary: any keyword of an invalid schema can fail in its own way
            return None
        if error is None:
            return None
        path = ".".join(str(step) for step in error.absolute_path)
        message = " ".join(error.message.split())
        message = message if len(message) <= MAX_LENGTH else f"{message[:MAX_LENGTH]} …"
        return f"{path}: {message}" if path else message

    return check


def _unless_by_pattern(keyword: Keyword) -> Keyword:
    """Skip the keyword if other properties are named by patterns, which are not checked."""

    def check(validator: object, value: object, instance: object, schema: object) -> Iterable[object]:
        if is_mapping(schema) and "patternProperties" in schema:
            return ()
        return keyword(validator, value, instance, schema) or ()

    return check
