"""Forks of remote sandboxes, and snapshots."""

from io import BytesIO

import pytest

from agentflow.errors import CannotFork
from runtimes import Instance, InstanceSpec, Snapshot
from runtimes.remote import RemoteRuntime


def forks_live(runtime: RemoteRuntime) -> bool:
    return runtime.capabilities.fork == "live"


@pytest.mark.promise("remote:fork")
async def test_a_fork_has_the_files_and_the_shell_of_its_parent(runtime: RemoteRuntime) -> None:
    parent = await runtime.start(InstanceSpec(warm=frozenset({"bash"})))
    await parent.run("bash", "n=1; echo kept > file; mkdir deep; cd deep")
    fork = (await parent.fork()).instance
    assert (await fork.run("bash", "echo $n; pwd; cat ../file")).stdout == "1\n/home/agent/deep\nkept\n"
    assert fork.id != parent.id
    await fork.stop()
    assert (await parent.run("bash", "echo $n")).stdout == "1\n"
    await parent.stop()


@pytest.mark.promise("remote:fork")
async def test_a_live_python_session_is_copied_with_the_memory_or_prevents_the_fork(
    runtime: RemoteRuntime,
) -> None:
    parent = await runtime.start()
    await parent.run("python", "x = 1")
    if forks_live(runtime):
        fork = (await parent.fork()).instance
        assert (await fork.run("python", "x")).value == "1"
        await fork.stop()
    else:
        with pytest.raises(CannotFork, match="repeat its runs"):
            await parent.fork()
        assert any("Python session" in note for note in runtime.capabilities.notes)
    assert (await parent.run("python", "x")).value == "1"
    await parent.stop()


@pytest.mark.promise("remote:fork")
async def test_a_fork_by_copying_lists_what_it_leaves_behind_and_is_independent(
    runtime: RemoteRuntime,
) -> None:
    parent = await runtime.start(InstanceSpec(warm=frozenset({"bash"})))
    await parent.run("bash", "sleep 987 & x=1")
    fork = await parent.fork()
    if not forks_live(runtime):
        assert any("the background process sleep" in line for line in fork.left_behind)
        await fork.instance.run("bash", "x=2; echo theirs > file")
        assert (await parent.run("bash", "echo $x; ls")).stdout == "1\n"
    await parent.stop()
    await fork.instance.stop()


@pytest.mark.promise("remote:snapshots")
async def test_files_are_saved_and_restored(runtime: RemoteRuntime, instance: Instance) -> None:
    await instance.run(
        "bash", "echo one > file; mkdir d; echo t > /tmp/t; head -c 9000000 /dev/zero > big; x=1"
    )
    saved = await instance.snapshot()
    await instance.run("bash", "echo two > file; rm -r d; rm /tmp/t; echo new > new")
    await instance.restore(saved)
    after = await instance.run("bash", "cat file /tmp/t; ls; wc -c < big; echo ${x-gone}")
    assert after.stdout == "one\nt\nbig\nd\nfile\n9000000\ngone\n"
    other = await runtime.start()
    await other.restore(saved)
    assert await other.read("file") == b"one\n"
    await other.stop()


@pytest.mark.promise("remote:snapshots")
async def test_a_snapshot_over_the_limit_of_its_file_is_refused(instance: Instance) -> None:
    await instance.run("bash", "head -c 3000000 /dev/urandom > big")
    with pytest.raises(OSError, match="too large"):
        await instance.save(BytesIO(), max_bytes=1_000_000)


@pytest.mark.promise("remote:snapshots")
@pytest.mark.parametrize("archive", [b"", b"no archive", b"\0" * 1024])
async def test_an_invalid_snapshot_changes_nothing(instance: Instance, archive: bytes) -> None:
    await instance.write("kept", b"kept")
    with pytest.raises(ValueError, match="not a snapshot"):
        await instance.restore(Snapshot(archive))
    assert await instance.read("kept") == b"kept"
