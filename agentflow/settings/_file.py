import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import yaml

from agentflow.errors import ConfigurationError

_REFERENCE = re.compile(
    r"\$(?P<literal>\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
)


def read_file(path: Path | str, environment: Mapping[str, str]) -> dict[str, object]:
    """The mapping that a YAML or JSON file holds, with `${NAME}` and `${NAME:-default}` filled in.

    `$${` stands for a literal `${`.

    :raises ConfigurationError: if the file is missing, is neither YAML nor JSON, holds no mapping, or names a
        variable that is not set.
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
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path}: holds no mapping; write `key: value` lines")
    filled = _fill(cast("dict[object, object]", content), str(path), (), environment)
    return cast("dict[str, object]", filled)


def _line(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f":{mark.line + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
    return problem or str(error).replace("\n", " ")


def _fill(value: object, file: str, place: tuple[str, ...], environment: Mapping[str, str]) -> object:
    """Fill in the references of a value and all that it holds."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: _resolve(found, file, place, environment), value)
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {str(key): _fill(item, file, (*place, str(key)), environment) for key, item in items}
    if isinstance(value, list):
        listed = enumerate(cast("list[object]", value))
        return [_fill(item, file, (*place, str(index)), environment) for index, item in listed]
    return value


def _resolve(found: re.Match[str], file: str, place: tuple[str, ...], environment: Mapping[str, str]) -> str:
    name, default = found["name"], found["default"]
    if found["literal"]:
        return "${"
    # As in a shell, `:-` also stands in for a variable that is set to nothing.
    value = environment.get(name) or default if default is not None else environment.get(name)
    if value is None:
        where = f"{file}: {'.'.join(place)}"
        raise ConfigurationError(f"{where}: ${{{name}}} is not set; set it, or write ${{{name}:-default}}")
    return value
