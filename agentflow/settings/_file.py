import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agentflow._typeguards import is_list, is_object
from agentflow.errors import ConfigurationError

_REFERENCE = re.compile(
    r"\$(?P<literal>\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
)


def read_file(path: Path | str, environment: Mapping[str, str]) -> dict[str, object]:
    """Read a YAML or JSON file, and replace `${NAME}` and `${NAME:-default}` from the environment.

    `$${` is a literal `${`. See docs/settings.md.

    :raises ConfigurationError: if the file can't be read, does not hold a mapping, or names a variable that is
        not set.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        content: object = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}{_line(error)}: not YAML: {_problem(error)}") from None
    if content is None:
        return {}
    if not is_object(content):
        raise ConfigurationError(f"{path}: holds no mapping; write `key: value` lines")
    return _fill_all(content, str(path), (), environment)


def _line(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f":{mark.line + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
    return problem or str(error).replace("\n", " ")


def _fill(value: object, file: str, place: tuple[str, ...], environment: Mapping[str, str]) -> object:
    """Replace the references in a value, at any depth."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: _resolve(found, file, place, environment), value)
    if is_object(value):
        return _fill_all(value, file, place, environment)
    if is_list(value):
        return [_fill(item, file, (*place, str(index)), environment) for index, item in enumerate(value)]
    return value


def _fill_all(
    values: Mapping[Any, object], file: str, place: tuple[str, ...], environment: Mapping[str, str]
) -> dict[str, object]:
    return {str(key): _fill(item, file, (*place, str(key)), environment) for key, item in values.items()}


def _resolve(found: re.Match[str], file: str, place: tuple[str, ...], environment: Mapping[str, str]) -> str:
    name, default = found["name"], found["default"]
    if found["literal"]:
        return "${"
    # As in a shell, `:-` also applies to an empty variable.
    value = environment.get(name) or default if default is not None else environment.get(name)
    if value is None:
        where = f"{file}: {'.'.join(place)}"
        raise ConfigurationError(f"{where}: ${{{name}}} is not set; set it, or write ${{{name}:-default}}")
    return value
