"""Data-analysis tasks over real files."""

import csv
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.errors import ConfigurationError, ModelFailureKind
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.tasks import (
    DerivationSettings,
    DerivedTasks,
    TaskAttempt,
    TaskKind,
    TaskProblem,
    check_task,
    open_data_analysis,
)
from agentflow.tasks.inside._data_programs import perturb, perturb_folder, relocate
from agentflow.trace import (
    Action,
    ActionOutcome,
    Failure,
    IndependentSolutionRequest,
    Node,
    Observation,
    Text,
    Verdict,
)
from tests.agentflow.tasks._generators import Current, Scripted
from tests.agentflow.tasks._shop import OfflineTasks, seed_tree, shop_files

LOAD = "import csv\nrows = list(csv.DictReader(open('/data/orders.csv')))\n"
TOTAL = f"{LOAD}print(sum(int(row['pieces']) for row in rows if row['kind'] == 'rope'))"
QUESTION = "How many pieces of rope were ordered in all orders together?"


@asynccontextmanager
async def data_analysis(
    folder: Path, generator: OfflineTasks, max_tasks: int = 1
) -> AsyncGenerator[TaskKind]:
    """Open the kind over a directory; yields it."""
    backends: dict[str, dict[str, object]] = {"data": {"folder": str(folder)}}
    async with (
        Sandbox(SandboxSettings(backends=backends)) as sandbox,
        open_data_analysis(sandbox, generator, DerivationSettings(max_tasks=max_tasks)) as kind,
    ):
        yield kind


@asynccontextmanager
async def shop(tmp_path: Path) -> AsyncGenerator[Callable[..., Awaitable[DerivedTasks]]]:
    """Open the files of a shop; yields a function that derives tasks with a generator, and nodes of the tree."""
    current = Current()
    async with data_analysis(shop_files(tmp_path / "data"), current) as kind:

        async def derive(generator: OfflineTasks, *nodes: Node) -> DerivedTasks:
            current.answering = generator
            return await kind.derive(seed_tree("Orders of the shop", *nodes), Page())

        yield derive


async def check_all(folder: Path, most: int) -> int:
    """Derive tasks of a shop and check them; return their number."""
    async with data_analysis(folder, OfflineTasks(knows="42"), most) as kind:
        page = Page()
        derived = await kind.derive(seed_tree("Orders of the shop"), page)
        for task in derived.tasks:
            check = await check_task(task, kind, page)
            assert check.findings == ()
            names = {trial.attempt for trial in check.trials}
            assert names >= {"gold", "initial", "no_op", "closed_book/1"}
            assert any(name.startswith("other_data/") for name in names)
        return len(derived.tasks)


@pytest.mark.promise("tasks:data:generated")
async def test_generated_tasks_accept_their_answer_and_nothing_else(tmp_path: Path) -> None:
    assert await check_all(shop_files(tmp_path / "data"), 4) == 4


@pytest.mark.soak
@pytest.mark.promise("tasks:data:generated")
async def test_forty_generated_tasks_accept_their_answer_and_nothing_else(tmp_path: Path) -> None:
    counts = [await check_all(shop_files(tmp_path / f"data{seed}", seed), 8) for seed in range(6)]
    assert sum(counts) >= 40


@pytest.mark.promise("tasks:data:rejected")
@pytest.mark.promise("tasks:data:closed_book")
async def test_a_program_without_a_good_question_is_rejected_with_the_reason(tmp_path: Path) -> None:
    other = TOTAL.replace("rope", "sail")
    cases = [
        (Scripted("print(7)", QUESTION), TaskProblem.CONSTANT),
        (Scripted(f"{LOAD}print(rows[0].keys())", QUESTION), TaskProblem.EMPTY_RESULT),
        (Scripted(f"{LOAD}print(len(rows) / 7)", QUESTION), TaskProblem.NO_GOLD),
        (Scripted(f"{LOAD}print(rows[0]['none'])", QUESTION), TaskProblem.NO_GOLD),
        (Scripted("open('/data/orders.csv', 'w').write('')", QUESTION), TaskProblem.NO_GOLD),
        (Scripted("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", QUESTION), TaskProblem.NO_GOLD),
        (Scripted("print(", QUESTION), TaskProblem.NO_GOLD),
        (Scripted(TOTAL, QUESTION, (other,)), TaskProblem.AMBIGUOUS),
        (Scripted(TOTAL, QUESTION, ("print(int('x'))",)), TaskProblem.AMBIGUOUS),
        (Scripted(TOTAL, f"What does {TOTAL} print?"), TaskProblem.LEAK),
        (Scripted(TOTAL, "?"), TaskProblem.BAD_INSTRUCTION),
        (Scripted(TOTAL, Failure(ModelFailureKind.BAD_REQUEST, "no")), TaskProblem.MODEL_FAILED),
    ]
    async with shop(tmp_path) as derive:
        (task,) = (await derive(Scripted(TOTAL, QUESTION))).tasks
        known = Scripted(TOTAL, QUESTION, knows=f"It is {task.metadata['answer']}.")
        for generator, problem in [*cases, (known, TaskProblem.CLOSED_BOOK)]:
            derived = await derive(generator)
            assert derived.tasks == ()
            assert {one.findings[0].problem for one in derived.rejected} == {problem}, derived.rejected


@pytest.mark.promise("tasks:data:typed")
@pytest.mark.promise("tasks:data:blind")
@pytest.mark.promise("tasks:data:tree")
async def test_answers_are_compared_by_type_and_solved_again_without_the_program(tmp_path: Path) -> None:
    explored = Node(
        id="node_7",
        parent=None,
        depth=1,
        position=0,
        intent="sum",
        action=Action("data_run", {"code": TOTAL}),
        outcome=ActionOutcome(Observation((Text("done"),))),
        verdict=Verdict.NEW,
    )
    generator = Scripted("print(1)", QUESTION, (TOTAL,))
    async with data_analysis(shop_files(tmp_path / "data"), generator) as kind:
        (task,) = (await kind.derive(seed_tree("Orders", explored), Page())).tasks
        assert task.sources == ("node_7",)
        answer = str(task.metadata["answer"])
        said = {
            answer: True,
            f"In all, {answer} pieces of rope were ordered.": True,
            f"{int(answer.replace(',', '')):,}.0": True,
            str(int(answer.replace(",", "")) + 1): False,
            f"not {answer}": False,
            "": False,
        }
        for text, passes in said.items():
            verdict = await kind.verify(task, TaskAttempt(name="own", answer=text))
            assert verdict.passed is passes, text
        blind = [one for one in generator.requests if isinstance(one, IndependentSolutionRequest)]
        assert len(blind) == 2
        for request in blind:
            told = msgspec.json.encode(request).decode()
            assert "sum(" not in told
            assert f'"{answer}"' not in told


@pytest.mark.promise("tasks:derive:unusable")
async def test_data_that_can_not_be_read_rejects_its_tasks_with_the_reason(tmp_path: Path) -> None:
    folder = shop_files(tmp_path / "data")
    async with data_analysis(folder, OfflineTasks()) as kind:
        folder.chmod(0o000)
        derived = await kind.derive(seed_tree("Orders"), Page())
    with pytest.raises(ConfigurationError, match="can't be read: Permission denied; or set tasks=questions"):
        async with data_analysis(folder, OfflineTasks()):
            pass
    folder.chmod(0o755)
    assert derived.tasks == ()
    assert [one.findings[0].problem for one in derived.rejected] == [TaskProblem.UNVERIFIABLE]


@pytest.mark.promise("tasks:data:perturbed")
def test_perturbed_rows_keep_identities_and_change_every_number_in_some_copy() -> None:
    header = ["order_id", "name", "kind", "price", "pieces"]
    rows: list[list[Any]] = [
        [str(at), f"Keeper {at}", ("lamp", "rope")[at % 2], f"{at}.50", str(at % 5)] for at in range(40)
    ]
    originals = {row[0]: row for row in rows}
    touched: set[str] = set()
    for number in range(3):
        changed = perturb(header, rows, number)
        assert changed == perturb(header, rows, number)
        kept = [row[0] for row in changed]
        assert set(kept) < set(originals), "no row was deleted"
        assert len(kept) > len(set(kept)), "no row was added"
        for row in changed:
            assert row[:2] == originals[row[0]][:2]
            assert row[3].endswith(".50")
            assert row[2] in ("lamp", "rope")
        touched |= {row[0] for row in changed if row[4] != originals[row[0]][4]}
    assert len(touched) > 30


@pytest.mark.promise("tasks:data:perturbed")
def test_files_of_each_format_are_perturbed_and_others_copied(tmp_path: Path) -> None:
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    rows = [[at, f"word {at % 3}", at * 1.5] for at in range(20)]
    for name, separator in (("a.csv", ";"), ("deep/b.tsv", "\t")):
        with (data / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=separator).writerows([["id", "word", "value"], *rows])
    table = pyarrow.table({"id": [row[0] for row in rows], "value": [row[2] for row in rows]})
    parquet.write_table(table, data / "c.parquet")
    (data / "empty.csv").write_text("", encoding="utf-8")
    (data / "notes.txt").write_text("as it is", encoding="utf-8")
    perturb_folder(data, tmp_path / "copy", 1)
    for name in ("a.csv", "deep/b.tsv", "c.parquet"):
        assert (tmp_path / "copy" / name).read_bytes() != (data / name).read_bytes(), name
    assert (tmp_path / "copy/notes.txt").read_text(encoding="utf-8") == "as it is"
    assert (tmp_path / "copy/a.csv").read_text(encoding="utf-8").startswith("id;word;value\n")
    assert parquet.read_table(tmp_path / "copy/c.parquet").schema == table.schema


@pytest.mark.promise("tasks:data:perturbed")
@pytest.mark.parametrize(
    ("source", "moved"),
    [
        ("open('/data/a.csv')", "open('/copy/a.csv')"),
        ('folder = "/data"', 'folder = "/copy"'),
        ("open('/database/a.csv')", "open('/database/a.csv')"),
        ("open('/other/data/a.csv')", "open('/other/data/a.csv')"),
    ],
)
def test_programs_read_the_copy_by_the_path_of_the_data(source: str, moved: str) -> None:
    assert relocate(source, "/data", "/copy") == moved
