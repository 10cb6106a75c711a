"""Old keys of settings: they load as the new keys and give one warning each."""

import warnings
from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import BaseModel, model_validator

from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.errors import ConfigurationError
from agentflow.settings._schema import fields, members


class RenamedSettingWarning(FutureWarning):
    """A settings key was given under its old name. See docs/settings.md."""


class RenamedKeys(BaseModel):
    """Base of all settings: accepts the old names that a class declares in `renamed`."""

    renamed: ClassVar[dict[str, str]] = {}
    """New names of renamed keys, by their old names. A subclass adds to those of its bases."""

    @model_validator(mode="before")
    @classmethod
    def _rename_keys(cls, values: object) -> object:
        """Rename the keys of a section that is made directly: the loader has already renamed those it reads."""
        if not is_mapping(values) or not (old := renames(cls).keys() & values.keys()):
            return values
        for key in sorted(old):
            if renames(cls)[key] in values:
                raise ValueError(_both(key, renames(cls)[key]))
            hint = _hint(cls.__name__, key, renames(cls)[key])
            warnings.warn(hint, RenamedSettingWarning, stacklevel=3)
        return {renames(cls).get(key, key): value for key, value in values.items()}


def renames(section: type[object]) -> dict[str, str]:
    """Return the new names of a section's renamed keys, by their old names."""
    merged: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, RenamedKeys):
            merged |= base.renamed
    return merged


class KeyRenamer:
    """Rename the old keys in the sources of one load, and keep one warning for each."""

    def __init__(self, model: type[object]) -> None:
        self._model = model
        self._hints: dict[str, str] = {}

    def warn(self, stacklevel: int) -> None:
        """Give the warnings of this load."""
        for hint in self._hints.values():
            warnings.warn(hint, RenamedSettingWarning, stacklevel=stacklevel + 1)

    def values(self, values: Mapping[str, object], origin: str) -> dict[str, object]:
        """Return nested values with every old key renamed.

        :raises ConfigurationError: if a source gives both names of a key.
        """
        renamed = self._rename(values, [self._model], (), origin)
        return dict(renamed) if is_mapping(renamed) else {}

    def variables(
        self, variables: Mapping[str, str | None], prefix: str, delimiter: str, origin: str
    ) -> dict[str, str | None]:
        """Return environment variables with every old key in their names renamed."""
        renamed: dict[str, str | None] = {}
        old: dict[str, str] = {}
        for name, value in variables.items():
            steps = name.removeprefix(prefix).split(delimiter) if name.startswith(prefix) else []
            new = prefix + delimiter.join(self._path(steps)) if steps else name
            if new == name:
                renamed[name] = value
            elif new in variables:
                raise ConfigurationError(f"{origin}: {_both(name.upper(), new.upper())}")
            else:
                old[name] = new
        for name, new in old.items():
            self._report(origin, name.upper(), new.upper())
            renamed[new] = variables[name]
        return renamed

    def _rename(
        self, value: object, annotations: Iterable[object], path: tuple[str, ...], origin: str
    ) -> object:
        if is_list_or_tuple(value):
            kinds = tuple(annotations)
            return [
                self._rename(item, kinds, (*path, str(index)), origin) for index, item in enumerate(value)
            ]
        if not is_mapping(value):
            return value
        renamed: dict[str, object] = {}
        for key, item in value.items():
            new, below = _step(key, annotations)
            if new != key:
                names = ".".join((*path, key)), ".".join((*path, new))
                if new in value:
                    raise ConfigurationError(f"{origin}: {_both(*names)}")
                self._report(origin, *names)
            renamed[new] = self._rename(item, below, (*path, new), origin)
        return renamed

    def _path(self, steps: Iterable[str]) -> list[str]:
        renamed: list[str] = []
        annotations: list[object] = [self._model]
        for step in steps:
            new, annotations = _step(step, annotations)
            renamed.append(new)
        return renamed

    def _report(self, origin: str, old: str, new: str) -> None:
        self._hints.setdefault(old, _hint(origin, old, new))


def _step(key: str, annotations: Iterable[object]) -> tuple[str, list[object]]:
    """Return the current name of a key, and the annotations of its value."""
    found = [member for annotation in annotations for member in members(annotation)]
    held = [section for section, _ in found if section is not None]
    new = key
    if not any(key in fields(section) for section in held):
        new = next((renames(section)[key] for section in held if key in renames(section)), key)
    below = [fields(section)[new] for section in held if new in fields(section)]
    return new, below + [inner for section, inner in found if section is None]


def _hint(origin: str, old: str, new: str) -> str:
    return f"{origin}: {old} is now called {new}; rename it, the next release will not accept the old name"


def _both(old: str, new: str) -> str:
    return f"{old} is the old name of {new} and both are given; remove {old}"
