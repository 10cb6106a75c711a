"""Calls that an exploration suggests: each follows something that was seen and that no earlier call has asked for."""

import re
from collections.abc import Collection, Iterator, Mapping

import msgspec

from agentflow.testing.endpoint._documents import names_in
from agentflow.testing.endpoint._prompt import Prompt
from agentflow.testing.endpoint._tables import (
    SeenTable,
    aggregations,
    profiled_tables,
    table_of_csv,
    tables_in,
)

_ADDRESS = re.compile(r"https?://[^\s)\]>\"'|]+")
_IDENTIFIER = re.compile(r"^(?:\[\d+\] )?\S.* \(([\w./:-]+)\)$", re.MULTILINE)
_SECTION = re.compile(r"^(?:\S+ )?\[([\d.]+)\] .+, page \d+", re.MULTILINE)
_INPUT_FOLDER = re.compile(r"^- (\S+) \(read-only\): a folder with (.+)$", re.MULTILINE)
_DATA_FILE = re.compile(r"[\w.-]+\.(?:csv|tsv)\b")
_READ_FILE = re.compile(r'"(?:path|file)":"([^"]+)"')
_LEGAL = re.compile(r"^\s+\d+\. (\S.*)$", re.MULTILINE)
_MARKED = re.compile(r"<(observation|seed)\b[^>]*>.*?</\1>", re.DOTALL)
_ROWS = 3
_PAGES = 3

NEED_LEADS = frozenset({"web_visit", "web_read", "document_read", "files_read", "data_read", "sql_execute"})
"""Tools that are used only with something seen."""


_DESKTOP: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("bash_run", {}),
    ("vm_click", {"x": 43, "y": 15}),
    ("vm_wait", {"seconds": 5}),
    ("vm_type", {"text": "grep -c . *.txt > lines.txt; mkdir done; mv [a-k]*.txt done; exit\n"}),
    ("vm_wait", {"seconds": 4}),
)
"""Work on a desktop with a panel: its first button starts a terminal."""


def legal_actions(text: str) -> list[str]:
    """Return the actions that a world lists."""
    return _LEGAL.findall(text.partition("\nactions:")[2])


class CallLeads:
    """Untried arguments of tools, best first."""

    def __init__(self, prompt: Prompt, tools: Collection[str]) -> None:
        """Read what was seen, the newest observation first, and which calls were made or proposed.

        :param tools: names of the tools that are offered.
        """
        self._seen = prompt.calls()[::-1]
        self._seed = prompt.seed()
        # On a desktop the next step depends on all earlier ones.
        steps = _DESKTOP[len(self._seen) :] if "vm_click" in tools else ()
        self._step = steps[0] if steps else None
        self._made = _MARKED.sub("", prompt.text)
        self._files = [
            f"{folder}/{name}"
            for folder, names in _INPUT_FOLDER.findall(prompt.system)
            for name in _DATA_FILE.findall(names)
        ]

    def of(self, tool: str) -> Iterator[Mapping[str, object]]:
        """Yield the arguments that something seen suggests for a tool."""
        for arguments in self._suggested(tool):
            if not self._tried(tool, arguments):
                yield arguments

    def _names(self) -> Iterator[str]:
        """Yield the names seen that are in no call yet, those of the newest observation first."""
        texts = [text for _, text in self._seen]
        for name in dict.fromkeys(name for text in (*texts, self._seed) for name in names_in(text)):
            if name not in self._made:
                yield name

    def _tried(self, tool: str, arguments: Mapping[str, object]) -> bool:
        written = msgspec.json.encode(arguments).decode()
        return any(f"{tool}{between}{written}" in self._made for between in (" ", '","arguments":'))

    def _suggested(self, tool: str) -> Iterator[Mapping[str, object]]:
        match tool:
            case proposed_tool if self._step is not None:
                yield from [self._step[1]] if proposed_tool == self._step[0] else ()
            case "rag_search" | "web_search" | "web_wikipedia" | "document_search":
                yield from ({"query": name} for name in self._names())
            case "rag_get":
                yield from ({"id": identifier} for identifier in self._matches(_IDENTIFIER))
            case "web_visit":
                yield from ({"urls": address} for address in self._matches(_ADDRESS))
            case "web_read":
                yield from ({"query": self._seed, "url": address} for address in self._matches(_ADDRESS))
            case "document_outline" | "document_tables" | "sql_list_databases" | "data_inspect":
                yield {}
            case "document_read":
                yield from ({"section_ids": section} for section in self._matches(_SECTION))
                yield from ({"pages": page} for page in range(1, _PAGES + 1))
            case "sql_schema":
                yield {"sample_rows": _ROWS}
            case "sql_execute":
                tables = [table for _, text in self._seen for table in tables_in(text)]
                yield from ({"query": query} for query in aggregations(tables))
            case "files_read":
                yield from ({"path": path} for path in self._files)
            case "data_read":
                yield from ({"file": path.rpartition("/")[2]} for path in self._files)
            case "code_run" | "data_run":
                yield from ({"code": program} for program in aggregations(list(self._data_tables())))
            case "world_act":
                # It tends to take what it can: actions on things come last in the list.
                newest = self._seen[0][1] if self._seen else ""
                yield from ({"action": action} for action in reversed(legal_actions(newest)))
            case _:
                pass

    def _matches(self, pattern: re.Pattern[str]) -> Iterator[str]:
        yield from dict.fromkeys(match for _, text in self._seen for match in pattern.findall(text))

    def _data_tables(self) -> Iterator[SeenTable]:
        """Yield the data files whose rows or profiles were seen."""
        for call, text in self._seen:
            for table in profiled_tables(text):
                yield from (
                    table._replace(name=path) for path in self._files if path.endswith(f"/{table.name}")
                )
            for name in _READ_FILE.findall(call):
                path = next((path for path in self._files if path.endswith(name)), None)
                table = None if path is None else table_of_csv(path, text)
                if table is not None:
                    yield table
