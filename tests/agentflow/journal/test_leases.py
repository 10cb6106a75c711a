"""Leases of seeds."""

import sys
from collections.abc import Callable
from itertools import count
from typing import TypeVar

import anyio
import anyio.from_thread
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import Connection, Engine, bindparam, event

from agentflow.actors import SYSTEM_CLOCK, ChildSpec, Supervisor
from agentflow.journal import Journal, NewSeed, Run, SeedTaken, open_journal, this_process
from agentflow.journal._database import JournalDatabase, backend_for, migrate
from agentflow.journal._run import Inbox, Writer
from agentflow.journal._seeds import LeaseTerms
from agentflow.trace import Seed

T = TypeVar("T")

LEASE = 10.0
OWNERS = st.sampled_from("abc")


class Model:
    """Reference model of leases."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seeds: list[Seed] = []
        self.leases: dict[int, tuple[str, float]] = {}
        self.claims: dict[int, int] = {}
        self.done: dict[int, bytes] = {}
        self.held: dict[tuple[str, int], int] = {}

    def claim(self, owner: str, limit: int) -> list[Seed]:
        """Return the seeds that an owner claims."""
        free = [
            seed
            for seed in self.seeds
            if seed.index not in self.done
            and (
                seed.index not in self.leases
                or (self.leases[seed.index][1] <= self.now and self.leases[seed.index][0] != owner)
            )
        ][:limit]
        for seed in free:
            self.leases[seed.index] = (owner, self.now + LEASE)
            self.claims[seed.index] = self.held[owner, seed.index] = self.claims.get(seed.index, 0) + 1
        return free


class LeaseMachine(RuleBasedStateMachine):
    """Drives three owners of one run beside the reference model."""

    def __init__(
        self, portal: anyio.from_thread.BlockingPortal, journal: Journal, time: list[float], name: str
    ) -> None:
        super().__init__()
        self.portal = portal
        self.time = time
        self.model = Model()
        self.model.now = time[0]
        self.runs = {
            owner: portal.call(lambda: journal.open_run(name, {}, lease_seconds=LEASE)) for owner in "abc"
        }

    @initialize(number=st.integers(1, 4))
    def begin(self, number: int) -> None:
        self.add(number)

    @rule(number=st.integers(0, 3))
    def add(self, number: int) -> None:
        new = [NewSeed(seed.content) for seed in self.model.seeds] + [NewSeed("new")] * number
        self.model.seeds = self.portal.call(self.runs["a"].add_seeds, new)
        assert [seed.index for seed in self.model.seeds] == list(range(len(new)))

    @rule(owner=OWNERS, limit=st.integers(0, 3))
    def claim(self, owner: str, limit: int) -> None:
        assert self.portal.call(self.runs[owner].claim, owner, limit) == self.model.claim(owner, limit)

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        self.portal.call(self.runs[owner].renew, owner)
        for index, (holder, _) in self.model.leases.items():
            if holder == owner:
                self.model.leases[index] = (owner, self.model.now + LEASE)

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.portal.call(self.runs[owner].release, owner)
        self.model.leases = {index: one for index, one in self.model.leases.items() if one[0] != owner}

    @rule(seconds=st.sampled_from([1.0, 4.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.time[0] = self.model.now = self.model.now + seconds

    @rule(owner=OWNERS, data=st.data())
    def finish(self, owner: str, data: st.DataObject) -> None:
        held = [index for holder, index in self.model.held if holder == owner]
        if not held:
            return
        index = data.draw(st.sampled_from(sorted(held)))
        harvest = f"{owner} {index}".encode()
        if self.model.held[owner, index] != self.model.claims[index]:
            with pytest.raises(SeedTaken):
                self.portal.call(self.runs[owner].finish, self.model.seeds[index], harvest)
            return
        self.portal.call(self.runs[owner].finish, self.model.seeds[index], harvest)
        self.model.done[index] = harvest
        self.model.leases.pop(index, None)
        del self.model.held[owner, index]

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        model = self.model
        waiting = len(model.seeds) - len(model.leases) - len(model.done)
        counts = self.portal.call(self.runs["b"].counts)
        assert counts == (waiting, len(model.leases), len(model.done))

    def teardown(self) -> None:
        found = self.portal.call(harvests, self.runs["c"])
        assert found == [
            (self.model.seeds[index], self.model.done[index]) for index in sorted(self.model.done)
        ]


async def harvests(run: Run) -> list[tuple[Seed, bytes]]:
    return [found async for found in run.stored_results()]


@pytest.mark.promise("journal:leases:one-owner")
def test_leases_agree_with_a_model_for_any_sequence_of_actions(url: str) -> None:
    time, names = [0.0], count()
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_journal(url, now=lambda: time[0])) as journal,
    ):

        class Machine(LeaseMachine):
            def __init__(self) -> None:
                super().__init__(portal, journal, time, f"run {next(names)}")

        run_state_machine_as_test(
            Machine, settings=settings(max_examples=25, stateful_step_count=25, deadline=None)
        )


@pytest.mark.promise("journal:leases:one-owner")
async def test_concurrent_claims_never_share_a_seed(url: str) -> None:
    taken: list[int] = []

    async def work(owner: str) -> None:
        async with open_journal(url) as journal:
            run = await journal.open_run("run", {})
            while claimed := await run.claim(owner, 3):
                taken.extend(seed.index for seed in claimed)

    async with open_journal(url) as journal:
        run = await journal.open_run("run", {})
        await run.add_seeds([NewSeed(str(number)) for number in range(100)])
        async with anyio.create_task_group() as tasks:
            for owner in "abcd":
                tasks.start_soon(work, owner)
    assert sorted(taken) == list(range(100))


@pytest.mark.promise("journal:leases:dead")
async def test_seeds_of_an_ended_process_are_free_at_once(run: Run) -> None:
    seeds = await run.add_seeds([NewSeed("a"), NewSeed("b"), NewSeed("c")])
    script = "from agentflow.journal import this_process; print(this_process())"
    ended = (await anyio.run_process([sys.executable, "-c", script])).stdout.decode().strip()
    assert await run.claim(ended, 1) == seeds[:1]
    assert await run.claim("elsewhere/boot/1:17:4711", 1) == seeds[:1]
    assert await run.claim(this_process(), 3) == seeds[1:]
    assert await run.claim("another", 3) == []


@pytest.mark.promise("journal:leases:dead")
async def test_a_claim_takes_the_lowest_index_of_processes_that_ended_since_they_were_seen_alive(
    run: Run,
) -> None:
    seeds = await run.add_seeds([NewSeed("a"), NewSeed("b"), NewSeed("c"), NewSeed("d")])
    script = "from agentflow.journal import this_process; print(this_process(), flush=True); input()"
    async with await anyio.open_process([sys.executable, "-c", script]) as process:
        assert process.stdout is not None
        other = (await process.stdout.receive()).decode().strip()
        assert await run.claim(other, 2) == seeds[:2]
        assert await run.claim(this_process(), 1) == seeds[2:3]
        process.kill()
        await process.wait()
    assert await run.claim(this_process(), 2) == seeds[:2]
    assert await run.claim(this_process(), 2) == seeds[3:]


@pytest.mark.promise("journal:leases:one-statement")
async def test_a_claim_reads_the_holders_only_if_an_unknown_process_of_this_machine_holds_a_seed(
    url: str,
) -> None:
    statements: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        async with open_journal(url) as journal, open_journal(url) as another:
            run = await journal.open_run("run", {})
            seeds = await run.add_seeds([NewSeed(str(number)) for number in range(4)])
            statements.clear()
            assert await run.claim("elsewhere/boot/1:17:4711", 1) == seeds[:1]
            assert await run.claim(this_process(), 1) == seeds[1:2]
            assert statements == ["WITH", "WITH"]
            new = await another.open_run("run", {})
            statements.clear()
            assert await new.claim("elsewhere/boot/1:17:4711", 1) == seeds[2:3]
            assert statements == ["WITH", "SELECT", "WITH"]
            assert await new.claim("elsewhere/boot/1:17:4711", 1) == seeds[3:]
            assert statements == ["WITH", "SELECT", "WITH", "WITH"]
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.promise("journal:leases:clock")
async def test_leases_use_the_clock_of_the_database(journal: Journal) -> None:
    for name, seconds, free in (("run", 1e-6, 1), ("held", 3600, 0)):
        first, second = [await journal.open_run(name, {}, lease_seconds=seconds) for _ in range(2)]
        await first.add_seeds([NewSeed("a")])
        await first.claim("first", 1)
        assert len(await second.claim("second", 1)) == free


@pytest.mark.promise("journal:leases:suspended")
async def test_a_process_that_was_suspended_does_not_claim_its_own_seeds_again(url: str) -> None:
    time = [0.0]
    async with open_journal(url, now=lambda: time[0]) as one, open_journal(url, now=lambda: time[0]) as two:
        first, second = await one.open_run("run", {}), await two.open_run("run", {})
        seeds = await first.add_seeds([NewSeed("a"), NewSeed("b"), NewSeed("c")])
        assert await first.claim("first", 2) == seeds[:2]
        time[0] = 3600
        assert await first.claim("first", 1) == seeds[2:]
        assert await second.claim("second", 1) == seeds[:1]
        await second.release("second")
        assert await first.claim("first", 3) == seeds[:1]


@pytest.mark.promise("journal:leases:clock")
async def test_a_clock_that_is_set_back_makes_no_lease_longer(url: str) -> None:
    time = [7200.0]
    async with open_journal(url, now=lambda: time[0]) as one, open_journal(url, now=lambda: time[0]) as two:
        first, second = await one.open_run("run", {}), await two.open_run("run", {})
        seeds = await first.add_seeds([NewSeed("a"), NewSeed("b")])
        await first.claim("first", 2)
        time[0] -= 29
        assert await second.claim("second", 2) == []
        time[0] -= 3600
        await first.renew("first")
        assert await second.claim("second", 2) == []
        time[0] -= 3600
        assert await second.claim("second", 2) == seeds


class ForgetfulDatabase(JournalDatabase):
    """Loses the first answer after its change was made."""

    forgets = False

    async def write(
        self, change: Callable[[Connection], T], *, durable: bool = False, atomic: bool = True
    ) -> T:
        """Run a change, and run it again as if its first answer had been lost."""
        if self.forgets:
            self.forgets = False
            await super().write(change, durable=durable, atomic=atomic)
        return await super().write(change, durable=durable, atomic=atomic)


@pytest.mark.promise("journal:leases:one-owner")
async def test_a_claim_whose_response_was_lost_ends_with_its_lease(url: str) -> None:
    database, inbox, time = ForgetfulDatabase(backend_for(url), 1, SYSTEM_CLOCK), Inbox(), [0.0]
    await migrate(database)
    async with Supervisor([ChildSpec(id="writer", start=lambda: Writer(database, inbox))]):
        run = Run(
            database,
            inbox,
            number=1,
            key="",
            user="me",
            launch="me",
            terms=LeaseTerms(bindparam("now", callable_=lambda: time[0]), LEASE),
        )
        seeds = await run.add_seeds([NewSeed("a"), NewSeed("b"), NewSeed("c")])
        database.forgets = True
        assert await run.claim("me", 1) == [seeds[1]]
        time[0] = LEASE - 1
        await run.renew("me")
        time[0] = LEASE
        assert await run.claim("other", 3) == [seeds[0], seeds[2]]
    await database.close()
