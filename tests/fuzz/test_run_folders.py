"""Folders of runs with damaged files: each gives data, or one line for what can't be read."""

import gzip
import resource
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from agentflow import synthesize
from agentflow.dashboard import PageData, write_bundle
from agentflow.errors import AgentFlowError
from agentflow.inspection import open_runs
from tests.agentflow.learner.test_token_page import write_run
from tests.fuzz._budget import FuzzBudget, FuzzCase, fuzzed

MAX_GROWTH = 300 << 20
SETTINGS = b"""journal: &j postgresql://me@127.0.0.1:9/runs
run_name: run
schedule: {steps: 3, steps_per_batch: 2}
policy: {model: nowhere/model}
loss: {filter_groups: true, train_cut: false, clip: [0.2, 0.28]}
solve: agent.py:solve
more: {a: *j, b: !!binary aGk=, c: 2020-02-02, ? [1, 2] : 0b1}
"""


@pytest.fixture(scope="module")
def synthesis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a synthesis with a small journal."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    words = ["max_depth=2", "depth_threshold=1", "control=false", f"output_dir={folder}"]
    synthesize(seeds=["Explore the ferries"], overrides=words, progress=False)
    return folder


def memory() -> int:
    """Return the highest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def open_all(folder: Path, page: Path) -> None:
    """Read everything that a page shows of a folder; what can't be read must be one line."""
    before = memory()
    try:
        with open_runs(folder) as runs:
            troubles = [run.trouble for run in runs.runs()]
            write_bundle(PageData(runs), page)
    except AgentFlowError as error:
        troubles = [str(error)]
    finally:
        shutil.rmtree(page, ignore_errors=True)
    assert all("\n" not in trouble and len(trouble) < 5_000 for trouble in troubles)
    assert memory() - before < MAX_GROWTH


def mutate_journal(case: FuzzCase, data: bytes) -> bytes:
    """Change some bytes of a journal: often in place, so that its pages stay where they are, or cut it."""
    changed = bytearray(data)
    if case.randrange(4) == 0:
        return bytes(changed[: case.randrange(len(changed))])
    for _ in range(case.choice((1, 3, 30, 300))):
        # The first pages have the header and the statements of the tables.
        place = case.randrange(case.choice((100, 16_384, len(changed))))
        changed[place] = case.choice((0, 255, case.randrange(256), changed[place] ^ 1 << case.randrange(8)))
    return bytes(changed)


def damage_records(case: FuzzCase, file: Path) -> None:
    """Replace values of the tables by mutated ones, or by values of another type."""
    with closing(sqlite3.connect(file)) as journal, journal:
        tables = ("runs", "seeds", "entries", "harvests", "blobs", "usage")
        for _ in range(case.choice((1, 2, 8))):
            table = f"agentflow_{case.choice(tables)}"
            rows = journal.execute(f"SELECT rowid, * FROM {table}").fetchall()
            columns = [row[1] for row in journal.execute(f"PRAGMA table_info({table})")]
            if not rows:
                continue
            place, (row, *values) = case.randrange(len(columns)), case.choice(rows)
            value = values[place]
            if isinstance(value, bytes):
                other = case.mutated(value)
            else:
                other = case.choice((-1, 2**40, 1.5, "x/y", b"{}", "", f"{value}/0", "\0"))
            with suppress(sqlite3.IntegrityError):
                journal.execute(f"UPDATE {table} SET {columns[place]} = ? WHERE rowid = ?", (other, row))


@fuzzed
@pytest.mark.promise("inspection:damage")
def test_a_damaged_journal_gives_data_or_one_line(
    budget: FuzzBudget, synthesis: Path, tmp_path: Path
) -> None:
    whole = (synthesis / "journal.db").read_bytes()
    folder = tmp_path / "run"
    shutil.copytree(synthesis, folder)
    for case in budget.cases(short=60):
        with case:
            (folder / "journal.db").write_bytes(mutate_journal(case, whole))
            open_all(folder, tmp_path / "page")


@fuzzed
@pytest.mark.promise("inspection:damage")
def test_damaged_records_in_a_sound_journal_give_data_or_one_line(
    budget: FuzzBudget, synthesis: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for case in budget.cases(short=60):
        with case:
            shutil.copytree(synthesis, folder)
            damage_records(case, folder / "journal.db")
            open_all(folder, tmp_path / "page")
            shutil.rmtree(folder)


@fuzzed
@pytest.mark.promise("inspection:damage")
def test_damaged_files_of_a_training_give_data_or_one_line(budget: FuzzBudget, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_bytes(b'{"step": 3, "reward": 0.5, "loss": null, "usage/calls": 7}\n')
    step = "rollouts/step_000003.jsonl.gz"
    files = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "settings.yaml", step)}
    files["settings.yaml"] += (
        SETTINGS[SETTINGS.index(b"schedule") :].replace(b"policy", b"other").replace(b"loss", b"x")
    )
    for case in budget.cases(short=80):
        with case:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            name = case.choice((*files, step))
            data = files[name]
            if name == step and case.randrange(3):
                data = gzip.compress(case.mutated(gzip.decompress(data)))
            else:
                data = case.mutated(data)
            (folder / name).write_bytes(data)
            open_all(folder, tmp_path / "page")


@fuzzed
@pytest.mark.promise("inspection:damage")
def test_damaged_settings_of_a_folder_give_data_or_one_line(budget: FuzzBudget, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for case in budget.cases(short=150):
        with case:
            (folder / "settings.yaml").write_bytes(case.mutated(SETTINGS))
            open_all(tmp_path, tmp_path / "page")
