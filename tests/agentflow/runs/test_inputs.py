"""Input folders and files of a run, as its planner is told about them."""

import os
from pathlib import Path

import pytest

from agentflow.journal import NewSeed
from agentflow.runs._tools import input_lines
from agentflow.sandbox import SandboxSettings
from agentflow.synthesis import SynthesisConfig
from agentflow.testing import fake_endpoint
from tests.agentflow.synthesis._runs import run_to_the_end


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("ports.csv", "ships.csv"):
        (folder / name).write_text("name,year\nVell,1841\n")
    (folder / "notes").mkdir()
    return folder


@pytest.mark.promise("synthesis:config:inputs")
@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        ({"data": {"folder": "{data}"}}, ["/data (read-only): a folder with notes/, ports.csv, ships.csv"]),
        ({"data": {"data_dir": "{data}"}}, ["/data (read-only): a folder with notes/, ports.csv, ships.csv"]),
        ({"files": {"data_dir": "{data}"}}, ["{data} (read-only): a folder with notes/, ports.csv, ships.csv"]),
        ({"document": {"folder": "{data}"}}, ["data (for the document tools): its documents are named by their path in it"]),
        ({"document": {"file_path": "{data}/ports.csv"}}, ["ports.csv (for the document tools): a document of that name"]),
        ({"document": {"seed_path": "{data}"}}, ["data (for the document tools): its documents are named by their path in it"]),
        ({"data": {"folder": "{data}/missing"}}, []),
        ({"rag": {"top_k": 3}, "data": {}}, []),
    ],
)  # fmt: skip
def test_inputs_are_named_by_their_paths_in_the_sandbox(
    data: Path, backends: dict[str, dict[str, object]], expected: list[str]
) -> None:
    filled: dict[str, dict[str, object]] = {
        name: {
            key: value.format(data=data) if isinstance(value, str) else value for key, value in own.items()
        }
        for name, own in backends.items()
    }
    assert input_lines(SandboxSettings(backends=filled)) == tuple(line.format(data=data) for line in expected)


@pytest.mark.promise("synthesis:config:inputs")
def test_mounts_are_inputs_large_folders_are_cut_and_those_of_a_server_are_unknown(data: Path) -> None:
    for number in range(30):
        (data / "notes" / f"{number:02}.txt").touch()
    (line, file) = input_lines(
        SandboxSettings(mounts={"/in": str(data / "notes"), "/one": str(data / "ports.csv")})
    )
    assert line.startswith("/in (read-only): a folder with 00.txt, 01.txt") and line.endswith(
        ", 19.txt and 10 more"
    )
    assert file == "/one (read-only): a file"
    odd = data / "odd"
    odd.mkdir()
    (odd / "a\nb").touch()
    Path(os.fsdecode(os.fsencode(odd) + b"/\xff.csv")).touch()
    assert input_lines(SandboxSettings(mounts={"/odd": str(odd)})) == (
        "/odd (read-only): a folder with a?b, ?.csv",
    )
    server = SandboxSettings(server_url="http://127.0.0.1:1", auto_start=False)
    assert input_lines(server) == ()


@pytest.mark.promise("synthesis:config:inputs")
async def test_the_planner_of_a_run_reads_where_its_data_is_and_the_values_of_its_seed(
    data: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "asked.jsonl"
    async with fake_endpoint(log=asked) as url:
        settings = {
            "model_name": "fake", "base_url": url, "resource_init_configs": {"data": {"folder": str(data)}},
            "available_tools": ["rag_search"], "output_dir": str(tmp_path / "out"), "control": False, "max_depth": 1,
            "branching_factor": 1, "min_depth": 1,
        }  # fmt: skip
        config = SynthesisConfig.model_validate(settings)
        await run_to_the_end(config, [NewSeed("Explore ports.", {"country": "Vell"})])
    planned, written, *_ = asked.read_text(encoding="utf-8").splitlines()
    assert "- /data (read-only): a folder with notes/, ports.csv" in planned
    assert "- country: Vell" in planned and "- country: Vell" in written
