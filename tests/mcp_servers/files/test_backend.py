"""The files tools, on the real process runtime."""

import base64
import os
import tracemalloc
from pathlib import Path
from typing import cast

import pytest

from tests.mcp_servers.live import Live, images

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.promise("files:read:lines")
async def test_a_part_of_a_file_is_read_by_lines(live: Live) -> None:
    await live.bash("seq 10000 > numbers")
    data = await live.data("files_read", path="numbers", offset=5, limit=2)
    assert data["content"] == "5\n6\n"
    assert (data["first_line"], data["last_line"], data["total_lines"]) == (5, 6, 10_000)
    assert data["next_offset"] == 7
    end = await live.data("files_read", path="numbers", offset=10_000)
    assert (end["content"], end["next_offset"]) == ("10000\n", None)
    past = await live.data("files_read", path="numbers", offset=10_001)
    assert (past["content"], past["last_line"], past["note"]) == ("", 0, "The file has 10000 lines.")


async def test_a_file_without_a_last_line_end_or_without_anything_is_read(live: Live) -> None:
    await live.data("files_write", path="a", content="one\ntwo")
    data = await live.data("files_read", path="a")
    assert (data["content"], data["total_lines"], data["last_line"]) == ("one\ntwo", 2, 2)
    await live.data("files_write", path="empty", content="")
    data = await live.data("files_read", path="empty")
    assert (data["content"], data["total_lines"], data["last_line"], data["note"]) == ("", 0, 0, "")


async def test_long_text_is_read_in_consecutive_parts(live: Live) -> None:
    await live.bash("seq 30000 > numbers; (head -c 200000 /dev/zero | tr '\\0' x; echo; echo end) > long")
    read, offset = "", 1
    while offset:
        data = await live.data("files_read", path="numbers", offset=offset, limit=100_000)
        read, offset = read + str(data["content"]), cast("int", data["next_offset"])
    assert read == "".join(f"{number}\n" for number in range(1, 30_001))
    data = await live.data("files_read", path="long")
    assert (len(str(data["content"])), data["next_offset"]) == (60_000, 2)
    assert data["note"] == "Line 1 is too long and is cut."
    assert (await live.data("files_read", path="long", offset=2))["content"] == "end\n"


async def test_a_huge_file_is_read_without_counting_its_lines(live: Live) -> None:
    await live.bash("yes 'some line' | head -c 20000000 > huge")
    data = await live.data("files_read", path="huge", offset=1_500_000, limit=3)
    assert data["content"] == "some line\n" * 3
    assert (data["total_lines"], data["next_offset"]) == (None, 1_500_003)


@pytest.mark.promise("files:read:bounded")
@pytest.mark.parametrize("offset", [1, 2, 3])
async def test_a_huge_line_is_read_with_little_memory(live: Live, offset: int) -> None:
    await live.bash("(head -c 48M /dev/zero | tr '\\0' x; echo; echo end) > line")
    tracemalloc.start()
    try:
        data = await live.data("files_read", path="line", offset=offset)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024
    assert str(data["content"])[-4:] == {1: "xxxx", 2: "end\n", 3: ""}[offset]
    assert data["note"] == {1: "Line 1 is too long and is cut.", 2: "", 3: "The file has 2 lines."}[offset]


@pytest.mark.promise("files:read:bounded")
async def test_a_line_far_into_a_file_is_refused(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_servers.files._content.MAX_SKIPPED", 2_000_000)
    await live.bash("(head -c 9M /dev/zero | tr '\\0' x; echo; echo end) > line")
    assert (await live.data("files_read", path="line"))["next_offset"] == 2
    kind, message = await live.failure("files_read", path="line", offset=2)
    assert kind == "bad_arguments"
    assert message == "files_read: line 2 of 'line' does not begin in the first GiB. Use bash_run."


@pytest.mark.promise("files:read:binary")
async def test_binary_files_are_refused_and_images_shown(live: Live) -> None:
    await live.data("files_write", path="bin", content=base64.b64encode(b"a\0b").decode(), encoding="base64")
    kind, message = await live.failure("files_read", path="bin")
    assert kind == "bad_arguments"
    assert "encoding='base64'" in message
    assert (await live.data("files_read", path="bin", encoding="base64"))["content"] == "YQBi"
    await live.data("files_write", path="p.png", content=base64.b64encode(PNG).decode(), encoding="base64")
    result = await live.call("files_read", path="p.png")
    assert [(image.data, image.mime) for image in images(result)] == [(PNG, "image/png")]
    assert (result.data["kind"], result.data["content"]) == ("image", "")


@pytest.mark.promise("files:bytes:kept")
async def test_bytes_that_are_not_utf_8_are_preserved(live: Live) -> None:
    raw = b"caf\xe9\r\nold\r\n\xff"
    await live.data("files_write", path="f", content=base64.b64encode(raw).decode(), encoding="base64")
    assert "no UTF-8" in str((await live.data("files_read", path="f"))["note"])
    await live.data("files_edit", path="f", old_text="old\r\n", new_text="new ä\r\n")
    result = await live.data("files_read", path="f", encoding="base64")
    assert base64.b64decode(str(result["content"])) == raw.replace(b"old", "new ä".encode())


async def test_writing_reports_size_and_creation(live: Live) -> None:
    made = await live.data("files_write", path="deep/er/file", content="ä")
    assert made == {"path": "deep/er/file", "size": 2, "created": True}
    added = await live.data("files_write", path="deep/er/file", content="b", append=True)
    assert added == {"path": "deep/er/file", "size": 3, "created": False}
    await live.data("files_write", path="run.sh", content="#!/bin/sh\necho ran\n", executable=True)
    assert await live.bash("./run.sh; cat deep/er/file") == "ran\näb"
    assert (await live.failure("files_write", path="f", content="%", encoding="base64"))[0] == "bad_arguments"


async def test_an_edit_returns_a_diff_and_keeps_the_executable_bit(live: Live) -> None:
    await live.data("files_write", path="run.sh", content="#!/bin/sh\necho one\n", executable=True)
    data = await live.data("files_edit", path="run.sh", old_text="one", new_text="two")
    assert "-echo one\n+echo two\n" in str(data["diff"])
    assert await live.bash("./run.sh") == "two\n"
    await live.data("files_write", path="f", content="a a")
    assert (await live.failure("files_edit", path="f", old_text="a", new_text="b"))[0] == "bad_arguments"
    every = await live.data("files_edit", path="f", old_text="a", new_text="b", replace_all=True)
    assert every["replacements"] == 2
    assert (await live.failure("files_edit", path="f", old_text="zzz", new_text="b"))[0] == "not_found"


async def test_directories_are_listed(live: Live) -> None:
    await live.bash("mkdir -p d/e; echo x > d/f; echo yy > d/e/g; ln -s f d/link")
    data = await live.data("files_list", path="d")
    assert data["entries"] == [
        {"path": "d/e", "kind": "directory", "size": entry_size(data, 0), "target": None},
        {"path": "d/f", "kind": "file", "size": 2, "target": None},
        {"path": "d/link", "kind": "symlink", "size": 1, "target": "f"},
    ]
    deep = await live.data("files_list", path="d", recursive=True, limit=2)
    assert deep["total"] == 4
    assert [entry["path"] for entry in cast("list[dict[str, str]]", deep["entries"])] == ["d/e", "d/e/g"]


def entry_size(data: dict[str, object], number: int) -> object:
    return cast("list[dict[str, object]]", data["entries"])[number]["size"]


@pytest.mark.promise("files:search")
async def test_a_forged_answer_of_a_search_is_one_short_failure(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other processes of a session can write to the standard output of the program.
    for answer in ("'[' + '[],' * 5_000_000 + '1]'", "'[' * 400_000", """'{"found": 7}'"""):
        program = f"import sys; sys.stdin.read(); sys.stdout.write({answer})"
        with monkeypatch.context() as patch:
            patch.setattr("mcp_servers.files._backend._program", lambda program=program: program)
            kind, message = await live.failure("files_search", glob="*")
        assert kind == "failed"
        assert message.startswith("files_search: the search failed: a message ")
        assert len(message) < 800


@pytest.mark.promise("files:search")
async def test_lines_and_names_are_found_inside_the_session(live: Live) -> None:
    await live.bash(
        "mkdir -p src/sub; echo 'def füü(): pass' > src/a.py; echo 'def b' > src/sub/b.py; echo def > c"
    )
    lines = await live.data("files_search", pattern=r"^def \wüü", glob="*.py")
    assert lines["matches"] == [{"path": "src/a.py", "line": 1, "text": "def füü(): pass"}]
    names = await live.data("files_search", glob="src/**/*.py")
    assert [match["path"] for match in cast("list[dict[str, str]]", names["matches"])] == [
        "src/a.py",
        "src/sub/b.py",
    ]
    bounded = await live.data("files_search", pattern="def", limit=1)
    assert (len(cast("list[object]", bounded["matches"])), bounded["truncated"]) == (1, True)
    assert (await live.failure("files_search", pattern="("))[0] == "bad_arguments"
    assert (await live.failure("files_search"))[0] == "bad_arguments"
    assert (await live.failure("files_search", pattern="x", path="nowhere"))[0] == "not_found"


async def test_a_pattern_that_takes_forever_is_stopped(live: Live) -> None:
    await live.data("files_write", path="f", content="a" * 60 + "b\n")
    arguments = {"session": live.session, "pattern": "(a+)+$"}
    result = await live.table.call("files_search", arguments, timeout=2)
    assert result.error is not None
    assert result.error.kind == "timeout"


async def test_files_are_moved_described_and_removed(live: Live) -> None:
    await live.bash("echo x > a; echo y > b; chmod 640 a")
    info = await live.data("files_info", path="a")
    assert (info["kind"], info["size"], info["mode"]) == ("file", 2, "rw-r-----")
    assert str(info["modified"]).endswith("+00:00")
    assert (await live.failure("files_move", source="a", destination="b"))[0] == "bad_arguments"
    assert (await live.failure("files_move", source="none", destination="b"))[0] == "not_found"
    await live.data("files_move", source="a", destination="b", replace=True)
    assert await live.bash("cat b; ls") == "x\nb\n"
    await live.bash("mkdir -p d/e")
    assert (await live.failure("files_remove", path="d"))[0] == "bad_arguments"
    await live.data("files_remove", path="d", recursive=True)
    await live.data("files_remove", path="b")
    assert await live.bash("ls") == ""


@pytest.mark.promise("files:failures:typed")
@pytest.mark.parametrize(
    ("tool", "arguments", "kind"),
    [
        ("files_read", {"path": "nowhere"}, "not_found"),
        ("files_read", {"path": "."}, "bad_arguments"),
        ("files_read", {"path": ""}, "bad_arguments"),
        ("files_read", {"path": "a\0b"}, "bad_arguments"),
        ("files_read", {"path": "x" * 5000}, "bad_arguments"),
        ("files_read", {"path": "pipe"}, "bad_arguments"),
        ("files_read", {"path": "loop"}, "denied"),
        ("files_read", {"path": "file/below"}, "bad_arguments"),
        ("files_list", {"path": "file"}, "bad_arguments"),
        ("files_write", {"path": "dir", "content": "x"}, "bad_arguments"),
        ("files_write", {"path": "/usr/bin/evil", "content": "x"}, "denied"),
        ("files_write", {"path": "/etc/passwd", "content": "x"}, "denied"),
        ("files_remove", {"path": "nowhere"}, "not_found"),
        ("files_info", {"path": "nowhere"}, "not_found"),
    ],
)
async def test_an_impossible_operation_is_a_typed_failure(
    live: Live, tool: str, arguments: dict[str, object], kind: str
) -> None:
    await live.bash("mkdir dir; echo x > file; mkfifo pipe; ln -s loop loop")
    error_kind, message = await live.failure(tool, **arguments)
    assert error_kind == kind, message
    assert "Errno" not in message


@pytest.mark.promise("files:paths:inside")
async def test_no_path_leads_out_of_the_session(live: Live, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    await live.bash(f"ln -s {secret} link; ln -s / root; ln -s ../../../../../.. up; ln -s /proc/1/root proc")
    ways = (
        "",
        "root",
        "up",
        "../../../../../..",
        "/proc/1/root",
        "/proc/self/root",
        "proc",
        "/proc/self/cwd/../..",
    )
    for path in ("link", *(f"{way}{secret}" for way in ways)):
        result = await live.call("files_read", path=path)
        assert not result.ok, path
        assert "of the host" not in str(result.data), path
        await live.call("files_write", path=path, content="changed")
        await live.call("files_move", source=path, destination="stolen", replace=True)
        await live.call("files_remove", path=path)
    assert secret.read_text() == "of the host"
    assert os.listdir(tmp_path) == ["secret"]


@pytest.mark.promise("files:fork")
async def test_a_fork_has_its_own_files(live: Live) -> None:
    await live.data("files_write", path="f", content="base")
    fork = await live.fork()
    await fork.data("files_write", path="f", content="fork")
    await live.data("files_remove", path="f")
    assert (await fork.data("files_read", path="f"))["content"] == "fork"
    assert (await live.failure("files_read", path="f"))[0] == "not_found"
