"""Stored indexes: updates, killed updates and concurrent processes."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import ConfigurationError
from mcp_servers.rag._documents import BUNDLED
from mcp_servers.rag._index import WordIndex
from mcp_servers.rag._index_update import index_in_memory, update_index
from mcp_servers.rag._terms import terms_of
from tests.mcp_servers._program import ROOT
from tests.mcp_servers.rag._library import library, write_lines

QUERIES = (
    "island",
    "largest island of the isles",
    "Kelder Bridge",
    "crowns for a barge",
    "winter harbour ship",
)


def update(source: Path, folder: Path) -> WordIndex:
    folder.mkdir(exist_ok=True)
    return update_index(source, folder, checkpoint=lambda: None)


def answers(index: WordIndex, count: int = 7) -> list[list[tuple[str, float]]]:
    return [
        [(match.document.id, match.score) for match in index.search(terms_of(query), count)]
        for query in QUERIES
    ]


def committed(folder: Path) -> int:
    """Return the number of documents in an index, read from its metadata file."""
    try:
        segments = json.loads((folder / "meta.json").read_bytes())["segments"]
    except FileNotFoundError:
        return 0
    return sum(segment["max_doc"] for segment in segments)


@pytest.mark.promise("rag:incremental")
async def test_only_files_that_changed_are_read_again(tmp_path: Path) -> None:
    source, kept = tmp_path / "notes", tmp_path / "index"
    (source / "deep").mkdir(parents=True)
    (source / "a.md").write_text("# Apples\n\nApples are red.")
    (source / "deep/b.txt").write_text("Bananas are bent.")
    write_lines(source / "c.jsonl", [{"id": "c", "text": "Cherries have stones."}])
    async with library(index_path=source, index_dir=kept) as notes:
        assert await notes.ids("apples are red") == ["a.md"]
        assert (await notes.hits("apple"))[0]["title"] == "Apples"
        assert await notes.ids("bananas") == ["deep/b.txt"]
    before = (source / "a.md").stat()
    (source / "a.md").write_text("# Apples\n\nApples are new.")
    os.utime(source / "a.md", ns=(before.st_atime_ns, before.st_mtime_ns))
    (source / "deep/b.txt").unlink()
    (source / "d.txt").write_text("Dates are sweet.")
    async with library(index_path=source, index_dir=kept) as notes:
        assert await notes.ids("bananas") == []
        assert await notes.ids("dates sweet") == ["d.txt"]
    (source / "e.txt").write_text("Elderberries.")
    write_lines(source / "c.jsonl", [{"id": "c", "text": "Cherries have pits."}])
    async with library(index_path=source, index_dir=kept) as notes:
        assert await notes.ids("stones") == []
        assert await notes.ids("pits") == ["c"]
        assert await notes.ids("elderberries") == ["e.txt"]
    async with library(index_path=kept) as notes:
        assert await notes.ids("pits") == ["c"]


@pytest.mark.promise("rag:incremental")
def test_a_file_of_the_same_size_and_time_is_not_read(tmp_path: Path) -> None:
    source = tmp_path / "notes"
    source.mkdir()
    (source / "a.txt").write_text("old")
    before = (source / "a.txt").stat()
    update(source, tmp_path / "index")
    (source / "a.txt").write_text("new")
    os.utime(source / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    (source / "b.txt").write_text("other")
    index = update(source, tmp_path / "index")
    assert [match.document.id for match in index.search(terms_of("old other"), 5)] == ["a.txt", "b.txt"]


@pytest.mark.promise("rag:order")
@settings(max_examples=6, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_indexing_and_the_layout_on_disk_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("order")
    lines = [json.loads(line) for line in BUNDLED.read_text(encoding="utf-8").splitlines()]
    lines += [
        {"id": f"twin-{n}", "title": "Twin", "text": "A largest island like its twins."} for n in range(40)
    ]
    plain = answers(index_in_memory(write_lines(folder / "plain.jsonl", lines)))
    chance.shuffle(lines)
    source = folder / "parts"
    source.mkdir()
    index = None
    while lines:
        part, lines = lines[: (size := chance.randint(1, 60))], lines[size:]
        write_lines(source / f"{len(lines):03}.jsonl", part)
        index = update(source, folder / "index")
    assert index is not None
    assert answers(index) == plain


@pytest.mark.promise("rag:order")
def test_what_was_there_before_changes_nothing(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in BUNDLED.read_text(encoding="utf-8").splitlines()]
    source = write_lines(tmp_path / "a.jsonl", [*lines, {"id": "x", "text": "island island crowns"}])
    update(source, tmp_path / "index")
    write_lines(source, lines)
    assert answers(update(source, tmp_path / "index")) == answers(index_in_memory(source))


@pytest.mark.promise("rag:order")
def test_of_many_equal_documents_the_first_by_id_are_found(tmp_path: Path) -> None:
    lines = [{"id": f"{n:04}", "title": "t", "text": "the same words"} for n in range(2000)]
    random.Random(1).shuffle(lines)
    index = index_in_memory(write_lines(tmp_path / "same.jsonl", lines))
    ids = [match.document.id for match in index.search(terms_of("same words"), 3)]
    assert ids == ["0000", "0001", "0002"]
    loaded = cast("dict[object, object]", vars(index)["_loaded"])
    assert len(loaded) == 3


@pytest.mark.promise("rag:order")
def test_documents_lie_in_the_order_of_their_ids_also_after_merging(tmp_path: Path) -> None:
    folder, chance = tmp_path / "parts", random.Random(2)
    folder.mkdir()
    names = [f"{n:03}" for n in range(180)]
    chance.shuffle(names)
    for part in range(12):
        part_names = names[part * 15 : part * 15 + 15]
        write_lines(folder / f"{part}.jsonl", [{"id": name, "text": "the same words"} for name in part_names])
        update(folder, tmp_path / "index")
    index = update(folder, tmp_path / "index")
    assert committed(tmp_path / "index") == 180
    ids = [match.document.id for match in index.search(terms_of("same words"), 5)]
    assert ids == ["000", "001", "002", "003", "004"]


@pytest.mark.promise("rag:killed")
def test_a_killed_update_continues_from_the_last_commit(tmp_path: Path) -> None:
    lines = [{"id": f"d{n}", "text": f"number {n} " + "word " * 40} for n in range(20_000)]
    source, folder = write_lines(tmp_path / "many.jsonl", lines), tmp_path / "index"
    program = [sys.executable, "-m", "tests.mcp_servers.rag._index_program"]
    command = [*program, str(source), str(folder), "500", "1700"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert committed(folder) == 1500
    index = update(source, folder)
    assert len(index) == 20_000
    assert [match.document.id for match in index.search(terms_of("19999"), 1)] == ["d19999"]
    fresh = index_in_memory(source)
    query = terms_of("19999 77 400 12")
    assert index.search(query, 5) == fresh.search(query, 5)


@pytest.mark.promise("rag:two")
def test_two_processes_share_the_work_on_one_index(tmp_path: Path) -> None:
    lines = [{"id": f"d{n}", "text": f"number {n}"} for n in range(3_000)]
    source, folder = write_lines(tmp_path / "many.jsonl", lines), tmp_path / "index"
    command = [sys.executable, "-m", "tests.mcp_servers.rag._index_program", str(source), str(folder), "500"]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0].split() for process in both]
    assert outputs == [[b"begun", b"3000"]] * 2
    assert committed(folder) == 3000


@pytest.mark.promise("rag:settings")
@pytest.mark.promise("rag:loses-nothing")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "a.jsonl:3: "),
        ('{"title": "x"}', "a.jsonl:3: Object missing required field `text`"),
        ('{"id": "a", "text": "another"}', "two different documents have the id 'a'"),
        ("[1]", "a.jsonl:3: "),
    ],
)
def test_an_invalid_line_is_named_and_earlier_documents_are_kept(
    tmp_path: Path, line: str, expected: str
) -> None:
    source = tmp_path / "a.jsonl"
    good = '{"id": "a", "text": "one"}\n\n'
    source.write_text(good + line + "\n")
    with pytest.raises(ConfigurationError) as wrong:
        update(source, tmp_path / "index")
    assert expected in str(wrong.value)
    assert "\n" not in str(wrong.value)
    assert committed(tmp_path / "index") == 1
    source.write_text(good)
    assert len(update(source, tmp_path / "index")) == 1


@pytest.mark.promise("rag:loses-nothing")
def test_a_directory_with_other_files_is_left_unchanged(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": "one"}])
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "meta.json").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"'meta.json', which is not part of an index"):
        update(source, folder)
    assert (folder / "meta.json").read_text() == "mine"


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": "one"}, {"text": "two"}, {"text": "two"}])
    update(source, tmp_path / "index")
    (tmp_path / "index/rag.json").write_text("{")
    assert len(update(source, tmp_path / "index")) == 2


async def test_larger_documents_have_their_index_beside_them(tmp_path: Path) -> None:
    lines = [{"text": f"number {n} " + "word " * 400} for n in range(600)]
    source = write_lines(tmp_path / "many.jsonl", lines)
    async with library(index_path=source) as many:
        assert len(await many.ids("number 5", top_k=1)) == 1
    assert (tmp_path / ".many.jsonl.rag-index/rag.json").is_file()


async def test_an_index_may_have_its_documents_named_beside_it(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": "a", "text": "one"}])
    async with library(index_path=tmp_path / "index", corpus_path=source) as searched:
        assert await searched.ids("one") == ["a"]
    assert (tmp_path / "index/rag.json").is_file()
