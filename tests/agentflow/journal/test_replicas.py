"""Replicas of models, and the weights that are published for them."""

import sys

import anyio
import pytest
from sqlalchemy import text

from agentflow.actors import SYSTEM_CLOCK
from agentflow.errors import ConfigurationError
from agentflow.journal import Replica, ReplicaTable, open_replicas
from agentflow.journal._database import JournalDatabase, backend_for
from agentflow.journal._replicas import LEASE_SECONDS
from tests.behaviour._tree import ROOT

NORTH = Replica("http://north:8000/v1", "planner", "key-of-north")
SOUTH = Replica("http://south:8000/v1", "planner", "key-of-south")


async def change(url: str, statement: str) -> None:
    database = JournalDatabase(backend_for(url), 1, SYSTEM_CLOCK)
    await database.write(lambda connection: connection.execute(text(statement)))
    await database.close()


async def urls(table: ReplicaTable, model: str = "planner") -> list[str]:
    return [replica.url for replica in await table.live(model)]


@pytest.mark.promise("replicas:leases")
async def test_replicas_are_known_until_they_are_removed_or_their_leases_run_out(url: str) -> None:
    async with open_replicas(url) as table, open_replicas(url) as others:
        for replica in (SOUTH, NORTH, NORTH._replace(url="http://north:9000/v1", model="judge")):
            assert await table.renew(replica, first=True) is None
        assert await others.live("planner") == [NORTH, SOUTH]
        assert await urls(others, "judge") == ["http://north:9000/v1"]
        await change(
            url, f"UPDATE agentflow_services SET until = until - {LEASE_SECONDS} WHERE url LIKE '%south%'"
        )
        assert await others.live("planner") == [NORTH]
        await table.renew(SOUTH)
        assert await others.live("planner") == [NORTH, SOUTH]
        await table.remove(NORTH.url)
        assert await others.live("planner") == [SOUTH]


@pytest.mark.promise("replicas:leases")
async def test_a_replica_of_this_machine_whose_process_was_killed_is_dead_at_once(url: str) -> None:
    program = (
        "import anyio, os, sys\n"
        "from agentflow.journal import Replica, open_replicas\n"
        "async def main():\n"
        "    async with open_replicas(sys.argv[1]) as table:\n"
        "        await table.renew(Replica(*sys.argv[2:]), first=True)\n"
        "        print(len(await table.live('planner')), flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "anyio.run(main)\n"
    )
    done = await anyio.run_process([sys.executable, "-c", program, url, *NORTH[:3]], cwd=ROOT, check=False)
    assert (done.stdout, done.returncode) == (b"1\n", -9), done.stderr
    async with open_replicas(url) as table:
        assert await table.live("planner") == []
        # Its address is free.
        await table.renew(NORTH)
        assert await table.live("planner") == [NORTH]


@pytest.mark.promise("replicas:refused")
async def test_an_address_belongs_to_one_server_at_a_time(url: str) -> None:
    async with open_replicas(url) as table:
        await table.renew(NORTH, first=True)
        await change(url, "UPDATE agentflow_services SET owner = 'elsewhere:1:1'")
        with pytest.raises(
            ConfigurationError,
            match=r"^http://north:8000/v1: another server has registered at this address; give each its own",
        ):
            await table.renew(NORTH)
        # A server that starts takes over the address of one that was killed.
        await table.renew(NORTH._replace(key="another"), first=True)
        assert [replica.key for replica in await table.live("planner")] == ["another"]


@pytest.mark.promise("replicas:weights")
async def test_a_replica_is_registered_once_it_has_the_newest_weights(url: str) -> None:
    async with open_replicas(url) as table:
        assert await table.publish("planner", "4", "/shared/v4", b"probe") == 1
        wanted = await table.renew(NORTH, first=True)
        assert wanted is not None
        assert (wanted.number, wanted.version, wanted.folder, wanted.probe) == (
            1,
            "4",
            "/shared/v4",
            b"probe",
        )
        assert await table.live("planner") == []
        await table.renew(NORTH._replace(weights=1))
        # While others are published, it keeps its lease and answers with those before.
        assert await table.publish("planner", "5", "/shared/v5", None) == 2
        await table.renew(NORTH._replace(weights=1))
        assert await table.live("planner") == [NORTH._replace(weights=1)]
        # One whose lease ran out comes back with the newest ones only.
        await change(url, "UPDATE agentflow_services SET until = 0")
        await table.renew(NORTH._replace(weights=1))
        assert await table.live("planner") == []
        await table.renew(NORTH._replace(weights=2))
        assert await table.live("planner") == [NORTH._replace(weights=2)]
        assert await table.publish("judge", "1", "/shared/judge", None) == 1


@pytest.mark.promise("replicas:weights")
async def test_an_excluded_replica_stays_so_until_it_has_the_weights(url: str) -> None:
    async with open_replicas(url) as table:
        await table.renew(NORTH, first=True)
        number = await table.publish("planner", "1", "/shared/v1", None)
        await table.exclude(NORTH.url, number, "too slow")
        await table.renew(NORTH)
        assert [replica.problem for replica in await table.live("planner")] == ["too slow"]
        await table.renew(NORTH._replace(weights=number))
        assert [replica.problem for replica in await table.live("planner")] == [None]
        await table.exclude(NORTH.url, number, "too late")
        assert [replica.problem for replica in await table.live("planner")] == [None]


@pytest.mark.promise("replicas:weights")
async def test_the_folder_of_the_newest_weights_can_move_and_that_of_others_can_not(url: str) -> None:
    async with open_replicas(url) as table:
        await table.publish("planner", "1", "/shared/v1", None)
        await table.move("planner", "/shared/v0", "/shared/other")
        await table.move("planner", "/shared/v1", "/shared/policy")
        wanted = await table.renew(NORTH, first=True)
        assert wanted is not None
        assert wanted.folder == "/shared/policy"
