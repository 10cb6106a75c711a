"""Faulty children, and the recorder of their events."""

import anyio
import pytest

from agentflow.actors import ChildSpec, Restart, StartFailed, Supervisor
from agentflow.testing import EventRecorder, Fault, FaultyActor, FaultyChild, Start, VirtualTimeLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.mark.promise("actors:testing:faulty-actor")
async def test_a_faulty_actor_injects_the_requested_fault() -> None:
    events = EventRecorder()
    spec = ChildSpec(id="a", start=FaultyActor)
    async with Supervisor([spec], intensity=9, observer=events) as supervisor:
        assert await supervisor.child("a", FaultyActor).ask("hello") == "hello"
        for times, fault in enumerate((Fault.CRASH, Fault.SHUTDOWN, Fault.END), start=2):
            await supervisor.child("a", FaultyActor).tell(fault)
            await events.until_started("a", times)
        assert [kind for _, kind in events.ended()] == ["crashed", "shutdown", "normal"]
        await supervisor.child("a", FaultyActor).tell(Fault.HANG)
        await anyio.sleep(1)
        events.clear()
    assert events.ended() == [("a", "killed")]


@pytest.mark.promise("actors:testing:faulty-child")
async def test_a_faulty_child_starts_according_to_its_list_and_then_succeeds() -> None:
    events = EventRecorder()
    faulty = FaultyChild(starts=(Start.IGNORE, Start.FAIL, Start.HANG))
    spec = ChildSpec(id="a", start=faulty.make, restart=Restart.TRANSIENT, start_timeout=5)
    async with Supervisor([spec], observer=events) as supervisor:
        for _ in range(2):
            with pytest.raises(StartFailed):
                await supervisor.restart_child("a")
        await supervisor.restart_child("a")
        assert faulty.attempts == 4
        faulty.end(Fault.HANG)
        await anyio.sleep(1)
        assert events.started() == ["a"]
        faulty.end()
    assert events.story() == ["-a normal", "-a crashed", "-a killed", "+a", "-a killed"]
    assert events.reason("a").kind == "killed"
