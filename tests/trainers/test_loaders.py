"""The loaders of other trainers read exported folders and keep every row."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentflow.testing import TINY_MODEL
from tests.agentflow.exports._trees import rows
from tests.trainers._environments import drive

pytestmark = pytest.mark.soak

Export = Callable[[Path, str], Path]


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
