"""Runs whose every text is hostile."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from agentflow._typeguards import is_list, is_object

HOSTILE = (
    "\"'>]]>--></title></style></textarea></script><script>window.ran=1;alert(1)</script><x-evil>"
    "<img src=http://evil.example/x onerror='window.ran=1'><svg onload='window.ran=1'><iframe src=http://evil.example>"
    "<a href='javascript:window.ran=1'>here</a><base href=//evil.example><form action=//evil.example>"
    "<style>*{display:none}</style><meta http-equiv=refresh content='0;http://evil.example'> javascript:alert(1) "
    "\x1b[31mred\x1b]8;;http://evil.example\x07 \x00 \x9b2J \u202eesrever\u2066 \u2028\u2029\r\n\ufeff '); alert(1); (' \\ `${1}` "
    + "w"
    * 3000
)
"""All of them in one text."""
_KEPT = {
    "id", "parent", "node", "node_id", "nodes", "support", "trajectory_id", "sources", "type", "hash", "mime", "asks",
    "verdict", "isolation", "assessment", "ending", "agent", "amount", "value", "check", "operator", "comparison",
    "on_unforkable", "on_missing_tool", "verifier", "verify", "evaluation_metric", "selection_strategy",
}  # fmt: skip
"""Names whose values are ids, numbers or words of a closed set."""
_WIDE = {"list": list(range(5000)), "nan": None, "whole": 2**70, "small": -(2**63), "float": 1e300}


def poisoned(value: Any, text: str, name: str = "") -> Any:  # noqa: ANN401 - JSON
    """Return JSON with a text in place of every free text, and where there was no failure or argument."""
    if is_object(value):
        found = {key: poisoned(own, text, key) for key, own in value.items()}
        if name == "arguments":
            found |= {"__proto__": {"a": text}, "constructor": text, text: text, **_WIDE, "deep": _deep(200)}
        if name == "outcome" and value.get("failure") is None:
            found["failure"] = {"kind": text, "message": text}
        return found
    if is_list(value):
        return [poisoned(own, text, name) for own in value]
    if (
        not isinstance(value, str)
        or name in _KEPT
        or (name == "kind" and value.isascii() and value.islower())
    ):
        return value
    return text


def _deep(depth: int) -> object:
    value: object = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def poison_run(folder: Path, target: Path, text: str) -> Path:
    """Copy the journal of a run with a text in every record, and return the new folder."""
    target.mkdir(parents=True)
    shutil.copy(folder / "journal.db", target)
    (target / "report.json").write_text(json.dumps({"failures": {text: 1}}), encoding="utf-8")
    with sqlite3.connect(target / "journal.db") as journal:
        for table, column, key in (
            ("agentflow_runs", "settings", "id"),
            ("agentflow_seeds", "body", "number"),
            ("agentflow_harvests", "body", "seed"),
            ("agentflow_entries", "body", "key"),
        ):
            for row, place, body in journal.execute(f"SELECT rowid, {key}, {column} FROM {table}").fetchall():
                if str(place).startswith("level/"):
                    continue
                changed = json.dumps(poisoned(json.loads(body), text), ensure_ascii=False)
                kind = changed if isinstance(body, str) else changed.encode()
                journal.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (kind, row))
        journal.execute("UPDATE agentflow_runs SET name = ?", (text.replace("\0", ""),))
    journal.close()
    return target
