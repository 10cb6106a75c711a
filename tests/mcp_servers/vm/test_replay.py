"""Replay: a desktop cannot be copied, so a branch repeats its steps and must reach the same state."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_servers import ToolTable
from tests.mcp_servers.live import Live, images
from tests.mcp_servers.vm._machines import machine_of
from tests.runtimes.desktop._waiting import content, terminal

Action = tuple[str, dict[str, Any]]

PLACE = st.fixed_dictionaries({"x": st.integers(0, 319), "y": st.integers(0, 239)})
TEXT = st.text("abc XYZ09äß€", min_size=1, max_size=8)
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("vm_click"), PLACE),
    st.tuples(st.just("vm_move"), PLACE),
    st.tuples(st.just("vm_type"), st.fixed_dictionaries({"text": TEXT})),
    st.tuples(st.just("vm_key"), st.fixed_dictionaries({"key": st.sampled_from(["backspace", "enter"])})),
)


async def played(table: ToolTable, actions: Sequence[Action]) -> tuple[Live, str]:
    """Return a fresh session after these actions, and its file."""
    result = await table.call("session_start", {"settings": {"vm": {"screen_size": [320, 240]}}})
    live = Live(table, str(result.data["session"]))
    await live.data("vm_screenshot")
    machine = machine_of(live)
    await terminal(machine, "notes", "notes.txt")
    for name, arguments in actions:
        await live.data(name, **arguments)
    await live.data("vm_type", text="\nend\n")
    return live, await content(machine, "notes.txt", "end\n")


async def shown(live: Live) -> bytes:
    """Return the picture of its screen, once it stops changing."""
    await live.data("vm_wait", seconds=60, until_still=True)
    (picture,) = images(await live.call("vm_screenshot"))
    return picture.data


@pytest.mark.promise("vm:replay")
@pytest.mark.timeout(300)
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=st.lists(ACTIONS, min_size=3, max_size=6))
async def test_the_same_actions_in_a_fresh_session_lead_to_the_same_state(
    table: ToolTable, actions: list[Action]
) -> None:
    first, text = await played(table, actions)
    second, same = await played(table, actions)
    assert text == same
    assert await machine_of(first).windows() == await machine_of(second).windows()
    # On a busy machine a terminal may draw its output late.
    with anyio.fail_after(60):
        while await shown(first) != await shown(second):
            continue
    for live in (first, second):
        await live.data("session_end")
