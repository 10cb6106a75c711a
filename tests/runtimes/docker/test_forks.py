"""Forks of containers, and snapshots."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.errors import CannotFork, NotOffered
from runtimes import Instance, InstanceSpec, Limits, Snapshot
from runtimes.docker import ContainerInstance, ContainerOptions, DockerRuntime
from tests._dockerd import Dockerd

# Not below mounts: the host's own files change meanwhile.
STATE = "pwd; echo ${n-} ${a-}; shopt -p extglob; alias; cd; find . /tmp -xdev | sort; find . -type f | sort | xargs -r cat"
STEPS = st.lists(
    st.sampled_from(
        [
            "n=$((${n-0} + 1))",
            "mkdir -p ~/deep && cd ~/deep",
            "cd /tmp",
            "echo $n >> ~/counted",
            "echo more >> file",
            "ln -sf ~/counted link",
            "alias now='echo $n'",
            "shopt -s extglob",
            "export a=b",
            "rm -f ~/counted",
        ]
    ),
    max_size=5,
)
STOCK = InstanceSpec(warm=frozenset({"bash"}))


@pytest.fixture(scope="module")
async def stocked(engine: Dockerd) -> AsyncIterator[DockerRuntime]:
    """Runtime with a pool."""
    options = ContainerOptions(socket=engine.socket, pool=3)
    async with DockerRuntime(options, pool_spec=STOCK) as runtime:
        yield runtime


async def take(instance: Instance, steps: list[str]) -> None:
    for step in steps:
        await instance.run("bash", step)


async def replay(runtime: DockerRuntime, steps: list[str]) -> str:
    instance = await runtime.start(STOCK)
    await take(instance, steps)
    state = (await instance.run("bash", STATE)).stdout
    await instance.stop()
    return state


@pytest.mark.promise("docker:fork:exact")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=STEPS, parent_steps=STEPS, fork_steps=STEPS)
async def test_parent_and_fork_continue_as_replays_from_the_start_would(
    stocked: DockerRuntime, before: list[str], parent_steps: list[str], fork_steps: list[str]
) -> None:
    parent = await stocked.start(STOCK)
    await take(parent, before)
    fork = (await parent.fork()).instance
    await take(parent, parent_steps)
    await take(fork, fork_steps)
    seen = [(await instance.run("bash", STATE)).stdout for instance in (parent, fork)]
    await parent.stop()
    await fork.stop()
    assert seen == [await replay(stocked, before + parent_steps), await replay(stocked, before + fork_steps)]


@pytest.mark.promise("docker:fork:left")
async def test_a_fork_lists_what_it_leaves_behind(stocked: DockerRuntime) -> None:
    parent = await stocked.start(STOCK)
    await parent.run("bash", "sleep 987 & x=1")
    fork = await parent.fork()
    assert any("the background process sleep" in line for line in fork.left_behind)
    assert (await fork.instance.run("bash", "echo $x")).stdout == "1\n"
    await parent.stop()
    assert (await fork.instance.run("bash", "echo $x")).stdout == "1\n"
    await fork.instance.stop()


@pytest.mark.promise("docker:fork:python")
async def test_a_live_python_session_prevents_a_fork(runtime: DockerRuntime) -> None:
    parent = await runtime.start(InstanceSpec(warm=frozenset({"python"})))
    fork = (await parent.fork()).instance
    assert (await fork.run("python", "1")).value == "1"
    await fork.stop()
    await parent.run("python", "x = 1")
    with pytest.raises(CannotFork, match="repeat its runs"):
        await parent.fork()
    assert (await parent.run("python", "x")).value == "1"
    assert runtime.capabilities.fork == "replay"
    assert any("Python" in note for note in runtime.capabilities.notes)
    await parent.stop()


@pytest.mark.promise("docker:fork:private")
async def test_files_of_root_and_of_every_type_are_copied(runtime: DockerRuntime) -> None:
    parent = await runtime.start()
    await parent.run("bash", "mkfifo pipe; ln -s /etc/passwd link; echo a > one; ln one two; chmod 640 one")
    await parent.exec(["sh", "-c", "echo r > /tmp/roots; chmod 600 /tmp/roots"], user="root")
    fork = (await parent.fork()).instance
    listing = "ls -ln --time-style=+ ~ /tmp /dev/shm; ls -i one two | cut -d' ' -f1 | uniq | wc -l"
    seen = [(await instance.run("bash", listing)).stdout for instance in (parent, fork)]
    assert seen[0] == seen[1]
    assert seen[1].endswith("\n1\n")
    for instance in (parent, fork):
        await instance.stop()


@pytest.mark.promise("docker:commit")
async def test_a_writable_container_is_forked_with_its_changed_system(engine: Dockerd) -> None:
    options = ContainerOptions(socket=engine.socket, writable=True)
    async with DockerRuntime(options) as runtime:
        parent = await runtime.start()
        await parent.exec(["sh", "-c", "echo added > /etc/added"], user="root")
        fork = (await parent.fork()).instance
        await parent.exec(["rm", "/etc/added"], user="root")
        assert await fork.read("/etc/added") == b"added\n"
        assert isinstance(fork, ContainerInstance)
        await fork.commit("kept:1")
        await fork.stop()
        assert "agentflow-fork" not in engine.docker("images")
    async with DockerRuntime(ContainerOptions(socket=engine.socket, image="kept:1")) as other:
        instance = await other.start()
        assert await instance.read("/etc/added") == b"added\n"
        with pytest.raises(NotOffered, match="writable"):
            await instance.commit("kept:2")


@pytest.mark.promise("docker:snapshots")
async def test_files_are_saved_and_restored(runtime: DockerRuntime) -> None:
    instance = await runtime.start()
    await instance.run("bash", "echo one > file; mkdir d; echo t > /tmp/t; x=1")
    saved = await instance.snapshot()
    await instance.run("bash", "echo two > file; rm -r d; rm /tmp/t; echo new > new; echo s > /dev/shm/s")
    await instance.restore(saved)
    after = await instance.run("bash", "cat file /tmp/t; ls; ls /dev/shm; echo ${x-gone}")
    assert after.stdout == "one\nt\nd\nfile\ngone\n"
    other = await runtime.start()
    await other.restore(saved)
    assert await other.read("file") == b"one\n"
    for started in (instance, other):
        await started.stop()


@pytest.mark.promise("docker:snapshots")
@pytest.mark.parametrize("archive", [b"", b"no archive", b"\0" * 1024])
async def test_an_invalid_snapshot_changes_nothing(instance: Instance, archive: bytes) -> None:
    await instance.write("kept", b"kept")
    with pytest.raises(ValueError, match="not a snapshot"):
        await instance.restore(Snapshot(archive))
    assert await instance.read("kept") == b"kept"


@pytest.mark.promise("docker:pool")
async def test_the_pool_hands_out_only_living_containers(stocked: DockerRuntime, engine: Dockerd) -> None:
    await stocked.warmup()
    engine.docker("kill", *engine.docker("ps", "--quiet", "--filter", "label=agentflow.server").split())
    taken = [await stocked.start(STOCK) for _ in range(4)]
    assert len({instance.id for instance in taken}) == 4
    for number, instance in enumerate(taken):
        assert (await instance.run("bash", f"echo {number}")).stdout == f"{number}\n"
        await instance.stop()
    other = InstanceSpec(limits=Limits(open_files=99))
    instance = await stocked.start(other)
    assert (await instance.run("bash", "ulimit -n")).stdout == "99\n"
    await instance.stop()
