"""Exports of runs with verified tasks, and of pairs that a run did not write."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.exports import Dropped, DropReason, ExportContext, Take, export_run
from agentflow.exports._conversations import openai
from agentflow.exports._task_rows import trl_grpo
from agentflow.synthesis import PAIRS, TASKS
from agentflow.tasks import TaskAttempt, TaskPredicate, VerifiableTask
from agentflow.testing import fake_endpoint
from tests.agentflow.exports._trees import MixedSource, files_of, rows
from tests.agentflow.tasks._shop import shop_database
from tests.behaviour._tree import ROOT

CONFIGS = ROOT / "configs/synthesis"


@pytest.fixture(scope="module")
def households(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a synthesis that derives tasks of state, and no pairs."""
    folder = tmp_path_factory.mktemp("households")
    seeds = [{"content": f"Household {seed}", "kwargs": {"seed": seed}} for seed in (2, 5)]
    return synthesise_tasks(
        "embodied", folder, seeds, "model_name=offline", "max_depth=8", "depth_threshold=2"
    )


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a synthesis that derives queries; those that a node of the tree ran are also pairs."""
    folder = tmp_path_factory.mktemp("queries")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATABASE", str(shop_database(folder / "shop.db")))
        shape = ("max_depth=2", "depth_threshold=1", "min_depth=1")
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_endpoint()) as url:
            model = ("model_name=fake", f"base_url={url}", "api_key=x", "vision=false")
            seeds = [{"content": "Orders, prices and pieces"}]
            return synthesise_tasks("text2sql", folder, seeds, *shape, *model)


def synthesise_tasks(name: str, folder: Path, seeds: list[dict[str, Any]], *settings: str) -> Path:
    """Run a printed configuration; return its output directory."""
    file = folder / "seeds.jsonl"
    file.write_text("".join(json.dumps(seed) + "\n" for seed in seeds), encoding="utf-8")
    given = (f"seeds_file={file}", f"output_dir={folder / 'out'}", "control=false", *settings)
    assert main(["synth", "--config", str(CONFIGS / f"{name}.yaml"), *given]) == 0
    return folder / "out"


def tasks_in(run: Path) -> list[VerifiableTask]:
    """Return the tasks in the file of a run."""
    return [
        msgspec.json.decode(line, type=VerifiableTask) for line in (run / TASKS).read_bytes().splitlines()
    ]


@pytest.mark.promise("exports:tasks")
def test_each_verified_task_is_a_row_with_its_verifier(households: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    tasks = tasks_in(households)
    assert len(tasks) == 2
    for format in ("trl-grpo", "verl-rl", "native"):
        assert export_run(households, format, tmp_path / format).dropped == {}
    for task, row in zip(tasks, rows(tmp_path / "trl-grpo/train.jsonl"), strict=True):
        assert row["prompt"] == [{"role": "user", "content": task.instruction}]
        assert (row["id"], row["references"], row["kwargs"]) == (task.id, [], task.setup.kwargs)
        assert msgspec.convert(row["task"], VerifiableTask) == task
    table: Any = parquet.read_table(tmp_path / "verl-rl/train.parquet")
    for place, (task, row) in enumerate(zip(tasks, table.to_pylist(), strict=True)):
        info = row["extra_info"]
        assert (info["index"], info["id"], info["answers"]) == (place, task.id, [])
        assert msgspec.json.decode(info["task"], type=VerifiableTask) == task
        assert row["reward_model"]["ground_truth"] == ""
    for task, row in zip(tasks, rows(tmp_path / "native/tasks.jsonl"), strict=True):
        assert (row["tree_id"], row["task_id"]) == (task.tree_id, task.id)
        assert msgspec.convert(row["verifier"], tuple[TaskPredicate, ...]) == task.verifier
        assert msgspec.convert(row["gold"], TaskAttempt) == task.gold


@pytest.mark.promise("exports:tasks")
def test_tasks_with_a_path_are_conversations_and_one_row_of_tasks_each(queries: Path, tmp_path: Path) -> None:
    tasks = tasks_in(queries)
    manifest = export_run(queries, "trl-sft", tmp_path / "chats")
    pairs = rows(queries / PAIRS)
    assert 0 < manifest.rows["train.jsonl"] == len(pairs) < len(tasks)
    for pair, row in zip(pairs, rows(tmp_path / "chats/train.jsonl"), strict=True):
        assert (row["id"], row["prompt"][0]["content"]) == (pair["qa_id"], pair["question"])
        assert row["completion"][-1]["content"] == pair["answer"]
    assert export_run(queries, "trl-grpo", tmp_path / "tasks").rows == {"train.jsonl": len(tasks)}
    for task, row in zip(tasks, rows(tmp_path / "tasks/train.jsonl"), strict=True):
        assert (row["id"], row["references"]) == (task.id, [task.gold.answer])


@pytest.mark.promise("exports:killed")
def test_tasks_are_read_from_the_journal_or_from_the_files_alike(
    households: Path, queries: Path, tmp_path: Path
) -> None:
    for name, run in (("households", households), ("queries", queries)):
        copy = tmp_path / name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("journal.db*"))
        for format in ("native", "trl-grpo", *(("trl-prm",) if name == "queries" else ())):
            for source, folder in ((run / "journal.db", "journal"), (copy, "files")):
                export_run(source, format, tmp_path / f"{name}-{format}-{folder}", split=name == "households")
            found, expected = (
                {
                    file: data
                    for file, data in files_of(folder)
                    if file.endswith("l") and "dropped" not in file
                }
                for folder in (tmp_path / f"{name}-{format}-journal", tmp_path / f"{name}-{format}-files")
            )
            assert found == expected


@pytest.mark.promise("exports:tasks")
def test_a_format_of_conversations_says_that_a_run_has_only_tasks(households: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="verified tasks, which verl-rl, trl-grpo, native") as caught:
        export_run(households, "trl-sft", tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.promise("exports:surplus")
def test_a_task_that_the_run_did_not_write_is_surplus(households: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(households, tmp_path / "run")
    kept, left_out = (copy / TASKS).read_text(encoding="utf-8").splitlines()
    (copy / TASKS).write_text(kept + "\n", encoding="utf-8")
    for format in ("trl-grpo", "native"):
        assert export_run(copy, format, tmp_path / format).dropped == {"surplus": 1}
        (dropped,) = rows(tmp_path / format / "dropped.jsonl")
        assert dropped["id"] == json.loads(left_out)["id"]


@pytest.mark.promise("exports:surplus")
def test_a_pair_that_the_run_did_not_write_is_surplus_unless_all_are_taken() -> None:
    tree = next(MixedSource().records())
    first, second = tree.answers
    given = msgspec.structs.replace(
        tree, answers=(msgspec.structs.replace(first, right=False, surplus=True), second)
    )
    expected = Dropped(tree.group, first.id, DropReason.SURPLUS)
    found = list(openai([given], ExportContext(take=Take.CORRECT)))
    assert [one for one in found if isinstance(one, Dropped)] == [expected]
    assert expected not in list(openai([given], ExportContext(take=Take.ALL)))
    assert expected in list(trl_grpo([given], ExportContext()))
