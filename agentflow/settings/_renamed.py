"""Other keys of settings: old ones, which give one warning each, and aliases, which give none."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Self

from pydantic import BaseModel, model_validator

from agentflow._secrets import remember_secrets
from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.errors import ConfigurationError
from agentflow.settings._schema import fields, members


class RenamedSettingWarning(FutureWarning):
    """A settings key was given under its old name. See docs/settings.md."""


class RenamedKeys(BaseModel):
    """Base of all settings: accepts the old names that a class declares in `renamed`, and those in `aliases`."""

    renamed: ClassVar[dict[str, str]] = {}
    """New names of renamed keys, by their old names. A subclass adds to those of its bases."""
    aliases: ClassVar[dict[str, str]] = {}
    """Names of keys by further names, which are as good. A subclass adds to those of its bases."""

    @classmethod
    def known_keys(cls) -> frozenset[str]:
        """Return all keys that are accepted: fields, their aliases and old names."""
        return frozenset({*cls.model_fields, *aliases(cls), *renames(cls)})

    @model_validator(mode="after")
    def _remember_secrets(self) -> Self:
        """Remember the secrets in these settings, so that no text of this process shows them."""
        remember_secrets(vars(self))
        return self

    @model_validator(mode="before")
    @classmethod
    def _rename_keys(cls, values: object) -> object:
        """Rename the keys of a section that is made directly: the loader has already renamed those it reads."""
        names = renames(cls) | aliases(cls)
        if not is_mapping(values) or not (other := names.keys() & values.keys()):
            return values
        for key in sorted(other):
            if names[key] in values:
                raise ValueError(_both(key, names[key], old=key in renames(cls)))
            if key in renames(cls):
                hint = _hint(cls.__name__, key, names[key])
                warnings.warn(hint, RenamedSettingWarning, stacklevel=3)
        return {names.get(key, key): value for key, value in values.items()}


def renames(section: type[object]) -> dict[str, str]:
    """Return the new names of a section's renamed keys, by their old names."""
    return {old: new for base in _bases(section) for old, new in base.renamed.items()}


def aliases(section: type[object]) -> dict[str, str]:
    """Return the names of a section's keys, by their aliases."""
    return {alias: name for base in _bases(section) for alias, name in base.aliases.items()}


def _bases(section: type[object]) -> Iterator[type[RenamedKeys]]:
    return (base for base in reversed(section.__mro__) if issubclass(base, RenamedKeys))


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
        other: dict[str, str] = {}
        for name, value in variables.items():
            steps = name.removeprefix(prefix).split(delimiter) if name.startswith(prefix) else []
            path, old = self._path(steps)
            new = prefix + delimiter.join(path) if steps else name
            if new == name:
                renamed[name] = value
                continue
            if new in variables:
                raise ConfigurationError(f"{origin}: {_both(name.upper(), new.upper(), old=old)}")
            if old:
                self._report(origin, name.upper(), new.upper())
            other[name] = new
        return renamed | {new: variables[name] for name, new in other.items()}

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
            new, below, old = _step(key, annotations)
            if new != key:
                names = ".".join((*path, key)), ".".join((*path, new))
                if new in value:
                    raise ConfigurationError(f"{origin}: {_both(*names, old=old)}")
                if old:
                    self._report(origin, *names)
            renamed[new] = self._rename(item, below, (*path, new), origin)
        return renamed

    def _path(self, steps: Iterable[str]) -> tuple[list[str], bool]:
        """Return the current names of the keys of a path, and true if one of them is an old name."""
        renamed: list[str] = []
        annotations: list[object] = [self._model]
        any_old = False
        for step in steps:
            new, annotations, old = _step(step, annotations)
            any_old = any_old or old
            renamed.append(new)
        return renamed, any_old

    def _report(self, origin: str, old: str, new: str) -> None:
        self._hints.setdefault(old, _hint(origin, old, new))


def _step(key: str, annotations: Iterable[object]) -> tuple[str, list[object], bool]:
    """Return the current name of a key, the annotations of its value, and true if the key is an old name."""
    section_members = [member for annotation in annotations for member in members(annotation)]
    held = [section for section, _ in section_members if section is not None]
    new, old = key, False
    if not any(key in fields(section) for section in held):
        other = [renames(section) | aliases(section) for section in held]
        new = next((names[key] for names in other if key in names), key)
        old = any(key in renames(section) for section in held)
    below = [fields(section)[new] for section in held if new in fields(section)]
    return new, below + [inner for section, inner in section_members if section is None], old


def _hint(origin: str, old: str, new: str) -> str:
    return f"{origin}: {old} is now called {new}; rename it, the next release will not accept the old name"


def _both(other: str, name: str, *, old: bool) -> str:
    return f"{other} is {'the old' if old else 'another'} name of {name} and both are given; remove {other}"
