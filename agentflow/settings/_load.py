import logging
import os
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeVar

from dotenv import dotenv_values
from pydantic import ValidationError
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource, SettingsError

from agentflow._folder_files import read_file as folder_file
from agentflow._secrets import MASK, VARIABLES, remember_secrets, remember_variables
from agentflow._typeguards import is_list, is_mapping, is_object
from agentflow.errors import ConfigurationError
from agentflow.settings._model import KeyRenamer, Settings, Source, aliases, explain
from agentflow.settings._references import find_near
from agentflow.settings._schema import check_dotenv
from agentflow.settings._yaml import parse_json, parse_yaml

logger = logging.getLogger(__name__)
AnySettings = TypeVar("AnySettings", bound=Settings)


def read_environment(dotenv: Path | str | None = ".env") -> dict[str, str]:
    """Return the variables of this process over those of a `.env` file; empty ones of the file are left out.

    See docs/settings.md.
    """
    in_dotenv = {key: value for key, value in dotenv_values(dotenv).items() if value} if dotenv else {}
    environment = {**in_dotenv, **os.environ}
    remember_variables(environment)
    return environment


def load_settings(
    model: type[AnySettings],
    file: str | PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    *,
    dotenv: Path | str | None = ".env",
    arguments: Mapping[str, object] | None = None,
) -> AnySettings:
    """Load settings from a file, `.env`, `AGENTFLOW_*` variables and `key=value` overrides; the last one wins.

    Example::

        settings = load_settings(ServingSettings, "serving.yaml", ["port=8001"])

    :param arguments: values that the program itself passes; they win over all sources.
    :raises ConfigurationError: if a source can't be read, or a key or value is not valid.
    """
    try:
        return _load(model, file, overrides, dotenv, arguments)
    except ConfigurationError as error:
        raise ConfigurationError(_printable(str(error))) from None
    except RecursionError:
        raise ConfigurationError("settings: a value is nested too deeply; write it flatter") from None


def _printable(message: str) -> str:
    """Return a message on one line of bounded length: it may repeat a key of the source."""
    # Bytes of a file name that are no text arrive as surrogates; the terminal shows them as escapes.
    text = "".join(
        letter if letter.isprintable() or "\udc80" <= letter <= "\udcff" else "�"
        for letter in message[:_MAX_MESSAGE]
    )
    return text if len(message) <= _MAX_MESSAGE else f"{text} …"


_MAX_MESSAGE = 2_000


def _load(
    model: type[AnySettings],
    file: str | PathLike[str] | None,
    overrides: Iterable[str],
    dotenv: Path | str | None,
    arguments: Mapping[str, object] | None,
) -> AnySettings:
    renamer = KeyRenamer(model)
    if file:
        find_near(Path(file))
    try:
        sources = [
            Source("arguments", arguments or {}),
            Source("key=value", parse_overrides(overrides)),
            _variables(EnvSettingsSource(model), "environment", renamer),
            _variables(DotEnvSettingsSource(model, env_file=dotenv), str(dotenv), renamer)
            if dotenv
            else Source(".env", {}),
        ]
        if file:
            above = _merged(sources)
            values = model.values_of_file(read_file(file, read_environment(dotenv)), fspath(file), above)
            sources.append(Source(fspath(file), values))
    except SettingsError as error:
        raise ConfigurationError(f"environment: {error}; write a list or mapping as JSON") from None
    except RecursionError:
        raise ConfigurationError("environment: a value is nested too deeply; write it flatter") from None
    sources = [Source(name, renamer.values(values, name)) for name, values in sources]
    if dotenv:
        check_dotenv(model, sources[3].values, str(dotenv), model.model_config.get("env_prefix", ""))
    renamer.warn(stacklevel=3)
    for name, meant in misspelt_variables(model, read_environment(dotenv)).items():
        _warn_misspelt(name, meant)
    merged = _unmask(
        _merged(sources),
        read_environment(dotenv),
        model.model_config.get("env_prefix", ""),
        fspath(file or ""),
    )
    remember_secrets(merged)
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise explain(error, model, sources) from None


def _merged(sources: list[Source]) -> dict[str, object]:
    merged: dict[str, object] = {}
    for source in reversed(sources):
        merged = merge(merged, source.values)
    return merged


def _variables(source: EnvSettingsSource, name: str, renamer: KeyRenamer) -> Source:
    source.env_vars = renamer.variables(
        source.env_vars, source.env_prefix.lower(), source.env_nested_delimiter or "__", name
    )
    return Source(name, source())


def misspelt_variables(model: type[Settings], variables: Iterable[str]) -> dict[str, str]:
    """Return the nearest known variable for each that no setting has, but nearly."""
    prefix = model.model_config.get("env_prefix", "")
    keys = {f"{prefix}{key}".upper(): key for key in model.known_keys()}
    heads = {name: name.upper().partition("__")[0] for name in variables}
    unknown = {name: head for name, head in heads.items() if head.startswith(_PREFIX) and head not in keys}
    if not unknown:
        return {}
    from rapidfuzz.distance import Levenshtein  # most environments have no such variable

    current = {*model.model_fields, *aliases(model)}
    limits = {other: min(_NEAR, len(key) // 2) for other, key in keys.items() if key in current}
    misspelt: dict[str, str] = {}
    for name, head in unknown.items():
        edits = {other: Levenshtein.distance(head, other) for other in limits}
        near = [other for other, edit in edits.items() if edit <= limits[other]]
        if near:
            misspelt[name] = min(near, key=edits.__getitem__)
    return misspelt


_PREFIX = "AGENTFLOW_"
_NEAR = 2
"""Edits by which a misspelt variable differs at most."""


@cache
def _warn_misspelt(name: str, meant: str) -> None:
    """Log it once: a run may load several settings."""
    logger.warning(
        "environment: %s is no setting and is ignored; did you mean %s?", " ".join(name.split()), meant
    )


@contextmanager
def report_read_errors(path: Path, missing: str = "no such file") -> Generator[None]:
    """Raise `ConfigurationError` with the file and the reason if it can't be read as UTF-8 text.

    Example::

        with report_read_errors(path, missing="no such file; name a file of tasks"):
            text = path.read_text(encoding="utf-8")

    :param missing: reason if there is no such file.
    """
    try:
        yield
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: {missing}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from None


def read_file(path: str | PathLike[str], environment: Mapping[str, str]) -> dict[str, object]:
    """Read a YAML or JSON file, and replace `${NAME}` and `${NAME:-default}` from the environment.

    `$${` is a literal `${`. A file below `configs/` that is not in the working directory is that of the installation. See
    docs/settings.md.

    :raises ConfigurationError: if the file can't be read, does not hold a mapping, or names a variable that is
        not set.
    """
    path = Path(path)
    with report_read_errors(path):
        text = _shipped(path).read_text(encoding="utf-8-sig")
    parse = parse_json if path.suffix == ".json" else parse_yaml
    content = parse(text, str(path))
    try:
        return _filled(path, content, environment)
    except RecursionError:
        raise ConfigurationError(f"{path}: nested too deeply; write it flatter") from None


def read_run_settings(folder: Path) -> Mapping[str, Any]:
    """Return the settings that a run wrote into its folder; empty: it has none. See docs/security.md.

    Nothing in them is used but shown: the folder may come from elsewhere.

    :raises ConfigurationError: if they can't be read.
    """
    path = folder / "settings.yaml"
    try:
        about = path.stat()
    except OSError:
        return {}
    content = _run_settings(path, about.st_ino, about.st_mtime_ns, about.st_size)
    if isinstance(content, str):
        raise ConfigurationError(content)
    return content


@lru_cache(maxsize=256)
def _run_settings(path: Path, *_state: int) -> Mapping[str, Any] | str:
    """Return the settings in a file, or the reason why they can't be read: both take seconds for a large one."""
    try:
        with report_read_errors(path):
            text = folder_file(path, path.parent, _MAX_RUN_SETTINGS).decode()
        content = parse_yaml(text, str(path))
    except ConfigurationError as error:
        return str(error)
    return content if is_object(content) else f"{path}: holds no mapping"


_MAX_RUN_SETTINGS = 128 << 10


def _shipped(path: Path) -> Path:
    """Return the file of that name that ships with this project, if the path begins with `configs/` and does not exist."""
    if path.parts[:1] != (_CONFIGS,) or path.exists():
        return path
    package = Path(__file__).parents[1]
    # A wheel has them in the package, a checkout beside it.
    root = package if (package / _CONFIGS).is_dir() else package.parent
    return root / path if (root / path).is_file() else path


_CONFIGS = "configs"


def _filled(path: Path, content: object, environment: Mapping[str, str]) -> dict[str, object]:
    if content is None:
        return {}
    if not is_object(content):
        raise ConfigurationError(f"{path}: holds no mapping; write `key: value` lines")
    return _fill_all(content, str(path), (), environment)


def _fill(value: object, file: str, path: tuple[str, ...], environment: Mapping[str, str]) -> object:
    """Replace the references in a value, at any depth."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _resolve(match, file, path, environment), value)
    if is_object(value):
        return _fill_all(value, file, path, environment)
    if is_list(value):
        return [_fill(item, file, (*path, str(index)), environment) for index, item in enumerate(value)]
    return value


def _fill_all(
    values: Mapping[Any, object], file: str, path: tuple[str, ...], environment: Mapping[str, str]
) -> dict[str, object]:
    return {str(key): _fill(item, file, (*path, str(key)), environment) for key, item in values.items()}


_REFERENCE = re.compile(
    r"\$(?P<literal>\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
)


def _resolve(match: re.Match[str], file: str, path: tuple[str, ...], environment: Mapping[str, str]) -> str:
    name, default = match["name"], match["default"]
    if match["literal"]:
        return "${"
    # As in a shell, `:-` also applies to an empty variable.
    value = environment.get(name) or default if default is not None else environment.get(name)
    if value is None:
        where = f"{file}: {'.'.join(path)}"
        raise ConfigurationError(f"{where}: ${{{name}}} is not set; set it, or write ${{{name}:-default}}")
    return value


def parse_overrides(words: Iterable[str]) -> dict[str, object]:
    """Parse `key=value` overrides into nested values; dots separate nested keys, and the last override wins.

    A value in brackets or braces is YAML, `null` is `None`, and any other value is plain text.
    """
    values: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        steps = key.strip().split(".")
        if not equals or not all(steps):
            # The value may be a secret.
            text = f"{key}=…" if equals else word
            raise ConfigurationError(f"{text}: not an override; write key=value or section.key=value")
        *sections, last = steps
        nested: dict[str, object] = {last: _value(key, text)}
        for step in reversed(sections):
            nested = {step: nested}
        values = merge(values, nested)
    return values


def _value(key: str, text: str) -> object:
    if text == "null":
        return None
    if not text.startswith(("[", "{")):
        return text
    return parse_yaml(text, key, inline=True)


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Merge two nested mappings; values of `above` win.

    Example::

        assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}
    """
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if is_mapping(under) and is_mapping(value):
            value = merge(under, value)
        merged[key] = value
    return merged


_MASKED_URL: Final = re.compile(rf"[a-z][a-z0-9+.-]*://\S*{re.escape(MASK)}\S*")
_OWN_VARIABLE: Final = re.compile(r"(?:.+_)?api_key")
"""Keys whose variable their provider names: they are left out."""


def _unmask(
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
            return [self.fill(entry, (*path, str(index))) for index, entry in enumerate(value)]
        if isinstance(value, str) and (value == MASK or _MASKED_URL.fullmatch(value)):
            return self._find(path)
        return value

    def _find(self, path: tuple[str, ...]) -> str:
        *_, section, last = ("", *path)
        is_variable = section in VARIABLES and re.fullmatch(r"[A-Za-z_]\w*", last)
        name = last if is_variable else re.sub(r"\W", "_", f"{self._prefix}{'__'.join(path)}").upper()
        if not (value := self._variables.get(name)):
            raise ConfigurationError(
                f"{self._file or 'settings'}: {'.'.join(path)} is masked ({MASK}); set the variable {name}, or write the value"
            )
        return value


def _is_left_out(name: str, value: object) -> bool:
    return value == MASK and _OWN_VARIABLE.fullmatch(name) is not None
