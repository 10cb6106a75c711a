from collections.abc import Iterable, Mapping
from typing import cast

import yaml

from agentflow.errors import ConfigurationError


def parse_overrides(words: Iterable[str]) -> dict[str, object]:
    """The mapping that `key=value` words spell; dots in a key lead into sections, a later word wins.

    A value in brackets or braces is YAML, `null` is none, and every other is taken as it stands.
    """
    values: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        steps = key.strip().split(".")
        if not equals or not all(steps):
            raise ConfigurationError(f"{word}: not an override; write key=value or section.key=value")
        nested: object = _value(word, text)
        for step in reversed(steps):
            nested = {step: nested}
        values = merge(values, cast("dict[str, object]", nested))
    return values


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Both mappings, key by key through all sections; where both have a value, that of `above`."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            value = merge(cast("Mapping[str, object]", under), cast("Mapping[str, object]", value))
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
