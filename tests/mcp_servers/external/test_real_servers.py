"""Servers of other projects from npm and PyPI, and one of ours over HTTP."""

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal, cast

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from agentflow.sandbox import Sandbox, SandboxSettings
from mcp_servers import HttpOptions, Image, ResourceLink, ToolTable
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._serving import serving
from tests.mcp_servers.external._mounting import Mounting, from_npm, mounting_for_long, server_settings

FILES = {"letter.txt": "Dear all,\n", "folder/list.txt": "one\ntwo\n"}
TIME = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "Etc/UTC"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files for a server to work with."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
async def mounted(anyio_backend: Literal["asyncio"], folder: Path) -> AsyncGenerator[Mounting]:
    servers = {
        "everything": server_settings(from_npm("server-everything", "stdio")),
        "files": server_settings(from_npm("server-filesystem", "{workspace}"), workspace=str(folder)),
        "time": server_settings(TIME),
    }
    async with mounting_for_long(servers) as mounted:
        yield mounted


@pytest.mark.promise("external:schemas")
async def test_tools_have_the_schemas_annotations_and_descriptions_of_their_servers(
    mounted: Mounting,
) -> None:
    command, *arguments = TIME
    server = StdioServerParameters(command=command, args=arguments)
    async with Client(stdio_client(server)) as client:
        real = {tool.name: tool for tool in (await client.list_tools()).tools}
    for name, tool in real.items():
        ours = mounted.table.tool(f"mcp:time.{name}")
        assert ours.name == f"mcp_time_{name}"
        assert ours.input_schema == tool.input_schema
        assert ours.output_schema == tool.output_schema
        assert tool.description is not None
        assert ours.description.endswith(tool.description)
        assert tool.annotations is not None
        assert ours.hints.read_only == tool.annotations.read_only_hint
    edit = mounted.table.tool("mcp:files.edit_file").hints
    assert (edit.read_only, edit.destructive, edit.open_world) == (False, True, False)


@pytest.mark.promise("external:npm")
async def test_a_server_from_npm_reads_and_writes_its_folder(mounted: Mounting, folder: Path) -> None:
    assert "letter.txt" in str((await mounted.call("files.list_directory", path=str(folder))).data)
    written = await mounted.call("files.write_file", path=str(folder / "new.txt"), content="new")
    assert written.ok, written
    assert (folder / "new.txt").read_text(encoding="utf-8") == "new"
    kind, message = await mounted.failure("files.read_text_file", path="/etc/passwd")
    assert kind == "failed"
    assert message.startswith("mcp:files.read_text_file: ")


@pytest.mark.promise("external:pypi")
async def test_a_server_from_pypi_answers_with_data(mounted: Mounting) -> None:
    result = await mounted.call("time.get_current_time", timezone="Europe/Berlin")
    assert result.ok, result
    assert result.data["timezone"] == "Europe/Berlin"
    # The text of the answer only repeats the data.
    assert result.parts == ()


@pytest.mark.promise("external:content")
async def test_images_links_and_data_are_passed_on(mounted: Mounting) -> None:
    picture = await mounted.call("everything.get-tiny-image")
    assert [part.mime for part in picture.parts if isinstance(part, Image)] == ["image/png"]
    links = await mounted.call("everything.get-resource-links", count=2)
    assert len([part for part in links.parts if isinstance(part, ResourceLink)]) == 2
    data = await mounted.call("everything.get-structured-content", location="Chicago")
    assert set(data.data) == {"temperature", "conditions", "humidity"}
    assert "This is a base64" in await mounted.text(
        "everything.get-resource-reference", resourceType="Blob", resourceId=1
    ) or "resource" in await mounted.text("everything.get-resource-reference", resourceType="Text")


@pytest.mark.promise("external:arguments")
async def test_arguments_are_checked_by_the_server_s_own_schema(mounted: Mounting) -> None:
    kind, message = await mounted.failure("everything.get-sum", a="x", b=2)
    assert (kind, message) == ("bad_arguments", "mcp:everything.get-sum: a: 'x' is not of type 'number'")
    kind, message = await mounted.failure("everything.get-sum", a=1)
    assert message == "mcp:everything.get-sum: 'b' is a required property"


@pytest.mark.promise("external:progress")
async def test_progress_is_passed_on(mounted: Mounting) -> None:
    steps: list[tuple[float, float | None]] = []
    result = await mounted.table.call(
        "mcp:everything.trigger-long-running-operation",
        {"duration": 0.1, "steps": 3},
        progress=lambda done, total, _: steps.append((done, total)),
    )
    assert result.ok, result
    assert steps == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.promise("external:environment")
async def test_a_command_gets_only_the_named_environment_variables(
    mounted: Mounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = cast("dict[str, str]", json.loads(await mounted.text("everything.get-env")))
    assert environment.keys() == {"PATH", "LANG"}


@pytest.mark.promise("external:http")
@pytest.mark.parametrize("token", ["right", "wrong"])
async def test_a_server_is_mounted_by_url_and_headers(token: str) -> None:
    async with (
        ToolTable([Counter()]) as table,
        serving(table, HttpOptions(port=0, tokens={"me": "right"})) as server,
    ):
        there = {"url": server.url, "headers": {"Authorization": f"Bearer {token}"}}
        settings = SandboxSettings(backends={"mcp": {"servers": {"far": there}}})
        if token == "wrong":
            with pytest.raises(Exception, match="mcp server 'far' cannot be started") as refusal:
                await Sandbox(settings).start()
            assert "\n" not in str(refusal.value)
            return
        async with Sandbox(settings) as sandbox:
            assert (await sandbox.execute("mcp:far.counter_echo", {"text": "ä"})).data == {"text": "ä"}
            denied = await sandbox.execute("mcp_far_counter_fail")
            assert denied.error is not None
            # A server like ours includes the kind of the failure.
            assert denied.error.kind == "denied"
            assert denied.data == {"stdout": "half"}
            picture = await sandbox.execute("mcp:far.counter_picture")
            assert isinstance(picture.parts[0], Image)
