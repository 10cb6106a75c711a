"""Secrets of settings that a run wrote with `***`, taken from the environment again."""

import re
from collections.abc import Mapping
from typing import Final

from agentflow._secrets import MASK, VARIABLES
from agentflow._typeguards import is_list, is_mapping
from agentflow.errors import ConfigurationError

_URL: Final = re.compile(rf"[a-z][a-z0-9+.-]*://\S*{re.escape(MASK)}\S*")
_OWN_VARIABLE: Final = re.compile(r"(?:.+_)?api_key")
"""Keys whose variable their provider names: they are left out."""


def unmask(
    values: Mapping[str, object], environment: Mapping[str, str], prefix: str, file: str
) -> dict[str, object]:
    """Return settings with each `***` replaced by its variable.

    The variable of an entry of `env` has its own name; that of another setting is the prefix and its path, such as
    `AGENTFLOW_RESOURCE_INIT_CONFIGS__SQL__DATABASES__SHOP`. A masked `api_key` is left out, so that the variable of its
    provider counts.

    :raises ConfigurationError: if a variable is not set; one line that names it.
    """
    source = _Environment(environment, prefix, file)
    return {
        name: source.fill(value, (name,)) for name, value in values.items() if not _is_left_out(name, value)
    }


class _Environment:
    """Variables of masked settings."""

    def __init__(self, variables: Mapping[str, str], prefix: str, file: str) -> None:
        self._variables = variables
        self._prefix = prefix
        self._file = file

    def fill(self, value: object, path: tuple[str, ...]) -> object:
        """Return a value with the masked texts in it replaced."""
        if is_mapping(value):
            return {
                key: self.fill(entry, (*path, str(key)))
                for key, entry in value.items()
                if not _is_left_out(str(key), entry)
            }
        if is_list(value):
            return [self.fill(entry, (*path, str(place))) for place, entry in enumerate(value)]
        if isinstance(value, str) and (value == MASK or _URL.fullmatch(value)):
            return self._find(path)
        return value

    def _find(self, path: tuple[str, ...]) -> str:
        *_, section, last = ("", *path)
        own = section in VARIABLES and re.fullmatch(r"[A-Za-z_]\w*", last)
        name = last if own else re.sub(r"\W", "_", f"{self._prefix}{'__'.join(path)}").upper()
        if not (value := self._variables.get(name)):
            raise ConfigurationError(
                f"{self._file or 'settings'}: {'.'.join(path)} is masked ({MASK}); set the variable {name}, or write the value"
            )
        return value


def _is_left_out(name: str, value: object) -> bool:
    return value == MASK and _OWN_VARIABLE.fullmatch(name) is not None
