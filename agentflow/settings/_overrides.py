from collections.abc import Iterable, Mapping

import yaml

from agentflow._typeguards import is_mapping
from agentflow.errors import ConfigurationError


def parse_overrides(words: Iterable[str]) -> dict[str, object]:
    """Parse `key=value` overrides into nested values; dots separate nested keys, and the last override wins.

    A value in brackets or braces is YAML, `null` is `None`, and any other value is plain text.
    """
    values: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        steps = key.strip().split(".")
        if not equals or not all(steps):
            raise ConfigurationError(f"{word}: not an override; write key=value or section.key=value")
        *sections, last = steps
        nested: dict[str, object] = {last: _value(word, text)}
        for step in reversed(sections):
            nested = {step: nested}
        values = merge(values, nested)
    return values


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Merge two nested mappings; values of `above` win."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if is_mapping(under) and is_mapping(value):
            value = merge(under, value)
        merged[key] = value
    return merged


def _value(word: str, text: str) -> object:
    if text == "null":
        return None
    if not text.startswith(("[", "{")):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigurationError(f"{word}: {text} is neither a list [a, b] nor a mapping {{a: 1}}") from None
