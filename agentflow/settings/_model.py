"""Settings of one program: strict keys, old names and aliases of keys, and problems in one line."""

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from agentflow._secrets import remember_secrets
from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.errors import ConfigurationError
from agentflow.settings._schema import fields, members, sections


class RenamedSettingWarning(FutureWarning):
    """A settings key was given under its old name. See docs/settings.md."""


class SettingsModel(BaseModel):
    """Base of all settings: accepts the old names that a class declares in `renamed`, and those in `aliases`.

    Given and assigned values are checked like those from a file. A refused value leaves everything as it was.
    """

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

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        before, fields_set = dict(vars(self)), set(self.model_fields_set)
        try:
            super().__setattr__(aliases(type(self)).get(name, name), value)
        except ValidationError as error:
            # A check of several fields together fails after the field has been set.
            vars(self).update(before)
            self.__pydantic_fields_set__ = fields_set
            raise _refused(type(self), error) from None

    def given_keys(self) -> set[str]:
        """Return the names of the fields that were given, and of those whose default was changed in place.

        Example::

            config = SynthesisConfig(max_depth=3)
            config.planner_model.temperature = 0.2
            config.given_keys()  # {"max_depth", "planner_model"}
        """
        fields = type(self).model_fields.items()
        changed = {
            name
            for name, field in fields
            if getattr(self, name) != field.get_default(call_default_factory=True)
        }
        return changed | self.model_fields_set

    if not TYPE_CHECKING:  # a type checker would then accept any name

        def __init__(self, /, **values: object) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _refused(type(self), error) from None

        # Pydantic then doesn't call it for a section inside other settings, whose own line names the whole path.
        __init__.__pydantic_base_init__ = True

        def __getattr__(self, name: str) -> object:
            current_name = aliases(type(self)).get(name)
            return super().__getattr__(name) if current_name is None else getattr(self, current_name)


def renames(section: type[object]) -> dict[str, str]:
    """Return the new names of a section's renamed keys, by their old names."""
    return {old: new for base in _bases(section) for old, new in base.renamed.items()}


def aliases(section: type[object]) -> dict[str, str]:
    """Return the names of a section's keys, by their aliases."""
    return {alias: name for base in _bases(section) for alias, name in base.aliases.items()}


def _bases(section: type[object]) -> Iterator[type[SettingsModel]]:
    return (base for base in reversed(section.__mro__) if issubclass(base, SettingsModel))


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


_MAX_LISTED: Final = 80
_MAX_KEY: Final = 100
"""Characters of a key that a message repeats."""
UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument", "no_such_attribute")
"""Types of pydantic's errors for an unknown key."""


_KEY: Final = re.compile(r"[\w-]+(\.[\w-]+)*")


class Source(NamedTuple):
    """Values from one source of settings."""

    name: str
    """Name that an error message gives it."""
    values: Mapping[str, object]


def explain(error: ValidationError, model: type[BaseModel], sources: Iterable[Source]) -> ConfigurationError:
    """Describe the first problem in one line (source, key, problem, remedy) and count the others.

    Values are not repeated: they may be secrets.
    """
    problem = _problems(error)[0]
    path = _path(problem, model)
    text = explain_line(error, model)
    # The problem of a whole section begins with the key that it is about.
    about = _KEY.match(problem["msg"].removeprefix("Value error, "))
    key = (*path, *about[0].split(".")) if about else path
    # A section may be written in another form, so that only the beginning of the path is in the source.
    prefixes = (key[:length] for length in range(len(key), 0, -1))
    all_sources = list(sources)
    names = (source.name for prefix in prefixes for source in all_sources if _holds(source.values, prefix))
    return ConfigurationError(f"{next(names, 'settings')}: {text}")


def unknown_key(model: type[BaseModel], values: Mapping[str, object]) -> str:
    """Return one line about the first unknown key among some values, or an empty text; values are not judged.

    Example::

        unknown_key(RagSettings, {"index_pat": "papers"})  # "index_pat is unknown; did you mean index_path?"
    """
    try:
        model.model_validate(values)
    except ValidationError as error:
        if any(problem["type"] in UNKNOWN for problem in error.errors()):
            return explain_line(error, model)
    return ""


def explain_line(error: ValidationError, model: type[BaseModel]) -> str:
    """Describe the first problem, without its source, and count the others.

    Example::

        try:
            RagSettings.model_validate({"index_pat": "papers"})
        except ValidationError as error:
            explain_line(error, RagSettings)  # "index_pat is unknown; did you mean index_path?"
    """
    problem, *more = _problems(error)
    rest = f" (and {len(more)} more)" if more else ""
    return _describe(problem, _path(problem, model), model) + rest


def _problems(error: ValidationError) -> list[ErrorDetails]:
    """Return all problems, unknown keys first: the other problems may follow from a misspelt key."""
    problems = error.errors(include_url=False, include_input=False)
    return sorted(problems, key=lambda problem: problem["type"] not in UNKNOWN)


def _path(problem: ErrorDetails, model: type[object]) -> tuple[str, ...]:
    """Return the keys to a problem, without the names of a union's members."""
    path: tuple[str, ...] = ()
    annotation: object = model
    for step in map(_shortened, problem["loc"]):
        if step in {section.__name__ for section in sections(annotation)}:
            continue
        path = (*path, step)
        annotation = fields(_section(path[:-1], model)).get(step, annotation)
    return path


def _shortened(step: str | int) -> str:
    text = str(step)
    return text if len(text) <= _MAX_KEY else f"{text[:_MAX_KEY]}…"


def _describe(problem: ErrorDetails, path: tuple[str, ...], model: type[BaseModel]) -> str:
    key = ".".join(path)
    match problem["type"]:
        case kind if kind in UNKNOWN:
            return f"{key} is unknown{_suggest(path, model)}"
        case "missing":
            return f"{key} is missing; add it"
        case _:
            message = problem["msg"].removeprefix("Value error, ")
            return f"{key}: {message[0].lower()}{message[1:]}" if key else message


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?` with the nearest known name, or a list of all if none is near and they are few.

    >>> nearest("ragg", ["rag", "web"])
    '; did you mean rag?'
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known here: {', '.join(names)}" if 0 < len(names) <= _MAX_LISTED else ""


def _suggest(path: tuple[str, ...], model: type[BaseModel]) -> str:
    section = _section(path[:-1], model)
    known_fields = fields(section)
    old = renames(section)
    near = difflib.get_close_matches(path[-1], [*known_fields, *old, *aliases(section)], n=1, cutoff=0.5)
    return f"; did you mean {old.get(near[0], near[0])}?" if near else nearest(path[-1], known_fields)


def _section(path: tuple[str, ...], model: type[object]) -> type[object]:
    """Return the type of the section at that path."""
    annotation: object = model
    section = model
    for step in path:
        # A step that is not a field is a list index or a mapping key: the section is in the annotation's arguments.
        annotation = fields(section).get(step, annotation)
        section = next(sections(annotation), section)
    return section


def _holds(values: object, path: tuple[str, ...]) -> bool:
    """Return true if a source has a value at that path."""
    if not path or not is_mapping(values):
        return True
    return path[0] in values and _holds(values[path[0]], path[1:])


def _empty_for_none(value: object) -> object:
    if not is_mapping(value):
        return value
    return {name: dict[str, object]() if section is None else section for name, section in value.items()}


SettingsByName: TypeAlias = Annotated[dict[str, dict[str, object]], BeforeValidator(_empty_for_none)]
"""Settings of several things, by their names; a name without settings (`rag:`) has none."""


def _refused(model: type[BaseModel], error: ValidationError) -> ConfigurationError:
    return ConfigurationError(f"{model.__name__}: {explain_line(error, model)}")


class Section(SettingsModel):
    """Named part of some settings: strict about its keys; assigned values are checked. See docs/settings.md."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, use_attribute_docstrings=True, validate_default=True
    )


class Settings(SettingsModel, BaseSettings):
    """Settings of one program: strict about its keys; assigned values are checked. See docs/settings.md.

    Constructed directly, it reads neither files nor the environment; `load_settings` does.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        validate_assignment=True,
        use_attribute_docstrings=True,
        env_prefix="AGENTFLOW_",
        env_nested_delimiter="__",
        dotenv_filtering="only_existing",
    )

    @classmethod
    def values_of_file(
        cls, values: dict[str, object], file: str, above: Mapping[str, object]
    ) -> dict[str, object]:
        """Return the values of a settings file; a program that reads other formats converts them here. See docs/settings.md.

        :param above: values of sources that override the file.
        """
        del file, above
        return values

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the passed values alone: `load_settings` chooses the other sources and their order."""
        return (init_settings,)


def _check_url(url: str) -> str:
    if url and not re.fullmatch(r"(https?|postgresql)://\S+", url):
        raise ValueError("no URL with a scheme; write it as http://127.0.0.1:8000/v1")
    return url


EndpointUrl = Annotated[str, AfterValidator(_check_url)]
"""URL of an endpoint with `http://` or `https://`, or of a database with model replicas, or an empty string."""
