"""Sessions: owned, forked, ended, expired."""

import re

import anyio
import pytest

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers import Backend, ClientQuota, Session, TableLimits, ToolTable
from mcp_servers.core._sessions import new_handle
from tests.mcp_servers._counter import Counter
from tests.mcp_servers._now import Now
from tests.mcp_servers.core.test_table import failure, started


def test_handles_cannot_be_guessed() -> None:
    handles = {new_handle() for _ in range(100)}
    assert len(handles) == 100
    assert all(re.fullmatch(r"session-[0-9a-f]{24}", handle) for handle in handles)


@pytest.mark.promise("mcp:session:owner")
async def test_another_principal_s_session_is_reported_as_unknown(table: ToolTable) -> None:
    handle = await started(table, "alice")
    refused = failure(await table.call("counter_add", {"session": handle}, principal="bob"))
    unknown = failure(await table.call("counter_add", {"session": "session-0"}, principal="bob"))
    assert refused[0] is unknown[0] is ErrorKind.SESSION_NOT_FOUND
    assert refused[1].replace(handle, "…") == unknown[1].replace("session-0", "…")
    for name in ("session_end", "session_fork"):
        assert failure(await table.call(name, {"session": handle}, principal="bob"))[0] is refused[0]
    assert (await table.call("session_list", principal="bob")).data == {"sessions": []}
    assert (await table.call("counter_add", {"session": handle}, principal="alice")).ok


@pytest.mark.promise("mcp:session:fork")
async def test_parent_and_fork_are_independent_and_either_may_end_first(table: ToolTable) -> None:
    parent = await started(table)
    await table.call("counter_add", {"session": parent, "amount": 10})
    forked = (await table.call("session_fork", {"session": parent})).data
    assert forked["parent"] == parent
    assert forked["left_behind"] == []
    fork = forked["session"]
    assert (await table.call("counter_add", {"session": fork})).data == {"count": 11}
    assert (await table.call("counter_add", {"session": parent})).data == {"count": 11}
    await table.call("session_end", {"session": parent})
    assert (await table.call("counter_add", {"session": fork})).data == {"count": 12}


class Forgetful(Backend):
    """Cannot copy all of its state."""

    name = "forgetful"

    async def fork(self, session: Session, forked: Session) -> tuple[str, ...]:
        return ("the page at /form looks different",)


@pytest.mark.promise("mcp:session:fork")
async def test_state_that_a_backend_cannot_copy_is_listed_for_the_fork() -> None:
    async with ToolTable([Counter(), Forgetful()]) as table:
        started = (await table.call("session_start", {"backends": ["counter", "forgetful"]})).data["session"]
        forked = (await table.call("session_fork", {"session": started})).data
    assert forked["left_behind"] == ["the page at /form looks different"]


@pytest.mark.promise("mcp:session:fork_waits")
async def test_a_fork_waits_for_a_running_call_but_not_for_one_that_acts_on_it(
    table: ToolTable, counter: Counter
) -> None:
    handle = await started(table)
    results: list[str] = []

    async def call(name: str) -> None:
        assert (await table.call(name, {"session": handle})).ok
        results.append(name)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(call, "counter_wait")
            await counter.entered.wait()
            group.start_soon(call, "session_fork")
            await anyio.wait_all_tasks_blocked()
            assert results == []
            await call("counter_let_go")
    assert results == ["counter_let_go", "counter_wait", "session_fork"]


@pytest.mark.promise("mcp:session:end")
async def test_ending_a_session_stops_its_programs(table: ToolTable, counter: Counter) -> None:
    handle = await started(table)
    kinds: list[ErrorKind] = []

    async def call() -> None:
        kinds.append(failure(await table.call("counter_wait", {"session": handle}))[0])

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await counter.entered.wait()
            assert (await table.call("session_end", {"session": handle})).ok
    assert kinds == [ErrorKind.SESSION_NOT_FOUND]
    assert counter.events[-2:] == ["cancelled", "cleanup"]


@pytest.mark.promise("mcp:session:limit")
async def test_a_session_beyond_the_limit_is_refused_as_busy(table: ToolTable) -> None:
    handles = [await started(table) for _ in range(4)]
    assert failure(await table.call("session_start"))[0] is ErrorKind.BUSY
    assert failure(await table.call("session_fork", {"session": handles[0]}))[0] is ErrorKind.BUSY
    await table.call("session_end", {"session": handles[0]})
    assert (await table.call("session_start")).ok


@pytest.mark.promise("mcp:quota:reserves")
async def test_a_client_that_takes_all_sessions_leaves_those_reserved_for_the_others() -> None:
    limits = TableLimits(sessions=8, clients={"a": ClientQuota(), "b": ClientQuota(sessions=1)})
    async with ToolTable([Counter()], limits=limits) as table:
        handles = [(await table.call("session_start", principal="a")).data["session"] for _ in range(7)]
        refused = await table.call("session_start", principal="a")
        assert failure(refused)[0] is ErrorKind.BUSY
        assert (await table.call("session_start", principal="b")).ok
        beyond = await table.call("session_start", principal="b")
        assert (
            failure(beyond)[1] == "all 1 sessions are in use: end one with session_end, or try again later."
        )
        forked = await table.call("session_fork", {"session": handles[0]}, principal="a")
        assert failure(forked)[0] is ErrorKind.BUSY
        await table.call("session_end", {"session": handles[0]}, principal="a")
        assert (await table.call("session_start", principal="a")).ok


@pytest.mark.promise("mcp:session:expiry")
async def test_an_idle_session_ends_and_a_used_one_does_not(
    table: ToolTable, now: Now, counter: Counter
) -> None:
    idle, used = await started(table), await started(table)
    now.seconds = 60.0
    await table.call("counter_add", {"session": used})
    now.seconds = 120.0
    assert await table.sessions.expire() == 1
    assert failure(await table.call("counter_add", {"session": idle}))[0] is ErrorKind.SESSION_NOT_FOUND
    assert (await table.call("counter_add", {"session": used})).ok


async def test_a_session_with_a_running_call_is_not_idle(
    table: ToolTable, now: Now, counter: Counter
) -> None:
    handle = await started(table)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(table.call, "counter_wait", {"session": handle})
            await counter.entered.wait()
            now.seconds = 1000.0
            assert await table.sessions.expire() == 0
            counter.release.set()
    assert await table.sessions.expire() == 0, "its time counts from the end of the call"


@pytest.mark.promise("mcp:session:settings")
async def test_a_session_s_settings_override_the_server_s(counter: Counter) -> None:
    async with ToolTable([counter], settings={"counter": {"start": 5}}) as table:
        plain = await started(table)
        overriding = (await table.call("session_start", {"settings": {"counter": {"start": 7}}})).data
        assert overriding["backends"] == ["counter"]
        assert (await table.call("counter_add", {"session": plain})).data == {"count": 6}
        assert (await table.call("counter_add", {"session": overriding["session"]})).data == {"count": 8}


async def test_a_session_with_an_unknown_backend_is_refused_and_none_is_left(table: ToolTable) -> None:
    kind, message = failure(await table.call("session_start", {"backends": ["countr"]}))
    assert kind is ErrorKind.BAD_ARGUMENTS
    assert "Did you mean 'counter'?" in message
    assert len(table.sessions) == 0


async def test_a_backend_that_fails_to_initialize_leaves_no_session(table: ToolTable) -> None:
    result = await table.call("session_start", {"settings": {"counter": {"start": "x"}}})
    assert failure(result)[0] is ErrorKind.FAILED
    assert len(table.sessions) == 0


async def test_a_list_shows_live_backends_and_age(table: ToolTable, now: Now) -> None:
    handle = await started(table)
    now.seconds = 10.0
    await table.call("counter_add", {"session": handle})
    now.seconds = 15.0
    assert (await table.call("session_list")).data["sessions"] == [
        {
            "session": handle,
            "parent": None,
            "backends": ["counter"],
            "running": 0,
            "age_seconds": 15.0,
            "idle_seconds": 5.0,
        }
    ]


async def test_a_fork_shares_its_parent_s_resources_and_other_principals_do_not(table: ToolTable) -> None:
    handle = await started(table)
    link = (await table.call("counter_story", {"session": handle})).parts[0]
    uri = getattr(link, "uri", "")
    await table.call("session_fork", {"session": handle})
    await table.call("session_end", {"session": handle})
    kept = table.sessions.resource(uri, "local")
    assert kept is not None
    assert kept.data == b"once upon a time"
    assert table.sessions.resource(uri, "bob") is None


async def test_backends_are_added_to_and_removed_from_a_running_session(
    table: ToolTable, counter: Counter
) -> None:
    handle = await started(table)
    added = await table.call("session_add", {"session": handle, "settings": {"counter": {"start": 3}}})
    assert added.data["backends"] == ["counter"]
    assert (await table.call("counter_add", {"session": handle})).data == {"count": 4}
    assert (await table.call("session_remove", {"session": handle, "backends": ["counter"]})).data[
        "backends"
    ] == []
    assert counter.events[-1] == "cleanup"
    assert (await table.call("counter_add", {"session": handle})).data == {"count": 4}


async def test_a_session_can_be_ended_twice(table: ToolTable) -> None:
    session = await table.sessions.start("local")
    await table.sessions.end(session)
    await table.sessions.end(session)
    with pytest.raises(ToolFailure):
        session.check_alive()


async def test_a_table_that_closes_starts_no_more_sessions(table: ToolTable) -> None:
    await started(table)
    await table.sessions.close()
    assert len(table.sessions) == 0
    assert failure(await table.call("session_start"))[0] is ErrorKind.UNAVAILABLE
