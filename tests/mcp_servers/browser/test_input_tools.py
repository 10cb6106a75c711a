"""The tools that act on pages, on a real Chromium."""

import json
from pathlib import Path
from typing import cast

import anyio
import pytest

from mcp_servers import ToolTable
from tests.mcp_servers.browser._browsing import Browsing, new_session, ref
from tests.mcp_servers.browser._site import Site


@pytest.mark.promise("browser:navigate")
async def test_a_page_is_opened_and_its_links_are_followed(browsing: Browsing) -> None:
    seen = await browsing.open("/")
    assert 'heading "Home"' in seen
    page = await browsing.data("click", target=ref(seen, 'link "Form"'), element="the form")
    assert (page["url"], page["title"]) == (f"{browsing.site.url}/form", "Form")
    back = await browsing.data("navigate_back")
    assert back["title"] == "Home"
    blank = await browsing.data("navigate_back")
    assert blank["url"] == "about:blank"
    assert (await browsing.failure("navigate_back"))[0] == "not_found"


@pytest.mark.promise("browser:form")
async def test_a_form_is_filled_and_sent(browsing: Browsing) -> None:
    seen = await browsing.open("/form")
    fields = [
        {"target": ref(seen, 'textbox "Text"'), "name": "text", "type": "textbox", "value": "a text"},
        {"target": ref(seen, 'checkbox "Agree"'), "name": "agree", "type": "checkbox", "value": "true"},
        {"target": ref(seen, 'radio "Large"'), "name": "size", "type": "radio", "value": "true"},
        {"target": ref(seen, 'combobox "Colour"'), "name": "colour", "type": "combobox", "value": "green"},
    ]
    await browsing.data("fill_form", fields=fields)
    page = await browsing.data("type", target=ref(seen, 'textbox "Name"'), text="Ada", submit=True)
    assert "name=Ada, text=a text, agree=on, size=l, colour=green" in str(page["snapshot"])
    await browsing.open("/form")
    chosen = await browsing.data("select_option", target="select", values=["green"])
    assert 'option "green" [selected]' in str(chosen["snapshot"])
    fields[1]["value"] = "maybe"
    kind, message = await browsing.failure(
        "fill_form", fields=[{**fields[1], "target": "input[type=checkbox]"}]
    )
    assert kind == "bad_arguments"
    assert "`true` or `false`" in message


@pytest.mark.promise("browser:click")
async def test_an_element_is_clicked_in_every_way(browsing: Browsing) -> None:
    await browsing.open("/buttons")
    for arguments, output in (
        ({}, "clicked"),
        ({"doubleClick": True}, "twice"),
        ({"button": "right"}, "right"),
    ):
        await browsing.press("One", **arguments)
        assert await browsing.out() == json.dumps(output)
    await browsing.data("hover", target="text=Hover here")
    assert await browsing.out() == '"over"'
    await browsing.data("type", target="role=textbox", text="xy", slowly=True)
    assert await browsing.out() == '"key y"'
    await browsing.data("press_key", key="ArrowLeft")
    assert await browsing.out() == '"key ArrowLeft"'


@pytest.mark.promise("browser:settle")
async def test_a_result_shows_what_an_action_made_the_page_load(browsing: Browsing) -> None:
    await browsing.open("/buttons")
    assert "data: 42" in str((await browsing.press("Fetch"))["snapshot"])
    await browsing.press("Later")
    assert "arrived" in str((await browsing.data("wait_for", text="arrived at last"))["snapshot"])
    assert (await browsing.call("wait_for", textGone="nothing at all")).ok
    assert (await browsing.call("wait_for", time=0)).ok
    assert (await browsing.failure("wait_for"))[0] == "bad_arguments"


@pytest.mark.promise("browser:dialog")
@pytest.mark.parametrize(
    ("button", "answer", "expected"),
    [
        ("Alert", {"accept": True}, "nothing"),
        ("Confirm", {"accept": True}, "asked: true"),
        ("Confirm", {"accept": False}, "asked: false"),
        ("Prompt", {"accept": True, "promptText": "Bob"}, "named: Bob"),
        ("Prompt", {"accept": False}, "named: null"),
    ],
)
async def test_a_dialog_holds_up_the_page_until_it_is_answered(
    browsing: Browsing, button: str, answer: dict[str, object], expected: str
) -> None:
    seen = await browsing.open("/buttons")
    page = await browsing.data("click", target=ref(seen, f'button "{button}"'))
    dialog = page["dialog"]
    assert isinstance(dialog, dict)
    assert page["snapshot"] is None
    assert dialog["type"] == button.lower()
    for name, arguments in (("snapshot", {}), ("click", {"target": "button"})):
        kind, message = await browsing.failure(name, **arguments)
        assert kind == "failed"
        assert "browser_handle_dialog" in message
    after = await browsing.data("handle_dialog", **answer)
    assert after["dialog"] is None
    assert expected in str(after["snapshot"])
    assert (await browsing.failure("handle_dialog", accept=True))[0] == "not_found"


@pytest.mark.promise("browser:files")
async def test_files_of_the_workspace_are_given_to_pages(browsing: Browsing) -> None:
    await browsing.write("a.txt", "one")
    await browsing.write("b.txt", "two")
    await browsing.open("/files")
    page = await browsing.data("click", target="input[type=file]")
    assert page["file_chooser"] is True
    assert "browser_file_upload" in (await browsing.failure("snapshot"))[1]
    assert (await browsing.failure("file_upload", paths=["c.txt"]))[0] == "not_found"
    after = await browsing.data("file_upload", paths=["a.txt", "b.txt"])
    assert "a.txt=one;b.txt=two" in str(after["snapshot"])
    assert (await browsing.failure("file_upload", paths=["a.txt"]))[0] == "not_found"
    dropped = await browsing.data("drop", target="#place", paths=["b.txt"])
    assert "b.txt=two" in str(dropped["snapshot"])
    text = await browsing.data("drop", target="#place", data={"text/plain": "words"})
    assert "words" in str(text["snapshot"])
    await browsing.data("click", target="input[type=file]")
    assert (await browsing.data("file_upload"))["file_chooser"] is False


@pytest.mark.promise("browser:files")
async def test_a_page_that_leaves_while_it_waits_for_files_does_not_block_the_next(
    browsing: Browsing,
) -> None:
    await browsing.open("/files")
    leave = "() => setTimeout(() => location.assign('/buttons'), 300)"
    await browsing.script(f"() => {{ document.querySelector('input').addEventListener('click', {leave}); }}")
    page = await browsing.data("click", target="input[type=file]")
    with anyio.fail_after(30):
        while page["file_chooser"] or page["title"] != "Buttons":
            page = await browsing.data("tabs", action="list")
    await browsing.press("One")
    assert await browsing.out() == '"clicked"'


@pytest.mark.promise("browser:files:host")
async def test_no_file_of_the_host_is_given_to_a_page(browsing: Browsing, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("of the host")
    await browsing.open("/files")
    await browsing.data("click", target="input[type=file]")
    for path in (str(secret), f"../../../../../..{secret}", f"/proc/1/root{secret}"):
        kind, _ = await browsing.failure("file_upload", paths=[path])
        assert kind in ("not_found", "denied")
    await browsing.data("file_upload")
    assert await browsing.out() == '"none"'


@pytest.mark.promise("browser:downloads")
async def test_downloads_lie_in_the_workspace(browsing: Browsing) -> None:
    seen = await browsing.open("/files")
    page = await browsing.data("click", target=ref(seen, 'link "Report"'))
    (download,) = cast("list[dict[str, object]]", page["downloads"])
    assert download["name"] == "report.txt"
    assert (download["size"], download["error"]) == (7, None)
    assert await browsing.file("downloads/report.txt") == "figures"
    odd = await browsing.data("click", target="text=Odd")
    (download,) = cast("list[dict[str, object]]", odd["downloads"])
    assert str(download["path"]).startswith("/home/agent/downloads/")
    assert await browsing.file(str(download["path"])) == "odd"
    direct = await browsing.data("navigate", url=f"{browsing.site.url}/download")
    assert direct["downloads"]


@pytest.mark.promise("browser:tabs")
async def test_tabs_are_opened_selected_and_closed(browsing: Browsing) -> None:
    seen = await browsing.open("/")
    page = await browsing.data("click", target=ref(seen, 'link "Popup"'))
    assert page["title"] == "Home"
    notes = str(page["note"])
    while not tabs_of(page):
        # A new tab may be there a moment later.
        page = await browsing.data("wait_for", time=0.05)
        notes += str(page["note"])
    assert "opened another tab" in notes
    assert [(tab["title"], tab["current"]) for tab in tabs_of(page)] == [("Home", True), ("Popup", False)]
    chosen = await browsing.data("tabs", action="select", index=1)
    assert chosen["title"] == "Popup"
    new = await browsing.data("tabs", action="new", url=f"{browsing.site.url}/form")
    assert [tab["current"] for tab in tabs_of(new)] == [False, False, True]
    closed = await browsing.data("tabs", action="close")
    assert closed["title"] == "Popup"
    (first, second) = tabs_of(closed)
    assert (first["index"], second["index"], second["current"]) == (0, 1, True)
    assert (await browsing.failure("tabs", action="select", index=9))[0] == "not_found"
    assert (await browsing.failure("tabs", action="select"))[0] == "bad_arguments"
    await browsing.data("tabs", action="close", index=0)
    (single,) = tabs_of(await browsing.data("tabs", action="list"))
    assert (single["index"], single["title"], single["current"]) == (0, "Popup", True)
    assert tabs_of(await browsing.data("snapshot")) == []
    last = await browsing.data("tabs", action="close")
    assert "No tab is open" in str(last["note"])
    assert await browsing.open("/")


def tabs_of(page: dict[str, object]) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", page["tabs"])


@pytest.mark.promise("browser:tabs:limit")
async def test_a_page_can_not_open_tabs_without_end(browsers: ToolTable, site: Site) -> None:
    few = await new_session(browsers, site, tabs=3)
    await few.open("/buttons")
    await few.press("Many")
    page = await few.data("tabs", action="list")
    assert len(tabs_of(page)) == 3
    assert (await few.failure("tabs", action="new"))[0] == "denied"
    await few.end()


@pytest.mark.promise("browser:mouse")
async def test_the_mouse_goes_by_pixels(browsing: Browsing) -> None:
    await browsing.open("/drag")
    page = await browsing.data("drag", startTarget="#a", endTarget="#b")
    assert "arrived" in str(page["snapshot"])
    box = "() => { const r = document.getElementById('c').getBoundingClientRect(); return [r.x, r.y]; }"
    x, y = json.loads(str(await browsing.script(box)))
    await browsing.data("mouse_click_xy", x=x + 40, y=y + 10)
    assert await browsing.out() == '"at 40"'
    await browsing.data("mouse_move_xy", x=x + 70, y=y + 10)
    await browsing.data("mouse_down")
    await browsing.data("mouse_up")
    assert await browsing.out() == '"at 70"'
    await browsing.data("mouse_drag_xy", startX=30, startY=100, endX=40, endY=110)
    await browsing.open("/long")
    await browsing.data("mouse_wheel", deltaY=500)
    assert await browsing.script("() => scrollY") == "500"


@pytest.mark.promise("browser:window")
async def test_the_page_has_the_size_and_media_that_are_asked_for(browsing: Browsing) -> None:
    await browsing.open("/")
    await browsing.data("resize", width=600, height=400)
    assert await browsing.script("() => [innerWidth, innerHeight].join()") == '"600,400"'
    dark = "() => matchMedia('(prefers-color-scheme: dark)').matches"
    await browsing.data("emulate_media", colorScheme="dark")
    assert await browsing.script(dark) == "true"
    await browsing.data("emulate_media", reducedMotion="reduce")
    assert await browsing.script(dark) == "true"
    await browsing.data("emulate_media", colorScheme=None)
    assert await browsing.script(dark) == "false"


@pytest.mark.promise("browser:close")
async def test_a_closed_browser_has_forgotten_everything(browsing: Browsing) -> None:
    await browsing.open("/store")
    await browsing.press("Local")
    await browsing.press("Cookie")
    page = await browsing.data("close")
    assert "No tab is open" in str(page["note"])
    await browsing.open("/store")
    assert await browsing.out() == '" | - | -"'


@pytest.mark.promise("browser:failures")
async def test_an_impossible_action_is_a_one_line_failure(browsers: ToolTable, site: Site) -> None:
    browsing = await new_session(browsers, site, action_seconds=2)
    await browsing.open("/buttons")
    assert (await browsing.failure("click", target="e4711"))[0] == "not_found"
    kind, message = await browsing.failure("click", target="#nowhere")
    assert kind == "timeout"
    assert "Timeout" in message
    kind, message = await browsing.failure("click", target="button")
    assert kind == "failed"
    assert "strict mode" in message
    assert (await browsing.failure("click", target="<<<"))[0] == "failed"
    kind, message = await browsing.failure("evaluate", function="() => nowhere()")
    assert kind == "failed"
    assert message.endswith("ReferenceError: nowhere is not defined")
    assert (await browsing.failure("evaluate", function="(((("))[0] == "failed"
    assert (await browsing.failure("press_key", key="NoSuchKey"))[0] == "failed"
    assert (await browsing.failure("drop", target="p"))[0] == "bad_arguments"
    assert (await browsing.failure("run_code_unsafe", code="1"))[0] == "tool_not_found"
    await browsing.end()
