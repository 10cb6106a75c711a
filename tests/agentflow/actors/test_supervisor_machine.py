"""A supervisor behaves like the reference in any sequence of events."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentflow.actors import (
    AutoShutdown,
    ChildActive,
    ChildExists,
    ChildSpec,
    Restart,
    RestartLimitReached,
    StartFailed,
    Strategy,
    Supervisor,
    UnknownChild,
)
from agentflow.testing import EventRecorder, Fault, FaultyChild, Start, VirtualTimeLoop
from tests.agentflow.actors.reference import ReferenceChild, ReferenceSupervisor

IDS = st.sampled_from("abcde")
ANSWERS: dict[type[Exception], str] = {
    ChildActive: "active",
    ChildExists: "exists",
    StartFailed: "failed",
    UnknownChild: "unknown",
}


class Children:
    """Factory of the children of all ids; the next starts of an id can be made to fail."""

    def __init__(self) -> None:
        self.failing: Counter[str] = Counter()
        self.made: dict[str, FaultyChild] = {}

    def spec(self, id: str, restart: Restart, *, significant: bool) -> ChildSpec:
        """Return a spec whose children can be made to fail at their start."""

        def make() -> object:
            starts = (Start.FAIL,) if self.failing[id] else ()
            self.failing[id] -= bool(self.failing[id])
            self.made[id] = FaultyChild(starts=starts)
            return self.made[id].make()

        return ChildSpec(id=id, start=make, restart=restart, significant=significant)  # type: ignore[arg-type]


class SupervisorMachine(RuleBasedStateMachine):
    """Drives a supervisor and the reference side by side, in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.children = Children()
        self.events = EventRecorder()

    @initialize(
        strategy=st.sampled_from(Strategy),
        intensity=st.integers(0, 4),
        auto_shutdown=st.sampled_from(AutoShutdown),
        children=st.lists(
            st.tuples(IDS, st.sampled_from(Restart), st.booleans()),
            min_size=2,
            unique_by=lambda child: child[0],
        ),
    )
    def start(
        self,
        strategy: Strategy,
        intensity: int,
        auto_shutdown: AutoShutdown,
        children: list[tuple[str, Restart, bool]],
    ) -> None:
        """Start both with some children."""
        self.reference = ReferenceSupervisor(strategy, intensity, 10.0, auto_shutdown)
        specs = [self.spec(id, restart, significant) for id, restart, significant in children]
        self.reference.children = [ReferenceChild(spec) for spec in specs]
        self.supervisor = Supervisor(
            specs,
            strategy=strategy,
            intensity=intensity,
            period=10.0,
            auto_shutdown=auto_shutdown,
            observer=self.events,
        )
        self.leave = asyncio.Event()
        self.host = self.loop.create_task(self.hold())
        self.settle()

    def spec(self, id: str, restart: Restart, significant: bool) -> ChildSpec:
        """Return a spec, significant only if that is allowed."""
        allowed = restart is not Restart.PERMANENT and self.reference.auto_shutdown is not AutoShutdown.NEVER
        return self.children.spec(id, restart, significant=significant and allowed)

    async def hold(self) -> str:
        """Keep the supervisor alive until the end of the run."""
        try:
            async with self.supervisor:
                await self.leave.wait()
        except RestartLimitReached:
            return "gave up"
        return "left"

    def settle(self) -> None:
        """Let everything happen that is due now."""
        self.loop.run_until_complete(asyncio.sleep(0.01))

    def request(self, make: Callable[[], Awaitable[object]]) -> str:
        """Return the supervisor's answer to a request in the reference's terms."""

        async def ask() -> str:
            try:
                await make()
            except tuple(ANSWERS) as error:
                return ANSWERS[type(error)]
            return "ok"

        answer = self.loop.run_until_complete(ask())
        self.settle()
        return answer

    def running(self) -> list[ReferenceChild]:
        """Return the reference's running children."""
        return [child for child in self.reference.children if child.running]

    @precondition(lambda self: not self.reference.over)
    @rule(id=IDS, restart=st.sampled_from(Restart), significant=st.booleans())
    def start_child(self, id: str, restart: Restart, significant: bool) -> None:
        """Start another child."""
        spec = self.spec(id, restart, significant)
        answer = self.request(lambda: self.supervisor.start_child(spec))
        assert answer == self.reference.start_child(spec)

    @precondition(lambda self: not self.reference.over)
    @rule(id=IDS)
    def terminate_child(self, id: str) -> None:
        """Stop a child."""
        answer = self.request(lambda: self.supervisor.terminate_child(id))
        assert answer == self.reference.terminate_child(id)

    @precondition(lambda self: not self.reference.over)
    @rule(id=IDS)
    def restart_child(self, id: str) -> None:
        """Start a stopped child."""
        answer = self.request(lambda: self.supervisor.restart_child(id))
        assert answer == self.reference.restart_child(id)

    @precondition(lambda self: not self.reference.over)
    @rule(id=IDS)
    def delete_child(self, id: str) -> None:
        """Forget a stopped child."""
        answer = self.request(lambda: self.supervisor.delete_child(id))
        assert answer == self.reference.delete_child(id)

    @precondition(lambda self: not self.reference.over and bool(self.running()))
    @rule(data=st.data(), fault=st.sampled_from([Fault.END, Fault.SHUTDOWN, Fault.CRASH]))
    def child_ends(self, data: st.DataObject, fault: Fault) -> None:
        """End a running child."""
        id = data.draw(st.sampled_from([child.spec.id for child in self.running()]))
        self.children.made[id].end(fault)
        now = self.loop.time()
        self.settle()
        self.reference.ends(id, abnormal=fault is Fault.CRASH, now=now)

    @rule(id=IDS, times=st.integers(1, 3))
    def next_starts_fail(self, id: str, times: int) -> None:
        """Make the next start of a child fail."""
        self.children.failing[id] = times
        self.reference.failing_starts[id] = times

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        """Let some restarts leave the period."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @invariant()
    def both_agree(self) -> None:
        """Compare children, order, states and numbers of starts; or both have ended."""
        if not hasattr(self, "reference"):
            return
        if self.reference.over:
            assert not any(info.state == "running" for info in self.supervisor.which_children())
            started, ended = self.events.started(), [id for id, _ in self.events.ended()]
            assert not Counter(started) - Counter(ended)
            return
        assert [(info.id, str(info.state)) for info in self.supervisor.which_children()] == [
            (child.spec.id, "running" if child.running else "stopped") for child in self.reference.children
        ]

    def teardown(self) -> None:
        """Leave the supervisor; every started child has ended."""
        if hasattr(self, "host"):
            self.leave.set()
            outcome = self.loop.run_until_complete(self.host)
            assert outcome == "left" or self.reference.over
            started, ended = self.events.started(), [id for id, _ in self.events.ended()]
            assert not Counter(started) - Counter(ended)
        self.loop.close()


@pytest.mark.promise("actors:supervisor:as-otp")
class TestSupervisorMachine(SupervisorMachine.TestCase):
    """Run the machine."""

    settings = settings(
        max_examples=200,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
