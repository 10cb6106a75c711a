"""YAML and JSON text as values, with bounded memory and errors of one line."""

from collections.abc import Sequence
from typing import Final

import yaml

from agentflow._decoding import MAX_DIGITS, JsonError, decode_json
from agentflow.errors import ConfigurationError

MAX_VALUES: Final = 100_000
"""Values of one text; those behind an alias count each time that it is used."""

_DEEP = "nested too deeply; write it flatter"


def parse_yaml(text: str, where: str, *, inline: bool = False) -> object:
    """Parse YAML; a key that is given twice in one mapping is an error, as one of its values would be ignored.

    :param where: name of the text in errors.
    :param inline: the text is a value on the command line, which has no line numbers and may be a secret.
    :raises ConfigurationError: with one line, for any text that can't be used.

    Example::

        parse_yaml("depth: 1", "run.yaml")  # {"depth": 1}
    """
    try:
        root: yaml.Node | None = yaml.SafeLoader(text).get_single_node()
        if root is not None:
            _Check(where, lines=not inline).count(root)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        if inline:
            raise ConfigurationError(f"{where}: neither a list [a, b] nor a mapping {{a: 1}}") from None
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        line_suffix = f":{mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{where}{line_suffix}: not YAML: {_problem(error)}") from None
    except RecursionError:
        raise ConfigurationError(f"{where}: {_DEEP}") from None
    except ConfigurationError:
        raise
    except (ValueError, AttributeError):
        # Raised by yaml for values such as 2020-13-45 and !!int x. They are not repeated: they may be secrets.
        message = "a number or date is not valid; put quotes around it"
        raise ConfigurationError(f"{where}: not YAML: {message}") from None


def parse_json(text: str, where: str) -> object:
    """Parse JSON; a key that is given twice in one object is an error.

    :raises ConfigurationError: with one line, for any text that can't be used.

    Example::

        parse_json('{"depth": 1}', "run.json")  # {"depth": 1}
    """
    try:
        return decode_json(text, unique_keys=True)
    except JsonError as error:
        location = where if error.line is None else f"{where}:{error.line}"
        raise ConfigurationError(f"{location}: {error}") from None


class _Check:
    """Counts the values of a YAML document as they are when aliases are replaced by what they stand for."""

    def __init__(self, where: str, *, lines: bool) -> None:
        self._where = where
        self._lines = lines
        self._counts: dict[int, int] = {}

    def count(self, node: yaml.Node) -> int:
        """Return the number of values.

        :raises ConfigurationError: if there are too many, a value contains itself, or a key is given twice.
        """
        stored_count = self._counts.get(id(node))
        if stored_count is not None:
            if stored_count == 0:
                message = "a value contains itself; write it out instead of using an alias"
                raise ConfigurationError(f"{self._location(node)}: {message}")
            return stored_count
        self._counts[id(node)] = 0
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int") and len(node.value) > MAX_DIGITS:
            message = f"a number of {len(node.value):,} digits; {MAX_DIGITS} are the most"
            raise ConfigurationError(f"{self._location(node)}: {message}")
        total = 1 + sum(map(self.count, self._children(node)))
        if total > MAX_VALUES:
            message = f"more than {MAX_VALUES:,} values; remove some, or use fewer aliases"
            raise ConfigurationError(f"{self._location(node)}: {message}")
        self._counts[id(node)] = total
        return total

    def _children(self, node: yaml.Node) -> list[yaml.Node]:
        if isinstance(node, yaml.SequenceNode):
            return node.value
        if not isinstance(node, yaml.MappingNode):
            return []
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        names = [key.value for key in keys]
        if len(set(names)) < len(names):
            repeated = _first_repeated(names)
            last = max(index for index, name in enumerate(names) if name == repeated)
            raise _given_twice(self._location(keys[last]), repeated)
        return [part for pair in node.value for part in pair]

    def _location(self, node: yaml.Node) -> str:
        return f"{self._where}:{node.start_mark.line + 1}" if self._lines else self._where


def _first_repeated(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise ValueError("no name is repeated")


def _given_twice(where: str, key: str) -> ConfigurationError:
    return ConfigurationError(f"{where}: {key} is given twice; remove one of them")


def _problem(error: yaml.YAMLError) -> str:
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
    text = " ".join((problem or str(error)).split())
    return "a tab indents a line; use spaces" if "'\\t'" in text else text
