"""Forks of sessions: the same pages in a separate browser context."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_servers import ToolTable
from mcp_servers.browser._snapshots import without_refs
from tests.mcp_servers.browser._browsing import Browsing, new_session, ref
from tests.mcp_servers.browser._site import LOSING, Site

STATE = """() => location.origin === 'null' ? location.href : [location.href, scrollX, scrollY, document.activeElement.ariaLabel, document.cookie,
  {...localStorage}, {...sessionStorage}, innerWidth,
  [...document.querySelectorAll('input,textarea,select')].map(e => [e.value, e.checked ?? null]),
  document.querySelector('[contenteditable]')?.innerHTML ?? null]"""


async def carried(browsing: Browsing) -> tuple[str, object]:
    """State that a fork keeps: the look of the page, and state visible to its scripts."""
    return without_refs(await browsing.snapshot()), await browsing.script(STATE)


@pytest.mark.promise("browser:fork:carried")
async def test_fields_scroll_focus_storage_and_history_are_carried(browsing: Browsing) -> None:
    await browsing.open("/store")
    for name in ("Local", "Local", "Session", "Cookie"):
        await browsing.press(name)
    seen = await browsing.open("/form")
    fields = [
        {"target": ref(seen, 'textbox "Name"'), "name": "name", "type": "textbox", "value": "Ada"},
        {"target": ref(seen, 'checkbox "Agree"'), "name": "agree", "type": "checkbox", "value": "true"},
        {"target": ref(seen, 'radio "Large"'), "name": "large", "type": "radio", "value": "true"},
        {"target": ref(seen, 'combobox "Colour"'), "name": "colour", "type": "combobox", "value": "green"},
        {"target": ref(seen, 'slider "Level"'), "name": "level", "type": "slider", "value": "8"},
        {"target": ref(seen, 'textbox "Notes"'), "name": "notes", "type": "textbox", "value": "some"},
    ]
    await browsing.data("fill_form", fields=fields)
    before = await browsing.snapshot()
    fork, left_behind = await browsing.fork()
    assert left_behind == []
    assert await fork.snapshot() == before
    assert await carried(fork) == await carried(browsing)
    await fork.data("navigate_back")
    await browsing.data("navigate_back")
    assert await fork.out() == await browsing.out() == json.dumps("a=1 | 2 | 1")
    await fork.end()


@pytest.mark.promise("browser:fork:names")
async def test_names_of_elements_in_the_parent_s_snapshot_are_good_in_the_fork(browsing: Browsing) -> None:
    await browsing.open("/")
    seen = await browsing.open("/grow")
    button = ref(seen, 'button "Add"')
    fork, _ = await browsing.fork()
    assert await fork.snapshot() == await browsing.snapshot()
    after = str((await fork.data("click", target=button))["snapshot"])
    assert "item" in after
    item = ref(after, "listitem")
    assert item not in seen
    assert (await fork.call("click", target=item)).ok
    assert "item" not in await browsing.snapshot()
    assert (await fork.failure("click", target="e9999"))[0] == "not_found"
    await fork.end()


@pytest.mark.promise("browser:fork:left-behind")
async def test_a_fork_reports_page_state_built_by_scripts_as_left_behind(browsing: Browsing) -> None:
    seen = await browsing.open("/grow")
    await browsing.data("click", target=ref(seen, 'button "Add"'))
    fork, left_behind = await browsing.fork()
    (line,) = left_behind
    assert "/grow" in line
    assert "differs" in line
    assert "- list" in line
    await fork.end()


@pytest.mark.promise("browser:fork:left-behind")
async def test_a_fork_names_what_the_reload_of_each_page_has_lost_and_nothing_else(
    browsing: Browsing,
) -> None:
    for name, (_, script, _) in LOSING.items():
        await browsing.data("tabs", action="new", url=f"{browsing.site.url}/losing/{name}")
        await browsing.script(f"async () => {{ {script} }}")
    fork, left_behind = await browsing.fork()
    lost: dict[str, list[str]] = {name: [] for name in LOSING}
    for line in left_behind:
        where, _, what = line.replace(f"127.0.0.1:{browsing.site.port}", "SITE").rpartition("): ")
        name = where.rpartition("/")[2] or "stored"
        lost[name].append(re.sub(r"at [\d.]+ s", "at TIME s", what))
    assert lost == {name: lines for name, (_, _, lines) in LOSING.items()}
    await fork.end()


@pytest.mark.promise("browser:fork:left-behind")
async def test_a_dialog_must_be_answered_before_a_fork(browsing: Browsing) -> None:
    await browsing.open("/buttons")
    await browsing.press("Alert")
    forked = await browsing.table.call("session_fork", {"session": browsing.session})
    assert forked.error is not None
    assert forked.error.kind == "cannot_fork"
    assert "browser_handle_dialog" in forked.error.message
    await browsing.data("handle_dialog", accept=True)
    fork, _ = await browsing.fork()
    await fork.end()


@pytest.mark.promise("browser:fork:carried")
async def test_tabs_frames_and_scrolled_places_are_carried(browsing: Browsing) -> None:
    await browsing.open("/frames")
    field = ref(await browsing.snapshot(), 'textbox "Name"')
    await browsing.data("type", target=field, text="inside")
    await browsing.data("tabs", action="new", url=f"{browsing.site.url}/long#end")
    await browsing.data("resize", width=500, height=300)
    fork, left_behind = await browsing.fork()
    assert left_behind == []
    ours, theirs = await browsing.data("tabs", action="list"), await fork.data("tabs", action="list")
    assert theirs["tabs"] == ours["tabs"]
    assert theirs["snapshot"] == ours["snapshot"]
    assert await carried(fork) == await carried(browsing)
    assert "500" in str((await carried(fork))[1])
    assert '"inside"' not in str(theirs["snapshot"])
    await fork.data("tabs", action="select", index=0)
    await browsing.data("tabs", action="select", index=0)
    assert await fork.snapshot() == await browsing.snapshot()
    assert "inside" in await fork.snapshot()
    await fork.end()


@pytest.mark.promise("browser:fork:carried")
async def test_a_session_without_a_page_is_forked_too(browsing: Browsing) -> None:
    fork, left_behind = await browsing.fork()
    assert left_behind == []
    assert await fork.open("/")
    await fork.end()


STEPS: dict[str, tuple[str, str, dict[str, object]]] = {
    "form": ("", "navigate", {"url": "/form"}),
    "long": ("", "navigate", {"url": "/long#end"}),
    "store": ("", "navigate", {"url": "/store"}),
    "back": ("", "navigate_back", {}),
    "local": ('button "Local"', "click", {}),
    "session": ('button "Session"', "click", {}),
    "cookie": ('button "Cookie"', "click", {}),
    "name": ('textbox "Name"', "type", {"text": "Ada"}),
    "notes": ('textbox "Notes"', "type", {"text": "more"}),
    "agree": ('checkbox "Agree"', "click", {}),
    "large": ('radio "Large"', "click", {}),
    "green": ('combobox "Colour"', "select_option", {"values": ["green"]}),
    "send": ('button "Send"', "click", {}),
    "wide": ("", "resize", {"width": 900, "height": 500}),
}
"""Possible actions on the site: an element and a tool."""


async def do(browsing: Browsing, steps: list[str]) -> None:
    """Do it, except what the page has no place for."""
    seen = await browsing.snapshot()
    for step in steps:
        line, name, arguments = STEPS[step]
        if line not in seen:
            continue
        request = dict(arguments)
        if line:
            request["target"] = ref(seen, line)
        if "url" in request:
            request["url"] = f"{browsing.site.url}{request['url']}"
        result = await browsing.call(name, **request)
        assert result.ok or name == "navigate_back", result
        seen = await browsing.snapshot()


@pytest.mark.promise("browser:fork:exact")
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    before=st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    after=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
)
async def test_parent_fork_and_replay_agree_and_siblings_do_not_see_each_other(
    browsers: ToolTable, site: Site, before: list[str], after: list[str]
) -> None:
    parent, replay = await new_session(browsers, site), await new_session(browsers, site)
    for branch in (parent, replay):
        await branch.open("/form")
        await do(branch, before)
    fork, left_behind = await parent.fork()
    sibling, _ = await parent.fork()
    at_fork = await carried(parent)
    assert left_behind == []
    assert await carried(fork) == at_fork == await carried(replay)
    await do(fork, after)
    assert await carried(parent) == await carried(sibling) == at_fork
    await do(replay, after)
    assert await carried(fork) == await carried(replay)
    for branch in (parent, fork, sibling, replay):
        await branch.end()
