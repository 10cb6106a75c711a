"""Every way to write a tool's name, and patterns over names."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from agentflow.errors import ErrorKind, ToolFailure
from agentflow.sandbox._aliases import BACKEND_ALIASES, TOOL_ALIASES, canonical_backend
from mcp_servers import Tool
from mcp_servers.core import did_you_mean

__all__ = ["Names", "backend_of"]

_SEPARATORS: Final = str.maketrans(":-.", "___")


def _plain(name: str) -> str:
    """`bash:run`, `bash-run`, `bash.run` and `bash_run` are one name."""
    return name.strip().translate(_SEPARATORS)


def backend_of(name: str) -> str:
    """The backend that stands at the beginning of a tool's name or a pattern; a word that is none, of others."""
    route = TOOL_ALIASES.get(_plain(name), name)
    return canonical_backend(_plain(route).partition("_")[0])


class Names:
    """What some tools may be called: their names, aliases of the tool or of its backend, bare verbs of which there is one."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools = tuple(tools)
        """The tools, in their order."""
        self._spellings: dict[str, Tool] = {_plain(tool.name): tool for tool in self.tools}
        for tool in self.tools:
            for alias, backend in BACKEND_ALIASES.items():
                if tool.backend == backend:
                    self._spellings.setdefault(_plain(f"{alias}_{tool.verb}"), tool)
        for alias, route in TOOL_ALIASES.items():
            if (tool := self._spellings.get(_plain(route))) is not None:
                self._spellings.setdefault(alias, tool)
        self._verbs: dict[str, list[Tool]] = {}
        for tool in self.tools:
            self._verbs.setdefault(_plain(tool.verb), []).append(tool)
        for verb, owners in self._verbs.items():
            if len(owners) == 1:
                self._spellings.setdefault(verb, owners[0])
        # What somebody else named may differ in a separator only: written exactly, it is found all the same.
        self._spellings.update({exact: tool for tool in self.tools for exact in (tool.route, tool.name)})

    def __contains__(self, name: str) -> bool:
        """A tool is called so, in full."""
        return (tool := self._spellings.get(_plain(name))) is not None and _plain(name) == _plain(tool.name)

    def find(self, name: str) -> Tool:
        """The tool that this name means.

        :raises ToolFailure: `tool_not_found`, with the nearest right name.
        """
        tool = self._spellings.get(name) or self._spellings.get(_plain(name))
        if tool is None:
            raise ToolFailure(ErrorKind.TOOL_NOT_FOUND, self._explain(name))
        return tool

    def select(self, patterns: str | Sequence[str] = "*") -> list[Tool]:
        """The tools that a pattern, or any of several, means: a name, an alias, a backend, or one with `*` or `?`.

        :raises ToolFailure: `tool_not_found`, for a pattern that means no tool.
        """
        patterns = [patterns] if isinstance(patterns, str) else patterns
        chosen = {tool.name for pattern in patterns for tool in self._matching(pattern)}
        return [tool for tool in self.tools if tool.name in chosen]

    def _matching(self, pattern: str) -> Iterable[Tool]:
        if "*" in pattern or "?" in pattern:
            plain = _plain(pattern)
            found = [tool for spelling, tool in self._spellings.items() if fnmatchcase(spelling, plain)]
            if not found and pattern != "*":
                raise ToolFailure(ErrorKind.TOOL_NOT_FOUND, self._explain(pattern))
            return found
        backend = BACKEND_ALIASES.get(pattern, pattern)
        return [tool for tool in self.tools if tool.backend == backend] or [self.find(pattern)]

    def _explain(self, name: str) -> str:
        plain, backends = _plain(name), list(dict.fromkeys(tool.backend for tool in self.tools))
        if len(owners := self._verbs.get(plain, [])) > 1:
            return f"{name!r} may mean {' or '.join(tool.route for tool in owners)}."
        if (route := TOOL_ALIASES.get(plain)) is not None:
            return f"{name!r} means {route}, and there is no such tool here. Backends here: {', '.join(backends)}."
        family, _, verb = name.partition(":")
        if verb and (backend := BACKEND_ALIASES.get(family, family)) not in backends:
            return f"no backend {backend!r} here, for {name!r}.{did_you_mean(backend, backends)}"
        return f"no tool {name!r}.{did_you_mean(name, [tool.route for tool in self.tools])}"
