"""Sanitizing of texts from external servers: they are data, shortened and stripped of invisible characters, never obeyed."""

import unicodedata
from collections.abc import Mapping
from typing import TypeGuard, cast

MAX_DESCRIPTION = 4_000
MAX_TITLE = 100

_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keywords whose members are named by the schema's author, so that `description` among them is a name."""

_VERBATIM = ("const", "enum", "default", "examples", "required")
"""Keywords that hold values, which must not change."""

_INVISIBLE = frozenset(
    chr(code)
    for start, end in (
        (0x034F, 0x034F),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x2800, 0x2800),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFFA0, 0xFFA0),
        (0xE0000, 0xE0FFF),
    )
    for code in range(start, end + 1)
)
"""Characters that a person cannot see but a model reads, besides those with such a Unicode category."""


def clean(text: str, longest: int = MAX_DESCRIPTION) -> str:
    """Return the text without control and invisible characters, truncated to `longest`."""
    # Truncated first, so that megabytes are not scanned character by character.
    shown = "".join(character for character in text[: 4 * longest] if _is_visible(character)).strip()
    return shown if len(shown) <= longest else f"{shown[: longest - 2]} …"


def one_line(text: str, longest: int = 500) -> str:
    """Return the sanitized text on one line."""
    return " ".join(clean(text, longest).split())


def clean_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the schema with sanitized descriptions and titles, otherwise unchanged."""
    cleaned: dict[str, object] = {}
    for key, value in schema.items():
        if key in ("description", "$comment") and isinstance(value, str):
            cleaned[key] = clean(value)
        elif key == "title" and isinstance(value, str):
            cleaned[key] = one_line(value, MAX_TITLE)
        elif key in _VERBATIM:
            cleaned[key] = value
        elif key in _NAMED and _is_mapping(value):
            cleaned[key] = {name: _clean_value(member) for name, member in value.items()}
        else:
            cleaned[key] = _clean_value(value)
    return cleaned


def _clean_value(value: object) -> object:
    if _is_mapping(value):
        return clean_schema(value)
    if isinstance(value, list):
        return [_clean_value(member) for member in cast("list[object]", value)]
    return value


def _is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)


def _is_visible(character: str) -> bool:
    if character in "\n\t":
        return True
    return unicodedata.category(character) not in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp") and (
        character not in _INVISIBLE
    )
