"""Runtime on gVisor's kernel."""

import re
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from runtimes import Instance, InstanceSpec, Limits, Outcome
from runtimes.docker import DockerRuntime
from tests.runtimes.process.escape_run import Host, key, try_all
from tests.runtimes.process.escapes import ATTEMPTS

# Its kernel words some refusals differently, and shows details that a host kernel would hide.
OTHERWISE = {
    "python: read /proc/1/environ",
    "bash: read /proc/1/environ",
    "python: read /dev/tty",
    "bash: read /dev/tty",
    "python: hold descriptors of the server",
    "bash: see devices",
    "bash: hold descriptors of the server",
    "python: ask for other namespaces",
    "python: run in real time",
    "python: be more important",
    "python: raise a limit",
    "python: touch a group of limits",
    "bash: trace another process",
    "python: have power",
    "python: keep power in a program",
    "bash: have power",
    "python: reach IPv6",
    "python: reach the metadata service",
    "python: send datagrams",
    "bash: reach the metadata service",
    "bash: see sockets of the host",
}


@pytest.fixture(scope="module")
async def gvisor() -> AsyncIterator[DockerRuntime]:
    """Runtime on its kernel."""
    async with DockerRuntime(tier="gvisor") as runtime:
        yield runtime


@pytest.fixture(scope="module")
async def instance(gvisor: DockerRuntime) -> Instance:
    """Instance for all tests."""
    return await gvisor.start(InstanceSpec(limits=Limits(wall_seconds=60)))


@pytest.mark.promise("docker:gvisor")
async def test_sessions_commands_and_files_work(instance: Instance) -> None:
    assert (await instance.run("bash", "x=1; uname -r")).stdout == "4.4.0\n"
    assert (await instance.run("bash", "echo $x; echo shell > seen")).stdout == "1\n"
    assert (await instance.run("python", "y = open('seen').read()\ny")).value == "'shell\\n'"
    done = await instance.exec(["sh", "-c", "cat; id -u; exit 3"], input=b"in ")
    assert (done.stdout, done.exit_code) == (b"in 1000\n", 3)
    assert (await instance.exec(["sleep", "100"], timeout=0.5)).outcome is Outcome.TIMEOUT
    data = bytes(range(256)) * 8192
    await instance.write("a/data", data)
    assert await instance.read("a/data") == data
    assert await instance.read("a/data", offset=5, length=3) == data[5:8]
    await instance.write("a/data", b"more", append=True)
    assert (await instance.stat("a/data")).size == len(data) + 4
    assert [entry.path for entry in await instance.list("a")] == ["/home/agent/a/data"]
    await instance.remove("a", recursive=True)
    with pytest.raises(FileNotFoundError):
        await instance.read("a/data")
    with pytest.raises(PermissionError):
        await instance.write("/root/x", b"x")


@pytest.mark.promise("docker:gvisor")
async def test_files_larger_than_allowed_are_not_written(gvisor: DockerRuntime) -> None:
    instance = await gvisor.start(InstanceSpec(limits=Limits(file_bytes=1000)))
    await instance.write("kept", b"kept")
    with pytest.raises(OSError, match="too large"):
        await instance.write("kept", bytes(1001))
    assert await instance.read("kept") == b"kept"
    assert len(await instance.list()) == 1
    await instance.stop()


@pytest.mark.promise("docker:gvisor")
async def test_forks_and_snapshots_work(gvisor: DockerRuntime) -> None:
    parent = await gvisor.start()
    await parent.run("bash", "x=1; mkdir d; cd d; echo one > file")
    fork = (await parent.fork()).instance
    assert (
        await fork.run("bash", "echo $x; pwd; cat file; echo two > file")
    ).stdout == "1\n/home/agent/d\none\n"
    assert await parent.read("d/file") == b"one\n"
    saved = await parent.snapshot()
    await fork.restore(saved)
    assert await fork.read("d/file") == b"one\n"
    await parent.stop()
    await fork.stop()
    assert any("experimental" in note for note in gvisor.capabilities.notes)


@pytest.mark.promise("docker:gvisor")
async def test_escape_attempts_are_contained(instance: Instance) -> None:
    with ExitStack() as stack:
        host = Host(stack)
        before = host.fingerprint()
        seen = await try_all(instance, host.names)
        assert host.fingerprint() == before
    wrong = {
        key(attempt): seen[key(attempt)]
        for attempt in ATTEMPTS
        if key(attempt) not in OTHERWISE and not re.fullmatch(attempt.seen, seen[key(attempt)], re.DOTALL)
    }
    assert wrong == {}
    assert "EHOSTUNREACH" in seen["python: reach the metadata service"]
    assert re.fullmatch(r".*'CapEff': '0{16}'.*'CapBnd': '0{16}'.*", seen["python: have power"])
