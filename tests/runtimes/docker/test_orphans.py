"""Killed servers leave no container, process, cgroup or directory."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import psutil
import pytest

from runtimes.docker import ContainerOptions, DockerRuntime
from runtimes.docker._engine import OWNER, REALM
from runtimes.docker._plan import Tier
from tests._dockerd import Dockerd
from tests.runtimes.docker.conftest import TIERS


@pytest.fixture(autouse=True)
def top(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Private parent directory for the servers of one test."""
    with tempfile.TemporaryDirectory(prefix="servers-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder, f"agentflow-{os.geteuid()}")


def groups(word: str) -> list[str]:
    """Return the cgroups with a word in their path."""
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if word in folder]


def sleepers() -> list[int]:
    """Return the processes that the doomed server's sessions left running."""
    processes = psutil.process_iter(["pid", "cmdline"])
    return [process.pid for process in processes if process.info["cmdline"] == ["sleep", "47110"]]


@pytest.mark.promise("docker:orphans")
@pytest.mark.parametrize("tier", TIERS)
async def test_nothing_of_a_killed_server_remains(engine: Dockerd, top: Path, tier: Tier) -> None:
    socket = str(engine.socket) if tier == "docker" else ""
    command = [sys.executable, "-m", "tests.runtimes.docker.doomed_server", tier, socket]
    async with await anyio.open_process(command, stderr=None) as server:
        assert server.stdout is not None
        names = (await server.stdout.receive()).decode().split()
        assert len(names) == 3
        with anyio.fail_after(60):
            while not sleepers():
                await anyio.lowlevel.checkpoint()
        server.kill()
    with anyio.fail_after(60):
        while sleepers():
            await anyio.lowlevel.checkpoint()
        while any(name in engine.docker("ps", "--all") for name in names):
            await anyio.lowlevel.checkpoint()
        while any(groups(name) for name in names):
            await anyio.lowlevel.checkpoint()
    # The next server of any tier removes its directory and the parent of its cgroups.
    (server_name,) = os.listdir(top)
    async with DockerRuntime(ContainerOptions(socket=engine.socket), tier="docker"):
        pass
    assert os.listdir(top) == []
    assert groups(server_name) == []


@pytest.mark.promise("docker:orphans")
async def test_containers_created_by_a_killed_server_are_removed_by_the_next(engine: Dockerd) -> None:
    options = ContainerOptions(socket=engine.socket)
    async with DockerRuntime(options) as runtime:
        instance = await runtime.start()
        named = f"agentflow-{instance.id}"
        realm, image = (
            engine.docker("inspect", "--format", template, named)
            for template in (f'{{{{index .Config.Labels "{REALM}"}}}}', "{{.Config.Image}}")
        )
        mine = f"{OWNER}=dead"
        engine.docker(
            "create", "--name", "left", "--label", mine, "--label", f"{REALM}={realm}", image, "true"
        )
        engine.docker(
            "create", "--name", "others", "--label", mine, "--label", f"{REALM}=other", image, "true"
        )
        engine.docker("tag", image, f"agentflow-fork-{realm}:dead-1")
        async with DockerRuntime(options):
            names = engine.docker("ps", "--all", "--format", "{{.Names}}").split()
            assert "left" not in names
            assert {"others", named} <= set(names)
            assert "dead-1" not in engine.docker("images")
        engine.docker("rm", "others")
        assert (await instance.exec(["echo", "alive"])).stdout == b"alive\n"


@pytest.mark.promise("docker:leave")
@pytest.mark.parametrize("tier", TIERS)
async def test_leaving_ends_everything_also_while_some_are_being_started(
    engine: Dockerd, top: Path, tier: Tier
) -> None:
    options = ContainerOptions(socket=engine.socket if tier == "docker" else None, pool=2)
    names: list[str] = []
    async with DockerRuntime(options, tier=tier) as runtime:
        kept = await runtime.start()
        names.append(kept.id)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(runtime.start)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert os.listdir(top) == []
    assert engine.docker("ps", "--all", "--quiet", "--filter", f"label={OWNER}") == ""
    assert [group for name in names for group in groups(name)] == []
    assert not runtime.alive
