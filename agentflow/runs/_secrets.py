"""Masking of secrets in output."""

import re
from pathlib import PurePath
from typing import Final, cast

from pydantic import SecretStr

_SECRET_NAMES: Final = re.compile(
    r"(?:(?:api_?key|secret|password|passwd|credential|authorization)s?|token|.+tokens)$", re.IGNORECASE
)
"""A key named `tokens` is a setting, not a secret."""
_PASSWORD: Final = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]+@")
_MASK: Final = "***"


def masked(value: object) -> object:
    """Return the value with every secret in it as `***`: secret strings, entries with names of secrets, passwords in URLs.

    Paths become texts.
    """
    match value:
        case SecretStr():
            return _MASK if value.get_secret_value() else ""
        case dict():
            entries = cast("dict[str, object]", value)
            return {name: _entry(name, entry) for name, entry in entries.items()}
        case list() | tuple():
            return [masked(entry) for entry in cast("list[object]", value)]
        case str():
            return _PASSWORD.sub(rf"\1:{_MASK}@", value)
        case PurePath():
            return str(value)
        case _:
            return value


def _entry(name: str, value: object) -> object:
    if isinstance(value, str) and value and _SECRET_NAMES.search(name):
        return _MASK
    return masked(value)
