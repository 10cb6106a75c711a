"""The program that looks into files, as a sandbox runs it: there the project's own source is not to be seen."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import mcp_servers

__all__ = ["COMMAND", "input_of"]

_MODULES: Final = (
    "mcp_servers.sql.inside._values",
    "mcp_servers.data.inside._sources",
    "mcp_servers.data.inside._profile",
    "mcp_servers.data.inside._links",
    "mcp_servers.data.inside._looking",
    "mcp_servers.data.inside._answering",
)
"""Each after those that it imports."""

_START: Final = """
import json, sys, types
given = json.load(sys.stdin)
for name, source in given["modules"]:
    for end in [*[i for i, c in enumerate(name) if c == "."], None]:
        sys.modules.setdefault(name[:end], types.ModuleType(name[:end]))
    exec(compile(source, name, "exec"), vars(sys.modules[name]))
sys.modules[given["modules"][-1][0]].main(given["request"])
"""
COMMAND: Final = ("python3", "-I", "-c", _START)
"""What to run; it reads `input_of` a request and answers with JSON."""


def input_of(request: Mapping[str, object]) -> bytes:
    """What the program reads."""
    return json.dumps({"modules": _sources(), "request": request}).encode()


@cache
def _sources() -> list[tuple[str, str]]:
    root = Path(mcp_servers.__file__).parents[1]
    return [(name, (root / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")) for name in _MODULES]
