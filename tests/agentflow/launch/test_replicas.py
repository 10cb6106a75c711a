"""Runs whose model has replicas, as real programs."""

from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from agentflow.journal import Replica, open_replicas
from agentflow.journal import _replicas as registrations
from tests._postgres import PostgresServer
from tests.agentflow.launch._launched import Shared, ended, files, launched, one_machine, words
from tests.system._supervised import Endpoint, endpoint

BEFORE = 4
"""Calls answered before two workers hold seeds."""


@pytest.fixture(autouse=True)
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody renews the leases of these tests."""
    monkeypatch.setattr(registrations, "LEASE_SECONDS", 1e9)


def register(database: str, *replicas: Endpoint) -> None:
    async def store() -> None:
        async with open_replicas(database) as table:
            for replica in replicas:
                await table.renew(Replica(replica.url, "fake", "key"), first=True)

    anyio.run(store)


@pytest.mark.promise("replicas:same")
@pytest.mark.promise("replicas:balance")
def test_a_launch_with_replicas_writes_the_files_of_one_endpoint(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    whole, alone = one_machine("synth")
    with endpoint() as north, endpoint() as south:
        register(url, north, south)
        with launched(tmp_path, url, words("synth", tmp_path, Endpoint(url))) as process:
            ended(process)
        counted = north.stats(), south.stats()
    assert files(tmp_path / "out") == whole
    assert min(one["calls"] for one in counted) > 0
    assert sum(one["calls"] for one in counted) == alone["calls"]


@pytest.mark.promise("replicas:same")
@pytest.mark.promise("replicas:join")
@pytest.mark.promise("replicas:failures")
def test_a_replica_that_joins_takes_over_from_one_that_dies_and_the_files_are_the_same(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    whole, _ = one_machine("synth")
    with endpoint() as south, ExitStack() as until_it_dies:
        north = until_it_dies.enter_context(endpoint(hold_after=BEFORE))
        register(url, north)
        with launched(tmp_path, url, words("synth", tmp_path, Endpoint(url))) as process:
            Shared(url).wait_for_holders(process, 2)
            # A call of each worker is held back; the other replica is registered before they fail.
            north.wait_for(in_flight=2)
            register(url, south)
            until_it_dies.close()
            ended(process)
        assert south.stats()["calls"] > 0
    assert files(tmp_path / "out") == whole
