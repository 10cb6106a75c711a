"""Reading journals: states, changes, size, what is no journal."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from agentflow.errors import ConfigurationError
from agentflow.inspection import RunReader, WorkState, open_runs
from agentflow.journal import JournalReader, open_journal, open_reader, this_process
from agentflow.trace import Node, Verdict
from tests._postgres import PostgresServer
from tests.agentflow.inspection._journals import SETTINGS, OnlyRun, action, claimed, digests, grow

HARVEST = b'{"pairs":[],"tree":null}'


@pytest.mark.promise("inspection:unchanged", "inspection:states")
async def test_a_finished_run_is_read_without_changing_a_byte(tmp_path: Path, only_run: OnlyRun) -> None:
    async with claimed(tmp_path / "journal.db", ["a"]) as (_, run, [seed]):
        await grow(await run.open_page(seed), ["0", "1"], 1)
        await run.finish(seed, HARVEST)
    before = digests(tmp_path)
    reader = only_run(tmp_path)
    assert reader.summary().state is WorkState.DONE
    assert reader.skeleton("a").spots == ("", "0", "1")
    assert reader.changes(reader.changes().cursor).summary is False
    assert digests(tmp_path) == before
    assert set(before) == {"journal.db"}


@pytest.mark.promise("inspection:unchanged", "inspection:states")
def test_a_killed_run_is_stopped_and_read_to_its_last_entry(tmp_path: Path, only_run: OnlyRun) -> None:
    script = """
import os, sys, anyio
from tests.agentflow.inspection._journals import claimed, grow
async def main():
    async with claimed("sqlite:///" + sys.argv[1], ["a", "b"]) as (journal, run, [seed]):
        page = await run.open_page(seed)
        await grow(page, ["0", "1", "0-0"], 1)
        await page.settle()
        os._exit(9)
anyio.run(main)
"""
    file = tmp_path / "journal.db"
    killed = subprocess.run([sys.executable, "-c", script, str(file)], check=False)
    assert killed.returncode == 9
    before = file.read_bytes(), (tmp_path / "journal.db-wal").read_bytes()
    reader = only_run(file)
    assert reader.summary().state is WorkState.STOPPED
    assert [seed.state for seed in reader.seeds()] == [WorkState.STOPPED, WorkState.WAITING]
    assert reader.skeleton("a").spots == ("", "0", "1", "0-0")
    assert (file.read_bytes(), (tmp_path / "journal.db-wal").read_bytes()) == before


@pytest.mark.promise("inspection:states", "inspection:changes", "inspection:growing")
async def test_a_reader_follows_a_run_that_works(url: str, only_run: OnlyRun) -> None:
    async with claimed(url) as (_, run, [seed]):
        page = await run.open_page(seed)
        await grow(page, ["0"], 0)
        await page.settle()
        reader = only_run(url)
        assert reader.summary().state is WorkState.RUNNING
        assert [each.state for each in reader.seeds()] == [WorkState.RUNNING, WorkState.WAITING]
        skeleton = reader.skeleton("a")
        assert (skeleton.spots, skeleton.marks, skeleton.planned) == (("", "0"), "n.", ())
        assert reader.changes(skeleton.cursor, "a").spots == ()
        await page.record("act/1", action("1", "Saw more."))
        news = reader.changes(skeleton.cursor, "a")
        assert (news.seeds, news.spots, news.summary) == (("a",), ("1",), True)
        assert reader.changes(news.cursor, "a").summary is False
        await run.finish(seed, HARVEST)
        assert reader.changes(news.cursor).seeds == ("a",)
        [other] = await run.claim(this_process(), 1)
        cursor = reader.changes().cursor
        await (await run.open_page(other)).record("act/0", action("0", "Saw another."))
        assert reader.changes(cursor).seeds == ("b",)
        assert [each.nodes for each in reader.seeds()] == [2, 1]
        assert [each.id for each in reader.seeds(state=WorkState.DONE)] == ["a"]
        assert [each.id for each in reader.seeds(state=WorkState.RUNNING)] == ["b"]
        assert [each.id for each in reader.seeds(after="a", text="EXPLORE B")] == ["b"]


@pytest.mark.promise("inspection:failures")
async def test_failures_are_those_of_all_processes_until_the_report_counts_them(
    url: str, tmp_path: Path, only_run: OnlyRun
) -> None:
    async with claimed(url, ["a"]) as (journal, run, [seed]):
        reader = only_run(url)
        assert reader.summary().failures == {}
        other = await journal.open_run("run", SETTINGS)
        await run.save_failures({"tool timeout": 1})
        await run.save_failures({"tool timeout": 2, "model rate_limited": 1})
        await other.save_failures({"tool timeout": 3})
        stored = {"model rate_limited": 1, "tool timeout": 5}
        assert reader.summary().failures == stored
        await run.finish(seed, HARVEST)
        assert reader.summary().failures == stored
    folder = tmp_path / "out"
    folder.mkdir()
    async with claimed(folder / "journal.db", ["a"]) as (_, run, [seed]):
        report = folder / "report.json"
        report.write_text(
            '{"model_failures": {"timeout": 1}, "tool_failures": {"timeout": 2}}', encoding="utf-8"
        )
        reader = only_run(folder)
        assert reader.summary().failures == {"timeout": 3}
        await run.save_failures({"tool timeout": 4})
        assert reader.summary().failures == {"tool timeout": 4}
        await run.finish(seed, HARVEST)
        assert reader.summary().failures == {"timeout": 3}


@pytest.mark.promise("inspection:growing", "inspection:search")
async def test_an_unfinished_tree_shows_complete_levels_with_verdicts(url: str, only_run: OnlyRun) -> None:
    async with claimed(url, ["a"]) as (_, run, [seed]):
        image = await run.blobs.put(b"\x89PNG picture", "image/png")
        page = await run.open_page(seed)
        await grow(page, ["0", "1", "1-0"], 1, n1=(Verdict.REPEATS, "known"))
        await page.record("act/1-1", action("1-1", "A 100% sure “sign”.\nSecond", image))
        reader = only_run(url)
        skeleton = reader.skeleton("a")
        assert (skeleton.spots, skeleton.marks) == (("", "0", "1", "1-0", "1-1"), "nnr..")
        row = reader.nodes("a", ["1"])[0]
        assert (row.tool, row.verdict, row.children, row.intent) == ("bash_run", "repeats", 2, "try 1")
        assert [each.spot for each in reader.children("a", "1")] == ["1-0", "1-1"]
        node = reader.node("a", "1-1")
        assert (node.verdict, node.judge, node.arguments) == ("", "", {"command": "echo 1-1"})
        assert [(part.text, part.blob) for part in node.parts][1] == ("", image.hash)
        assert reader.blob(image.hash) == (b"\x89PNG picture", "image/png")
        assert (reader.node("a", "1").reason, reader.node("a", "1").judge) == ("known", "rule")
        assert reader.node("a", "0").reasoning == "Look around."
        [found] = reader.search("100% SURE “sign”")
        assert (found.seed, found.spot, found.place) == ("a", "1-1", "observation")
        assert [hit.spot for hit in reader.search("saw", seed="a")] == ["0", "1", "1-0"]
        assert reader.search("  ") == []
        assert reader.results("a").answers == ()
        tree = next(reader.records()).tree
        assert [node.position for node in tree.nodes] == [0, 0, 1]
        [row_of_tokens] = reader.tokens("a")
        assert [(piece.kind, piece.ids) for piece in row_of_tokens.pieces] == [
            ("context", (1, 2)),
            ("trained", (3, 4)),
        ]
        assert reader.tools() == () and "earlier" not in reader.call("a", "plan/root/0").missing
        for ask in UNKNOWN:
            with pytest.raises(KeyError):
                ask(reader)


UNKNOWN: tuple[Callable[[RunReader], object], ...] = (
    lambda reader: reader.seed("z"),
    lambda reader: reader.node("a", "7"),
    lambda reader: reader.children("a", "0-0-0"),
    lambda reader: reader.blob("00"),
    lambda reader: reader.call("a", "plan/9/0"),
    lambda reader: reader.call("a", "nonsense"),
    lambda reader: reader.changes(seed="z"),
)


@pytest.mark.promise("inspection:large")
async def test_positions_of_several_digits_are_in_order_and_only_asked_nodes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_run: OnlyRun
) -> None:
    spots = [str(number) for number in range(40)]
    async with claimed(tmp_path / "journal.db", ["a"]) as (_, run, [seed]):
        page = await run.open_page(seed)
        await grow(page, [*spots, "9-0"], 1)
        await page.settle()
        reader = only_run(tmp_path)
        read: list[str] = []
        real = JournalReader.bodies

        def bodies(self: JournalReader, run: int, seed: int, keys: list[str]) -> dict[str, bytes]:
            found = real(self, run, seed, keys)
            read.extend(found)
            return found

        monkeypatch.setattr(JournalReader, "bodies", bodies)
        assert reader.skeleton("a").spots == ("", *spots, "9-0")
        assert read == ["level/1"]
        assert [row.children for row in reader.nodes("a", ["", "9", "10"])] == [40, 1, 0]
        assert sorted(read) == ["act/10", "act/9", "level/1"]


OLD_RESULT = b"""{"tree": {"id": "t", "seed": {"index": 0, "id": "a", "content": ""}, "nodes": [
    {"id": "r", "parent": null, "depth": 0, "position": 0, "intent": "", "action": null, "observation": {"parts": []},
     "verdict": "new"},
    {"id": "x", "parent": "r", "depth": 1, "position": 0, "intent": "look", "verdict": "empty", "reason": "nothing",
     "action": {"tool": "rag_get", "arguments": {}}, "observation": {"parts": []}}
]}}"""


@pytest.mark.promise("inspection:old")
async def test_a_journal_of_an_earlier_version_is_read(tmp_path: Path, only_run: OnlyRun) -> None:
    async with claimed(tmp_path / "journal.db", ["a"]) as (_, run, [seed]):
        page = await run.open_page(seed)
        record = msgspec.to_builtins(action("0", "Saw it."))
        await page.record("act/0", {key: record[key] for key in ("outcome", "isolation")})
        reader = only_run(tmp_path)
        assert (reader.skeleton("a").marks, reader.nodes("a", ["0"])[0].tool) == ("n.", "")
        await run.finish(seed, OLD_RESULT)
    reader = only_run(tmp_path)
    assert reader.skeleton("a").marks == "ne"
    node = reader.node("a", "0")
    assert (node.tool, node.intent, node.verdict, node.reason) == ("rag_get", "look", "empty", "nothing")
    assert msgspec.json.decode(msgspec.json.encode(record), type=Node).intent == "try 0"


def write_foreign(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as foreign:
        foreign.execute("CREATE TABLE cats (name TEXT)")


def write_newer(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as newer:
        newer.execute("CREATE TABLE agentflow_schema (version INTEGER)")
        newer.execute("INSERT INTO agentflow_schema VALUES (99)")
        newer.commit()


def write_text(folder: Path) -> None:
    (folder / "journal.db").write_text("Dear diary, " * 1000, encoding="utf-8")


def write_nothing(folder: Path) -> None:
    assert folder.is_dir()


def write_folder(folder: Path) -> None:
    (folder / "journal.db").mkdir()


def write_empty(folder: Path) -> None:
    (folder / "journal.db").touch()


def write_masked(folder: Path) -> None:
    (folder / "settings.yaml").write_text("journal: postgresql://me:***@host/runs\n", encoding="utf-8")


@pytest.mark.promise("inspection:places")
@pytest.mark.parametrize(
    ("write", "place", "said"),
    [
        (write_nothing, "nowhere", "no such file or folder"),
        (write_nothing, "", "has no runs"),
        (write_folder, "journal.db", "has no runs"),
        (write_text, "", "is no journal"),
        (write_foreign, "journal.db", "is no journal"),
        (write_newer, "", "version 99"),
        (write_empty, "", "is no journal"),
        (write_masked, "", "a journal on host; to connect to it, add --journal .* with its password"),
    ],
)
def test_what_holds_no_run_is_refused_in_one_line(
    write: Callable[[Path], None], place: str, said: str, tmp_path: Path
) -> None:
    write(tmp_path)
    before = digests(tmp_path)
    with pytest.raises(ConfigurationError, match=said) as refused:
        open_runs(tmp_path / place)
    assert "\n" not in str(refused.value)
    assert digests(tmp_path) == before


@pytest.mark.promise("inspection:places")
@pytest.mark.parametrize("url", ["mysql://h/d", "postgresql://nobody:secret@127.0.0.1:1/none"])
def test_a_database_that_can_not_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_runs(url)
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.promise("inspection:places")
async def test_a_damaged_journal_is_one_line(tmp_path: Path, only_run: OnlyRun) -> None:
    async with claimed(tmp_path / "journal.db", ["a"]) as (_, run, [seed]):
        await grow(await run.open_page(seed), [str(number) for number in range(200)], 1)
        await run.finish(seed, HARVEST)
    file = tmp_path / "journal.db"
    body = file.read_bytes()
    file.write_bytes(body[:16384] + bytes(len(body) - 16384))
    with pytest.raises(ConfigurationError, match="can't be read") as refused:
        only_run(tmp_path).skeleton("a")
    assert "\n" not in str(refused.value)


@pytest.mark.promise("inspection:places")
async def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        async with claimed(folder / "journal.db", ["a"]):
            pass
    shutil.copytree(tmp_path / "runs" / "two", tmp_path / "runs" / "deep" / "two")
    async with open_journal(tmp_path / "runs" / "one" / "journal.db") as journal:
        await journal.open_run("Another one!", SETTINGS)
    with open_runs(tmp_path / "runs") as collection:
        ids = [run.id for run in collection.runs()]
        assert len(set(ids)) == 4
        assert sorted(run.name for run in collection.runs()) == ["Another one!", "run", "two", "two"]
        assert collection.run("Another one!").summary().name == "Another one!"
        with pytest.raises(KeyError):
            collection.run("two")
    with open_runs(tmp_path / "runs") as again:
        assert [run.id for run in again.runs()] == ids


@pytest.mark.promise("inspection:places")
async def test_the_folder_of_a_run_in_a_database_names_it(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()
    async with claimed(url, ["a"]) as (journal, _, _):
        await journal.open_run("another", SETTINGS)
    settings = f"journal: {url}\nrun_name: run\n"
    (tmp_path / "settings.yaml").write_text(settings, encoding="utf-8")
    with open_runs(tmp_path, journal=url) as collection:
        assert [run.folder for run in collection.runs()] == [str(tmp_path)]
        assert len(collection.runs()) == 1


@pytest.mark.promise("inspection:unchanged")
async def test_many_threads_share_a_reader(tmp_path: Path, only_run: OnlyRun) -> None:
    async with claimed(tmp_path / "journal.db", ["a"]) as (_, run, [seed]):
        page = await run.open_page(seed)
        await grow(page, ["0", "1"], 1)
        await page.settle()
        reader = only_run(tmp_path)
        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(reader.skeleton, ["a"] * 100))
        assert {skeleton.spots for skeleton in found} == {("", "0", "1")}


@pytest.mark.promise("inspection:unchanged")
async def test_a_reader_can_not_write(url: str) -> None:
    async with claimed(url, ["a"]):
        with open_reader(url) as reader, pytest.raises(ConfigurationError, match="read"):
            reader.read(lambda connection: connection.exec_driver_sql("DELETE FROM agentflow_seeds"))
