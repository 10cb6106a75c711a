"""Text-to-SQL and data-analysis tasks from a synthesis: the printed configurations, and offline."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from agentflow.errors import ConfigurationError
from agentflow.journal import NewSeed
from agentflow.rollouts.benchmarks import load_tasks
from agentflow.synthesis import TASKS, SynthesisConfig, load_config
from agentflow.tasks import VerifiableTask
from agentflow.testing.endpoint import fake_endpoint
from tests.agentflow.synthesis._runs import contents, run_to_the_end
from tests.agentflow.tasks._shop import shop_database, shop_files

ROOT = Path(__file__).parents[3]
SEED = NewSeed("Sales of the shop: orders, prices and pieces")
KINDS = ("text2sql", "data_analysis")


@pytest.fixture(scope="module")
async def endpoint(anyio_backend: Literal["asyncio"]) -> AsyncGenerator[str]:
    async with fake_endpoint() as url:
        yield url


def settings_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str, out: str = "out"
) -> SynthesisConfig:
    """Return the settings of a printed configuration over a shop, for a small tree."""
    if not (tmp_path / "shop.db").exists():
        shop_database(tmp_path / "shop.db")
        shop_files(tmp_path / "data")
    monkeypatch.setenv("DATABASE", str(tmp_path / "shop.db"))
    monkeypatch.setenv("DATA", str(tmp_path / "data"))
    small = ("number_of_seed=1", "control=false", "max_depth=2", "depth_threshold=1", "min_depth=1")
    chosen = [*small, "max_selected_traj=2", f"output_dir={tmp_path / out}", *more]
    return load_config(ROOT / f"configs/synthesis/{name}.yaml", chosen)


def tasks_in(folder: Path) -> list[VerifiableTask]:
    """Return the tasks in the file."""
    lines = (folder / TASKS).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=VerifiableTask) for line in lines]


@pytest.mark.promise("tasks:solutions")
@pytest.mark.parametrize("name", KINDS)
async def test_the_printed_configurations_keep_tasks_with_the_fake_endpoint(
    name: str, tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ("model_name=fake", f"base_url={endpoint}", "api_key=x", "vision=false")
    _, report = await run_to_the_end(settings_of(name, tmp_path, monkeypatch, *model), [SEED])
    tasks = tasks_in(tmp_path / "out")
    assert report.tasks == len(tasks) == 2, report
    for task in tasks:
        assert task.kind == name
        assert task.instruction.startswith("How many rows of ")
        assert task.metadata["agreed"] == 2
        assert len(task.wrong) > 2
    calls = report.usage["generator"].calls
    assert calls <= 25 * len(tasks)


@pytest.mark.promise("tasks:solutions")
@pytest.mark.parametrize("name", KINDS)
async def test_a_rollout_reads_the_tasks_of_a_synthesis_without_a_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[dict[str, bytes]] = []
    for number, out in enumerate(("one", "many")):
        config = settings_of(
            name, tmp_path, monkeypatch, "model_name=offline", f"max_concurrency={1 + 63 * number}", out=out
        )
        _, report = await run_to_the_end(config, [SEED])
        assert report.tasks == 2
        files.append(contents(tmp_path / out) | {TASKS: (tmp_path / out / TASKS).read_bytes()})
    assert files[0] == files[1]
    tasks = tasks_in(tmp_path / "one")
    read = load_tasks(tmp_path / "one" / TASKS)
    assert [task.id for task in read] == [task.id for task in tasks]
    assert [task.question for task in read] == [task.instruction for task in tasks]
    assert [task.kwargs for task in read] == [task.setup.kwargs for task in tasks]
    assert all(task.references for task in read)


@pytest.mark.promise("tasks:solutions:refused")
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("text2sql", "available_tools=[files_read]", "tasks: text2sql needs a tool of the backend sql; add it"),
        ("data_analysis", "resource_init_configs.data.folder=null", "tasks: data_analysis needs a data directory"),
    ],
)  # fmt: skip
async def test_unusable_settings_are_refused_in_one_line(
    name: str, change: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings_of(name, tmp_path, monkeypatch, "model_name=offline", change)
    with pytest.raises(ConfigurationError, match=message) as refused:
        await run_to_the_end(config, [SEED])
    assert "\n" not in str(refused.value)


@pytest.mark.promise("tasks:solutions")
async def test_the_documented_data_analysis_verifies_in_its_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    documented = json.loads(
        (Path(__file__).parent / "documented/data_analysis.json").read_text(encoding="utf-8")
    )
    documented["resource_init_configs"]["filesystem"]["data_dir"] = str(shop_files(tmp_path / "data"))
    small = {
        "max_depth": 1,
        "min_depth": 1,
        "max_selected_traj": 1,
        "model_name": "offline",
        "control": False,
    }
    config = SynthesisConfig.model_validate(
        {**documented, **small, "tasks": "data_analysis", "output_dir": str(tmp_path / "out")}
    )
    _, report = await run_to_the_end(config, [SEED])
    assert list(report.dropped_tools) == ["web_search"]
    assert report.tasks == 1
    (task,) = tasks_in(tmp_path / "out")
    assert f"The data files are in {tmp_path / 'data'}." in task.instruction
