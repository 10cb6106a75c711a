"""Verified tasks from a synthesis: the printed configurations with the fake endpoint, and offline."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal

import pytest

from agentflow.cli._synth import print_summary
from agentflow.errors import ConfigurationError
from agentflow.journal import NewSeed
from agentflow.synthesis import TASKS, SynthesisConfig, load_config
from agentflow.testing.endpoint import fake_endpoint
from tests.agentflow.synthesis._runs import contents, run_to_the_end

CONFIGS = Path(__file__).parents[3] / "configs" / "synthesis"
SMALL = ("number_of_seed=1", "control=false")
SEEDS = {
    "terminal": NewSeed("Notes of a harbour master"),
    "embodied": NewSeed("A household", {"seed": 5, "task": "find"}),
}


@pytest.fixture(scope="module")
async def endpoint(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[str]:
    async with fake_endpoint() as url:
        yield url


def settings_of(name: str, folder: Path, *more: str) -> SynthesisConfig:
    """Return the settings of a printed configuration, for a small tree."""
    shape = (
        ("max_depth=3", "depth_threshold=2", "max_selected_traj=1")
        if name == "terminal"
        else ("max_depth=8", "depth_threshold=2")
    )
    return load_config(CONFIGS / f"{name}.yaml", [*SMALL, *shape, f"output_dir={folder}", *more])


def tasks_in(folder: Path) -> list[dict[str, Any]]:
    """Return the tasks in the file."""
    return [json.loads(line) for line in (folder / TASKS).read_text(encoding="utf-8").splitlines()]


@pytest.mark.promise("tasks:synthesis")
@pytest.mark.parametrize("name", sorted(SEEDS))
async def test_the_printed_configurations_keep_tasks_with_the_fake_endpoint(
    name: str, tmp_path: Path, endpoint: str
) -> None:
    config = settings_of(
        name, tmp_path, "model_name=fake", f"base_url={endpoint}", "api_key=x", "vision=false"
    )
    _, report = await run_to_the_end(config, [SEEDS[name]])
    tasks = tasks_in(tmp_path)
    assert report.tasks == len(tasks) > 0, report
    assert report.why_empty == ""
    for task in tasks:
        assert task["kind"] == name
        assert task["source_id"] == "seed_001"
        assert {"no_op"} < {each["name"].partition("/")[0] for each in task["wrong"]}
    assert report.usage["generator"].calls >= len(tasks)


@pytest.mark.promise("tasks:synthesis")
async def test_a_synthesis_without_a_model_keeps_the_same_tasks_with_any_number_of_calls_in_flight(
    tmp_path: Path,
) -> None:
    files: list[dict[str, bytes]] = []
    for number, folder in enumerate((tmp_path / "one", tmp_path / "many")):
        config = settings_of(
            "embodied", folder, "model_name=offline", f"max_concurrency={1 + 63 * number}", f"max_open_trees={1 + 3 * number}",
            "number_of_seed=3",
        )  # fmt: skip
        _, report = await run_to_the_end(
            config, [NewSeed(f"Household {seed}", {"seed": seed}) for seed in range(3)]
        )
        assert report.tasks == 3
        files.append(contents(folder) | {TASKS: (folder / TASKS).read_bytes()})
    assert files[0] == files[1]


@pytest.mark.soak
@pytest.mark.promise("tasks:synthesis")
async def test_the_printed_desktop_keeps_a_task_without_a_model(tmp_path: Path) -> None:
    words = ("number_of_seed=1", "control=false", "model_name=offline", "max_depth=8")
    config = load_config(CONFIGS / "gui.yaml", [*words, f"output_dir={tmp_path}"])
    _, report = await run_to_the_end(
        config, [NewSeed("Reports", {"command": "echo one > april.txt; echo two > june.txt"})]
    )
    [task] = tasks_in(tmp_path)
    assert (report.tasks, task["kind"]) == (1, "gui")
    assert {each["expected"]["thing"].partition("/")[0] for each in task["verifier"]} == {"results"}


@pytest.mark.promise("tasks:synthesis:shown")
async def test_a_finished_run_shows_a_task_with_what_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings_of("embodied", tmp_path, "model_name=offline")
    run, report = await run_to_the_end(config, [SEEDS["embodied"]])
    print_summary(run, report)
    shown = " ".join(capsys.readouterr().out.split())
    [task] = tasks_in(tmp_path)
    assert (
        f"One of the tasks {task['instruction']} Checked afterwards - {task['verifier'][0]['says']}" in shown
    )
    assert "tasks 1 written; rejected: none" in shown
    assert TASKS in shown


@pytest.mark.promise("tasks:synthesis:refused")
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("terminal", "available_tools=[code_run]", "tasks: terminal needs the tool bash_run; add it to available_tools"),
        (
            "embodied",
            "resource_init_configs.world.evaluate=false",
            "tasks: embodied needs the tool world_inspect; set resource_init_configs.world.evaluate=true",
        ),
    ],
)  # fmt: skip
async def test_missing_tools_are_refused_in_one_line(
    name: str, change: str, message: str, tmp_path: Path
) -> None:
    config = settings_of(name, tmp_path, "model_name=offline", change)
    with pytest.raises(ConfigurationError) as refused:
        await run_to_the_end(config, [SEEDS[name]])
    assert str(refused.value) == message


@pytest.mark.promise("tasks:synthesis")
async def test_a_run_whose_states_never_differ_says_why_it_is_empty(tmp_path: Path) -> None:
    config = settings_of("embodied", tmp_path, "model_name=offline", "max_depth=3")
    _, report = await run_to_the_end(config, [NewSeed("A household", {"seed": 1})])
    assert report.tasks == 0
    assert "no state differs" in report.why_empty or "every task was rejected" in report.why_empty
