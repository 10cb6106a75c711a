"""Documents of sessions and forks, and access checks."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow import Sandbox
from agentflow.errors import ConfigurationError
from agentflow.sandbox import SandboxSettings
from mcp_servers import ToolTable
from mcp_servers.document import DocumentBackend
from tests.mcp_servers.document import _made
from tests.mcp_servers.document._reading import Reader, reader_of

NAMES = ["book.pdf", "ships.docx", "notes/dues.md", "sales.xlsx"]


@pytest.mark.promise("document:session")
@pytest.mark.parametrize("name", ["file", "file_path", "seed_path"])
async def test_a_session_may_have_its_own_document(table: ToolTable, shelf: Path, name: str) -> None:
    session_settings = {"document": {name: str(shelf / "ships.docx")}}
    started = await table.call("session_start", {"settings": session_settings})
    reader = Reader(table, str(started.data["session"]))
    assert (await reader.data("outline"))["document"] == "ships.docx"
    assert (await reader.text(section_ids="1.1")).startswith("Rigs")
    assert (await reader.failure("read", document="book.pdf"))[0] == "not_found"


@pytest.mark.promise("document:roots")
async def test_a_session_can_name_only_paths_inside_the_roots(table: ToolTable, shelf: Path) -> None:
    out = shelf.parent / "way-out"
    out.symlink_to("/etc")
    for path in ("/etc", "/etc/hostname", "/nowhere", f"{shelf}/../../../../etc", str(out)):
        refused = await table.call("session_start", {"settings": {"document": {"folder": path}}})
        assert refused.error is not None
        assert refused.error.kind == "denied"
        assert "`roots`" in refused.error.message
    gone = await table.call("session_start", {"settings": {"document": {"file": f"{shelf}/gone.pdf"}}})
    assert gone.error is not None
    assert gone.error.kind == "not_found"


@pytest.mark.promise("document:roots")
async def test_a_session_cannot_change_server_settings(table: ToolTable) -> None:
    for setting in (
        {"roots": ["/"]},
        {"cache_dir": "/tmp"},
        {"vlm_api_url": "http://127.0.0.1:1/v1"},
        {"timeout": 9},
    ):
        refused = await table.call("session_start", {"settings": {"document": setting}})
        assert refused.error is not None
        assert refused.error.kind == "denied"


async def test_a_link_in_a_folder_leads_to_no_other_folder(table: ToolTable, tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside.md"
    folder.mkdir()
    outside.write_text("# Outside", encoding="utf-8")
    (folder / "link.md").symlink_to(outside)
    (folder / "inside.md").write_text("# Inside", encoding="utf-8")
    (folder / "same.md").symlink_to(folder / "inside.md")
    reader = await reader_of(table, folder)
    assert [entry["document"] for entry in await reader.rows("outline", "documents")] == [
        "inside.md",
        "same.md",
    ]
    assert (await reader.failure("read", document="link.md"))[0] == "not_found"


@pytest.mark.promise("document:none")
async def test_without_a_document_the_first_use_says_what_to_set(tmp_path: Path) -> None:
    async with ToolTable([DocumentBackend()]) as table:
        assert await (await reader_of(table)).failure("outline") == (
            "unavailable",
            "document: no document is configured: set `folder` or `file` of the backend `document`.",
        )


@pytest.mark.promise("document:settings")
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"folder": "/nowhere"}, "there is no folder '/nowhere'"),
        ({"seed_path": "/nowhere"}, "there is no file '/nowhere'"),
        ({"folder": "/etc", "file": "/etc/hostname"}, "set one of them"),
        ({"vlm_model": "sees"}, "set both or neither"),
        ({"max_serach_results": 3}, "max_search_results"),
        ({"max_text_token": "many"}, "max_text_token"),
    ],
)
def test_settings_that_cant_be_used_are_refused_in_one_line(wrong: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        DocumentBackend().check(wrong)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.promise("document:documented")
async def test_the_documented_names_of_tools_and_resources_work(shelf: Path, tmp_path: Path) -> None:
    backends = {"document": {"file_path": str(shelf / "notes/dues.md"), "cache_dir": str(tmp_path)}}
    async with Sandbox(SandboxSettings.model_validate({"backends": backends})) as sandbox:
        result = await sandbox.execute("doc:search", {"key_words": "silver"})
        assert result.ok, result.error
        assert (await sandbox.execute("search_document", {"key_words": ["silver", "due"]})).ok
        read = await sandbox.execute("read_document", {"section_ids": ["1"], "goal": "silver"})
        assert read.ok, read.error
        assert "silver" in str(read.data["parts"])
        fork = await sandbox.fork()
        assert (await fork.execute("document:outline", {})).data == (
            await sandbox.execute("document:outline", {})
        ).data
        await fork.close()


async def seen(reader: Reader) -> list[object]:
    """Return everything that a session reports about its documents."""
    outline = await reader.data("outline")
    text = None if outline["document"] is None else await reader.text()
    return [outline, text, await reader.data("search", query="ships harbour")]


@pytest.mark.promise("document:fork")
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["fork", "choose"]), st.integers(0, 3), st.sampled_from(NAMES)), max_size=6
    )
)
async def test_a_fork_has_the_documents_of_its_parent_and_none_of_its_siblings(
    table: ToolTable, shelf: Path, steps: list[tuple[str, int, str]]
) -> None:
    readers = [await reader_of(table)]
    chosen: list[str | None] = [None]
    for do, which, name in steps:
        index = which % len(readers)
        if do == "fork":
            readers.append(await readers[index].fork())
            chosen.append(chosen[index])
        else:
            session_settings = {"document": {"file": str(shelf / name)}}
            session = {"session": readers[index].session}
            assert (await table.call("session_add", {"settings": session_settings, **session})).ok
            chosen[index] = name
    for reader, name in zip(readers, chosen, strict=True):
        replay = await reader_of(table, None if name is None else shelf / name)
        assert await seen(reader) == await seen(replay)
        for finished in (reader, replay):
            await table.call("session_end", {"session": finished.session})


@pytest.mark.promise("document:once")
async def test_a_document_is_read_once_for_its_content_also_by_another_server(tmp_path: Path) -> None:
    book = _made.pdf(tmp_path / "book.pdf")
    kept = {"document": {"seed_path": str(book), "cache_dir": str(tmp_path / "cache")}}
    async with ToolTable([DocumentBackend()], settings=kept) as table:
        first = await (await reader_of(table)).data("outline")
    (entry,) = (tmp_path / "cache").iterdir()
    stamp = entry.stat().st_ino
    shutil.move(book, tmp_path / "moved.pdf")
    kept["document"]["seed_path"] = str(tmp_path / "moved.pdf")
    async with ToolTable([DocumentBackend()], settings=kept) as table:
        again = await (await reader_of(table)).data("outline")
        assert {**again, "document": "book.pdf"} == first
        assert [path.stat().st_ino for path in (tmp_path / "cache").iterdir()] == [stamp]
        entry.write_bytes(b"{}")
    async with ToolTable([DocumentBackend()], settings=kept) as table:
        assert (await (await reader_of(table)).data("outline"))["pages"] == 3


@pytest.mark.promise("document:once")
async def test_a_file_that_changes_is_read_anew(table: ToolTable, tmp_path: Path) -> None:
    path = tmp_path / "note.md"
    path.write_text("# One", encoding="utf-8")
    reader = await reader_of(table, path)
    assert await reader.text() == "# One"
    path.write_text("# Two", encoding="utf-8")
    assert await reader.text() == "# Two"
    path.unlink()
    assert (await reader.failure("read"))[0] == "not_found"
