"""Stored rollouts."""

import gzip
import os
import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from agentflow.errors import ConfigurationError, RunStopped
from agentflow.learner._checkpoints import RolloutStore
from agentflow.learner._groups import Batch
from agentflow.learner._sources import ReplaySource, SyncSource, TaskOrder
from tests.agentflow.learner._training import FakePlayer, playing_of, some_tasks


async def a_batch(tasks: int = 3) -> Batch:
    """Return a batch."""
    order = TaskOrder(some_tasks(9), seed=3)
    batch = await SyncSource(playing_of(FakePlayer()), order, tasks=tasks, size=4, replace_equal=0).collect(
        1, 0
    )
    assert batch is not None
    return batch


@pytest.mark.promise("training:stored")
async def test_a_stored_batch_is_read_back_unchanged(tmp_path: Path) -> None:
    rollouts, batch = RolloutStore(tmp_path), await a_batch()
    assert rollouts.read(1) is None
    rollouts.write(batch)
    assert rollouts.read(1) == batch
    before = rollouts.path(1).read_bytes()
    rollouts.write(batch)
    assert rollouts.path(1).read_bytes() == before
    assert os.listdir(tmp_path) == ["step_000001.jsonl.gz"]


@pytest.mark.promise("training:stored")
async def test_nodes_of_calls_are_stored_only_where_calls_are_shared(tmp_path: Path) -> None:
    rollouts, batch = RolloutStore(tmp_path), await a_batch()
    rollouts.write(batch)
    assert b"nodes" not in gzip.decompress(rollouts.path(1).read_bytes())
    group = batch.groups[0]
    branched = tuple(structs.replace(sample, nodes=("0",) * len(sample.calls)) for sample in group.samples)
    rollouts.write(structs.replace(batch, groups=(structs.replace(group, samples=branched),)))
    read = rollouts.read(1)
    assert read is not None
    assert tuple(read.samples) == branched


@pytest.mark.promise("training:stored")
async def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    rollouts, batch = RolloutStore(tmp_path), await a_batch()
    rollouts.write(batch)
    whole = rollouts.path(1).read_bytes()
    lines = gzip.decompress(whole).splitlines(keepends=True)
    for broken in (
        whole[:-20],
        whole[:40],
        b"",
        b"{}",
        gzip.compress(b"".join(lines[:-1])),
        gzip.compress(b""),
    ):
        rollouts.path(1).write_bytes(broken)
        with pytest.raises(ConfigurationError, match=r"step_000001\.jsonl\.gz: .*remove it") as raised:
            rollouts.read(1)
        assert "\n" not in str(raised.value)


@contextmanager
def files_at_most(size: int) -> Generator[None]:
    """Limit the size of files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.promise("training:stored")
async def test_a_full_disk_ends_the_run_before_the_step(tmp_path: Path) -> None:
    rollouts, batch = RolloutStore(tmp_path), await a_batch()
    with (
        files_at_most(100),
        pytest.raises(RunStopped, match="can't be written: File too large; free some space"),
    ):
        rollouts.write(batch)
    assert os.listdir(tmp_path) == []


@pytest.mark.promise("training:stored")
async def test_a_replay_needs_its_first_step(tmp_path: Path) -> None:
    replayed = ReplaySource(RolloutStore(tmp_path))
    with pytest.raises(ConfigurationError, match=r"schedule\.replay: there is no .*step_000001"):
        await replayed.collect(1, 0)
    assert await replayed.collect(2, 0) is None
