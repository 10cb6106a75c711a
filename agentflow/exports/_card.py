"""Dataset card: `README.md` of an export, with the files of each split and the types of their columns."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from agentflow.exports._rows import COLUMNS, STRUCTS
from agentflow.exports._writing import DROPPED, ExportManifest

_AGENT: Final = (
    "The conversations retell each path as one agent that calls tools. No model read these prompts: in the run, a planner,\n"
    "an executor and a verifier read prompts of their own."
)
_CALLS: Final = "Each row is what one model call read and sampled."


def dataset_card(
    manifest: ExportManifest,
    tables: Mapping[str, Mapping[str, str]],
    columns: Mapping[str, Mapping[str, str]],
    usage: str,
) -> str:
    """Return the card.

    :param tables: file of each split, by table.
    :param columns: types of columns by name and table.
    :param usage: text on how to use the rows.
    """
    alone = set(tables) == {"train"}
    names = {table: "default" if alone else table for table in tables}
    configs = [
        {
            "config_name": names[table],
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
        }
        for table, splits in tables.items()
    ]
    infos = [
        {
            "config_name": names[table],
            "features": _features(columns[table]),
        }
        for table in tables
    ]
    run = manifest.run
    head: dict[str, Any] = {
        "pretty_name": f"{run['kind']} {run['key'][:8]} as {manifest.format}",
        "tags": ["agentflow", "agent-trajectories", manifest.format],
        "configs": configs,
        "dataset_info": infos[0] if len(infos) == 1 else infos,
    }
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{front}---\n\n" + "\n\n".join(_body(manifest, usage)) + "\n"


def _body(manifest: ExportManifest, usage: str) -> list[str]:
    run = manifest.run
    how = f"with `--take {manifest.take}` and `--view {manifest.view}`"
    parts = [
        f"# {manifest.format}",
        f"Written by `agentflow export` from the {run['kind']} `{run['key']}`, {how}.",
        _AGENT if manifest.view == "agent" else _CALLS,
        usage.strip(),
        _table(("file", "rows"), [(f"`{name}`", str(count)) for name, count in manifest.rows.items()]),
    ]
    if manifest.split:
        parts.append("`validation` holds a tenth of the seeds or tasks; no seed or task is in both.")
    if manifest.dropped:
        counts = [(f"`{reason}`", str(count)) for reason, count in manifest.dropped.items()]
        parts += [f"Left out; `{DROPPED}` names each:", _table(("reason", "number"), counts)]
    parts += [f"- {note}" for note in manifest.notes]
    return parts


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _card_type(kind: str) -> dict[str, Any]:
    """Return a column type in the notation of dataset cards."""
    inner = kind.strip("[]")
    is_list = kind.startswith("[")
    if fields := STRUCTS.get(inner):
        return {"list" if is_list else "struct": _features(fields)}
    return {"list": COLUMNS[inner]} if is_list else {"dtype": COLUMNS[inner]}


def _features(columns: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, **_card_type(kind)} for name, kind in columns.items()]
