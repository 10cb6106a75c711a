"""The journal of episodes: order, batches, failures."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from agentflow.errors import ConfigurationError, RunStopped
from agentflow.gateway import EpisodeOutcome, EpisodeStore, GatewayClient
from agentflow.gateway._store import put_meta
from tests.agentflow.gateway._registry import OWNER, offers, registry_at
from tests.agentflow.gateway.test_swarm_routes import OWNER_TOKEN, gateway


def change_file(folder: Path, statement: str) -> None:
    """Change the journal from outside."""
    with closing(sqlite3.connect(folder / "episodes.db")) as file:
        file.execute(statement)
        file.commit()


@pytest.mark.promise("gateway:journal:order")
async def test_what_is_committed_follows_all_calls_before_it(tmp_path: Path) -> None:
    async with EpisodeStore(tmp_path) as store:
        for number in range(250):
            await store.add_call(1, number, b"%d" % number)
        await store.commit(put_meta("done", b"1"), durable=True)
        with closing(sqlite3.connect(store.path)) as other:
            assert other.execute("SELECT COUNT(*) FROM calls").fetchone() == (250,)
        assert await store.calls(1) == [b"%d" % number for number in range(250)]
        assert await store.meta("done") == b"1"
        await store.add_call(2, 1, b"last")
    async with EpisodeStore(tmp_path) as store:
        assert await store.calls(2) == [b"last"]


@pytest.mark.promise("gateway:journal:failure")
async def test_a_journal_that_can_not_be_written_gives_no_receipt_and_stops_the_gateway(
    tmp_path: Path,
) -> None:
    async with registry_at(tmp_path) as registry:
        await registry.slots.offer(offers(size=2))
        one, two = await registry.begin(OWNER), await registry.begin(OWNER)
        assert one is not None
        assert two is not None
        await registry.end(OWNER, one.episode, 1, EpisodeOutcome(reward=1.0))
        change_file(tmp_path, "ALTER TABLE pages RENAME TO gone")
        for _ in range(2):
            with pytest.raises(RunStopped, match="no such table: pages; nothing with a receipt is lost"):
                await registry.end(OWNER, two.episode, 1, EpisodeOutcome(reward=1.0))
                await registry.slots.use([one.episode], 1)
    change_file(tmp_path, "ALTER TABLE gone RENAME TO pages")
    async with registry_at(tmp_path) as registry:
        assert [ended.offer.id for ended in await registry.slots.ended()] == [one.episode]
        again = await registry.begin(OWNER)
        assert again is not None
        assert (again.episode, again.attempt) == (two.episode, 2)


@pytest.mark.promise("gateway:journal:failure")
async def test_clients_are_told_to_retry_while_the_journal_can_not_be_written(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (registry, url), GatewayClient(url, OWNER_TOKEN, patience=0) as client:
        await registry.slots.offer(offers(size=1))
        change_file(tmp_path, "ALTER TABLE pages RENAME TO gone")
        with pytest.raises(RunStopped, match=r"gives no answer for 0 s .*no such table: pages"):
            await client.begin()


@pytest.mark.promise("gateway:journal:failure")
async def test_a_failed_write_ends_the_wait_for_one(tmp_path: Path) -> None:
    async with EpisodeStore(tmp_path) as store:
        change_file(tmp_path, "DROP TABLE calls")
        await store.add_call(1, 1, b"call")
        with anyio.fail_after(30), pytest.raises(RunStopped, match="no such table: calls"):
            await store.broken()


@pytest.mark.promise("gateway:journal:file")
async def test_a_file_that_is_no_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "episodes.db").write_bytes(
        b"not a database, but a text of more than a hundred bytes" * 40
    )
    with pytest.raises(ConfigurationError, match="file is not a database; name another folder"):
        await EpisodeStore(tmp_path / "other").__aenter__()
    async with EpisodeStore(tmp_path):
        pass
    change_file(tmp_path, "PRAGMA user_version = 9")
    with pytest.raises(ConfigurationError, match="belongs to a newer version; update AgentFlow"):
        await EpisodeStore(tmp_path).__aenter__()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"File exists|Not a directory"):
        await EpisodeStore(tmp_path / "file" / "folder").__aenter__()
