# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""Data sets as the `datasets` library reads them back, with tools of different schemas."""

import json
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from agentflow._typeguards import is_list, is_mapping
from agentflow.exports import ExportContext, ExportRow, export_run
from agentflow.exports._parquet import ParquetTable
from agentflow.exports._task_rows import VERL_RL_COLUMNS, verl_rl
from agentflow.inspection import SeedRecord
from agentflow.models import ToolSpec
from tests.agentflow.exports._trees import answer, node, program_of, rows, tree_of


class Load(Protocol):
    """Loads the rows of a data set."""

    def __call__(self, *names: str, **more: str) -> list[dict[str, Any]]: ...


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `datasets` keep its files in the folder of the test."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import config, disable_progress_bars

    disable_progress_bars()
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def load(cache: None) -> Load:
    import datasets

    def read(*names: str, **more: str) -> list[dict[str, Any]]:
        found: Any = datasets.load_dataset(*names, split="train", **more)
        return list(found)

    return read


def has_nulls(value: object) -> bool:
    if is_mapping(value):
        return any(own is None or has_nulls(own) for own in value.values())
    return is_list(value) and any(has_nulls(own) for own in value)


CALLS = [
    {"name": "a", "arguments": {"query": "x"}},
    {"name": "b", "arguments": {"limit": 3, "deep": [{"c": 1}]}},
]


@pytest.mark.promise("exports:json")
def test_json_of_different_shapes_comes_back_without_nulls(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = ParquetTable(path, {"id": "int", "calls": "[json]", "tool": "json"})
    for number, call in enumerate(CALLS):
        table.add({"id": number, "calls": CALLS[: number + 1], "tool": call})
    table.add({"id": 2, "calls": None, "tool": None})
    table.close()
    found = load("parquet", data_files=str(path))
    assert [one["tool"] for one in found] == [*CALLS, None]
    assert [one["calls"] for one in found] == [CALLS[:1], CALLS, None]


@pytest.mark.promise("exports:json")
def test_rows_come_back_by_the_card_as_they_were_written(load: Load, synthesis: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sharegpt"
    export_run(synthesis, "sharegpt", folder)
    found = load(str(folder))
    assert found == rows(folder / "train.jsonl")
    assert not has_nulls([row["conversations"] for row in found])
    export_run(synthesis, "parquet", tmp_path / "tables")
    export_run(synthesis, "native", tmp_path / "native")
    assert load(str(tmp_path / "tables"), "nodes") == rows(tmp_path / "native" / "nodes.jsonl")


@pytest.mark.promise("exports:programs")
@pytest.mark.parametrize("format", ["trl-sft", "trl-kto", "trl-prm", "trl-grpo", "native"])
def test_the_program_of_a_card_loads_the_rows_as_they_were_written(
    cache: None, synthesis: Path, tmp_path: Path, format: str
) -> None:
    folder = tmp_path / format
    export_run(synthesis, format, folder)
    program = program_of((folder / "README.md").read_text(encoding="utf-8"))
    loading = [line for line in program.splitlines() if "load_dataset" in line]
    loaded: dict[str, Any] = {}
    exec("\n".join(loading).replace("FOLDER", str(folder)), loaded)
    file, name = ("nodes.jsonl", "nodes") if format == "native" else ("train.jsonl", "rows")
    written = rows(folder / file)
    # A column of text that holds JSON is declared as JSON.
    own = [{**row, "tools": json.loads(row["tools"])} if "tools" in row else row for row in written]
    found = list(loaded[name])
    assert found == own
    assert not has_nulls([row.get("completion") for row in found])


@pytest.mark.promise("exports:verl")
def test_verl_gets_tasks_with_index_and_fixed_arguments(load: Load, tmp_path: Path) -> None:
    nodes = (node("r", None, 0), node("a", "r", 1))
    pair = answer(nodes, "q", "a")
    tree = SeedRecord(
        tree=tree_of(nodes),
        is_episode=False,
        answers=(replace(pair, references=("1834",)),),
        facts={"kwargs": {"db_id": "shop"}},
    )
    path = tmp_path / "train.parquet"
    table = ParquetTable(path, VERL_RL_COLUMNS)
    export = ExportContext(tools=[ToolSpec("sql_query", "Query.", {})])
    for one in verl_rl([tree, tree], export):
        assert isinstance(one, ExportRow)
        table.add(one.values)
    table.close()
    found = load("parquet", data_files=str(path))
    assert [one["extra_info"]["index"] for one in found] == [0, 1]
    assert found[0]["extra_info"]["tools_kwargs"] == {"sql_query": {"create_kwargs": {"db_id": "shop"}}}
    assert found[0]["reward_model"] == {"style": "rule", "ground_truth": "1834"}
    assert found[0]["prompt"] == [{"role": "user", "content": "Question q?"}]


@pytest.mark.promise("exports:verl")
def test_verl_gets_conversations_of_plain_strings(synthesis: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    export_run(synthesis, "verl-sft", tmp_path / "data")
    table: Any = parquet.read_table(tmp_path / "data" / "train.parquet")
    for messages in table["messages"].to_pylist():
        assert [set(said) for said in messages] == [{"role", "content"}] * len(messages)
        assert all(isinstance(said["content"], str) for said in messages)
        assert "<tool_call>\n" in messages[2]["content"]
