"""The loaders of other trainers read exported folders and keep every row."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow.exports import ExportFormat, Take
from agentflow.exports._run import write_export
from agentflow.testing import TINY_MODEL
from tests._vllm import make_tiny_model
from tests.agentflow.exports._trees import MixedSource, rows
from tests.trainers._environments import drive, trainer_python

pytestmark = pytest.mark.soak

Export = Callable[[Path, str], Path]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model with its tokenizer."""
    make_tiny_model(folder := tmp_path_factory.mktemp("model"))
    return folder


@pytest.fixture(params=["synthesis", "rollout", "mixed"])
def export(request: pytest.FixtureRequest, exported: Export, tmp_path: Path) -> Callable[[str], Path]:
    """Export a synthesis, a rollout, or trees with masked calls, images and different schemas, in a format."""

    def write(format: str) -> Path:
        if request.param != "mixed":
            return exported(request.getfixturevalue(request.param), format)
        (folder := tmp_path / format).mkdir()
        write_export(MixedSource(), ExportFormat(format), Take.ALL, folder, split=True)
        return folder

    return write


def parquet_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all splits, in order."""
    from pyarrow import parquet

    tables: list[Any] = [parquet.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    return [row for table in tables for row in table.to_pylist()]


def spoken(message: dict[str, Any]) -> str:
    """Return what a model writes for a message, its calls in the notation of Hermes."""
    calls = [
        {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
        for call in message.get("tool_calls", ())
    ]
    shown = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    return "\n".join([message["content"], *shown]) + "<|im_end|>"


def texts(messages: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the texts of messages."""
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        yield from (part["text"] for part in parts if part["type"] == "text")


@pytest.mark.promise("exports:llamafactory")
@pytest.mark.parametrize("kind", ["synthesis", "rollout"])
def test_llama_factory_keeps_every_row_with_its_calls(
    kind: str, request: pytest.FixtureRequest, exported: Export, tmp_path: Path
) -> None:
    folder = exported(request.getfixturevalue(kind), "sharegpt")
    given = rows(folder / "train.jsonl")
    found = drive("llamafactory", "llamafactory_rows.py", folder, TINY_MODEL, scratch=tmp_path)
    assert len(found["rows"]) == len(found["trained"]) == len(given) > 0
    for row, converted, trained in zip(given, found["rows"], found["trained"], strict=True):
        turns = row["conversations"]
        assert len(converted["roles"]) == len(turns)
        calls = [json.loads(turn["value"]) for turn in turns if turn["from"] == "function_call"]
        assert converted["calls"] == calls
        assert converted["answer"] == [turns[-1]["value"]]
        assert converted["tools"] == (json.loads(row["tools"]) if "tools" in row else None)
        assert all(call["name"] in trained for own in calls for call in own)
        assert turns[-1]["value"] in trained
        assert not any(turn["value"] in trained for turn in turns if turn["from"] == "observation")


@pytest.mark.promise("exports:axolotl_loader")
def test_axolotl_keeps_every_row_and_trains_exactly_the_marked_messages(
    export: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    folder = export("axolotl")
    found = drive("axolotl", "axolotl_rows.py", folder, model, "qwen_25", scratch=tmp_path)
    files = {file.stem: rows(file) for file in folder.glob("[tv]*.jsonl")}
    assert set(found) == set(files)
    for split, given in files.items():
        # axolotl shuffles the rows.
        marked = [[spoken(message) for message in row["messages"] if message["training"]] for row in given]
        assert sorted(row["trained"] for row in found[split]) == sorted(marked)
        for row in given:
            tools = [json.dumps(tool, ensure_ascii=False) for tool in json.loads(row.get("tools", "[]"))]
            whole = [*tools, *texts(row["messages"])]
            assert any(all(text in one["text"] for text in whole) for one in found[split])


@pytest.mark.promise("exports:verl_loader")
def test_verl_loads_every_conversation_and_its_loss_covers_the_messages_of_the_model(
    export: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    folder = export("verl-sft")
    (template,) = trainer_python("trl").parent.parent.glob(
        "lib/*/site-packages/trl/chat_templates/qwen2_5.jinja"
    )
    found = drive("verl", "verl_rows.py", model, template, f"sft={folder}", scratch=tmp_path)["sft"]
    given = parquet_rows(folder)
    assert len(found) == len(given) > 0
    for row, one in zip(given, found, strict=True):
        messages = row["messages"]
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        # verl also trains the line end that the template writes after each message.
        assert one["trained"] == [f"{text}<|im_end|>\n" for text in said]
        assert all(text in one["text"] for text in texts(messages))


@pytest.mark.promise("exports:verl_loader")
def test_verl_loads_every_task_with_its_index_and_the_arguments_of_its_tools(
    export: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    folder = export("verl-rl")
    found = drive("verl", "verl_rows.py", model, "", f"rl={folder}", scratch=tmp_path)["rl"]
    given = parquet_rows(folder)
    assert len(found) == len(given) > 0
    assert sorted(one["index"] for one in found) == list(range(len(given)))
    for row, one in zip(given, found, strict=True):
        info = row["extra_info"]
        kwargs = json.loads(info["tools_kwargs"])
        assert one["raw_prompt"] == row["prompt"]
        assert one["reward_model"] == row["reward_model"]
        assert one["extra_info"] == {**info, "tools_kwargs": kwargs}
        assert (one["index"], one["tools_kwargs"]) == (info["index"], kwargs)
        assert bool(kwargs) == info["need_tools_kwargs"]


@pytest.mark.promise("exports:verl_loader")
def test_verl_gets_arguments_of_different_types_without_nulls(model: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "data").mkdir()
    write_export(MixedSource(), ExportFormat.VERL_RL, Take.ALL, folder, split=False)
    found = drive("verl", "verl_rows.py", model, "", f"rl={folder}", scratch=tmp_path)["rl"]
    fixed = {"create_kwargs": {"path": "s.csv", "limit": {"rows": 3}}}
    assert [one["tools_kwargs"] for one in found] == [{"rag_search": fixed, "bash_run": fixed}] * 2 + [{}] * 2
