"""Read-only tools."""

import json
from typing import cast

import pytest

from mcp_servers import ResourceLink, ToolTable
from tests.mcp_servers.browser._browsing import Browsing, new_session, pictures, ref
from tests.mcp_servers.browser._site import Site


@pytest.mark.promise("browser:snapshot")
async def test_a_snapshot_names_elements_also_inside_of_frames(browsing: Browsing) -> None:
    seen = await browsing.open("/frames")
    field = ref(seen, 'textbox "Name"')
    assert "Name" in seen
    page = await browsing.data("type", target=field, text="Ada")
    assert "Ada" in str(page["snapshot"])
    part = await browsing.data("snapshot", target=field)
    assert "Outside" not in str(part["snapshot"])
    assert "box=" in str((await browsing.data("snapshot", boxes=True))["snapshot"])
    whole = await browsing.open("/form")
    assert len(str((await browsing.data("snapshot", depth=1))["snapshot"])) < len(whole)
    saved = await browsing.data("snapshot", filename="page.txt")
    assert "saved to" in str(saved["snapshot"])
    assert "Agree" in await browsing.file("page.txt")


@pytest.mark.promise("browser:snapshot:long")
async def test_a_long_snapshot_is_cut_in_the_middle_and_kept_whole(browsers: ToolTable, site: Site) -> None:
    long = await new_session(browsers, site, snapshot_characters=2_000)
    result = await long.call("navigate", url=f"{site.url}/long")
    text = str(result.data["snapshot"])
    assert len(text) < 2_500
    assert "Line 0" in text
    assert 'button "Last"' in text
    (link,) = [part for part in result.parts if isinstance(part, ResourceLink)]
    assert link.uri in text
    assert link.size > 10_000
    await long.end()


@pytest.mark.promise("browser:find")
async def test_lines_of_a_snapshot_are_found_with_their_path(browsing: Browsing) -> None:
    await browsing.open("/long")
    result = await browsing.data("find", text="line 250")
    assert result["matches"] == 1
    assert "Line 249" in str(result["text"])
    assert "Line 200" not in str(result["text"])
    assert str(result["text"]).startswith("- generic")
    assert (await browsing.data("find", regex="/LINE 1\\d\\d$/i"))["matches"] == 100
    assert (await browsing.data("find", text="nowhere"))["matches"] == 0
    assert (await browsing.failure("find"))[0] == "bad_arguments"
    assert (await browsing.failure("find", regex="("))[0] == "bad_arguments"


@pytest.mark.promise("browser:screenshot")
async def test_a_screenshot_is_a_picture_beside_the_data(browsing: Browsing) -> None:
    await browsing.open("/long")
    result = await browsing.call("take_screenshot")
    (picture,) = pictures(result)
    assert picture.data.startswith(b"\x89PNG")
    assert "PNG" not in json.dumps(result.data)
    (whole,) = pictures(await browsing.call("take_screenshot", fullPage=True, type="jpeg"))
    assert whole.mime == "image/jpeg"
    assert len(whole.data) > len(picture.data)
    (part,) = pictures(await browsing.call("take_screenshot", target="h1", filename="top.png"))
    assert len(part.data) < len(picture.data)
    both = await browsing.failure("take_screenshot", target="h1", fullPage=True)
    assert both[0] == "bad_arguments"
    await browsing.data("evaluate", function="() => { document.body.style.height = '90000px'; }")
    assert (await browsing.failure("take_screenshot", fullPage=True))[0] == "output_limit"


@pytest.mark.promise("browser:pdf")
async def test_a_page_is_saved_as_pdf(browsing: Browsing) -> None:
    await browsing.open("/")
    first = await browsing.data("pdf_save")
    assert str(first["path"]).endswith("/page-1.pdf")
    named = await browsing.data("pdf_save", filename="out/home.pdf")
    read = await browsing.table.call(
        "files_read", {"session": browsing.session, "path": named["path"], "encoding": "base64"}
    )
    assert str(read.data["content"]).startswith("JVBERi0")


@pytest.mark.promise("browser:console")
async def test_the_console_is_read_and_errors_are_reported_with_the_action(browsing: Browsing) -> None:
    await browsing.open("/buttons")
    page = await browsing.press("Log")
    assert [line for line in cast("list[str]", page["console"]) if "[error] broken 1" in line]
    page = await browsing.press("Throw")
    assert "undefined_thing is not defined" in str(page["console"])
    await browsing.script("() => { console.log('for information'); console.debug('much'); }")
    lines = cast("list[str]", (await browsing.data("console_messages"))["messages"])
    assert any("for information" in line for line in lines)
    assert not any("much" in line for line in lines)
    errors = await browsing.data("console_messages", level="error")
    assert not any("information" in line for line in cast("list[str]", errors["messages"]))
    await browsing.open("/")
    assert (await browsing.data("console_messages"))["messages"] == []
    assert (await browsing.data("console_messages", all=True, filename="console.txt"))["path"]
    assert "broken 1" in await browsing.file("console.txt")


@pytest.mark.promise("browser:network")
async def test_requests_are_listed_and_shown(browsing: Browsing) -> None:
    await browsing.open("/buttons")
    await browsing.press("Fetch")
    listed = await browsing.data("network_requests", filter="/data$")
    (line,) = cast("list[str]", listed["requests"])
    assert line.endswith("/data => 200 OK")
    number = int(line.partition(".")[0])
    whole = await browsing.data("network_request", index=number)
    assert (whole["method"], whole["status"]) == ("GET", 200)
    assert '{"value": 42}' in str(whole["text"])
    assert "x-kind: data" in str(whole["text"])
    body = await browsing.data("network_request", index=number, part="response-body")
    assert body["text"] == '{"value": 42}'
    assert (await browsing.failure("network_request", index=4711))[0] == "not_found"
    assert (await browsing.failure("network_requests", filter="["))[0] == "bad_arguments"


@pytest.mark.promise("browser:evaluate")
async def test_a_script_reads_the_page_or_an_element(browsing: Browsing) -> None:
    seen = await browsing.open("/form")
    assert json.loads(str(await browsing.script("() => ({a: [1, null], b: document.title})"))) == {
        "a": [1, None],
        "b": "Form",
    }
    assert await browsing.script("document.title") == '"Form"'
    assert await browsing.script("() => undefined") == "null"
    assert await browsing.script("async () => await 7") == "7"
    name = ref(seen, 'textbox "Name"')
    value = await browsing.data("evaluate", function="element => element.name", target=name)
    assert value["value"] == '"name"'
    kind, message = await browsing.failure("evaluate", function="() => 'x'.repeat(2_000_000)")
    assert kind == "failed"
    assert "2000002 characters" in message
    saved = await browsing.data("evaluate", function="() => 'x'.repeat(9)", filename="out.json")
    assert "out.json" in str(saved["value"])
    assert await browsing.file("out.json") == '"xxxxxxxxx"'


@pytest.mark.promise("browser:evaluate:endless")
async def test_an_endless_script_is_stopped_and_the_session_continues(
    browsers: ToolTable, site: Site
) -> None:
    endless = await new_session(browsers, site, script_seconds=0.5)
    await endless.open("/")
    assert (await endless.failure("evaluate", function="() => { for (;;); }"))[0] == "timeout"
    assert (await endless.failure("evaluate", function="() => new Promise(() => {})"))[0] == "timeout"
    assert "Form" in await endless.open("/form")
    await endless.script("() => { document.body.textContent = 'a'.repeat(60); }")
    kind, _ = await endless.failure("find", regex="(a|a)*b")
    assert kind == "timeout"
    assert "Form" in await endless.open("/form")
    await endless.end()
