"""Containers with a system of their own, and errors for missing requirements."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow.errors import IsolationUnavailable
from runtimes import InstanceSpec
from runtimes.docker import ContainerOptions, DockerRuntime
from runtimes.docker._plan import Tier
from tests._dockerd import Dockerd
from tests.runtimes.docker import _systems


@pytest.fixture(scope="module")
def system() -> Iterator[Path]:
    """Directory with a small system."""
    with tempfile.TemporaryDirectory(prefix="system-") as folder:
        root = Path(folder, "root")
        root.mkdir()
        _systems.create_root(root)
        yield root


@pytest.fixture(scope="module")
def images(engine: Dockerd, system: Path) -> Dockerd:
    """Engine with images of that system: a good one, one without Python, one with an old Python."""
    archive = system.parent / "root.tar"
    _systems.pack(system, archive)
    changes = ("--change", "ENV OWN=word PATH=/opt/own:/bin")
    engine.docker("import", *changes, str(archive), "system:good")
    (system / "bin/python3").rename(system.parent / "python3")
    _systems.pack(system, archive)
    engine.docker("import", *changes, str(archive), "system:bare")
    old = system / "bin/python3"
    old.write_text("#!/bin/sh\nexit 42\n", encoding="utf-8")
    old.chmod(0o755)
    _systems.pack(system, archive)
    engine.docker("import", *changes, str(archive), "system:old")
    (system.parent / "python3").rename(old)
    return engine


async def check_system(runtime: DockerRuntime) -> None:
    instance = await runtime.start(InstanceSpec(env={"ADDED": "yes"}))
    shell = await instance.run("bash", "cat /opt/own/mark; ls /usr/bin 2>/dev/null; echo $ADDED; pwd")
    assert shell.stdout == "its own\nyes\n/home/agent\n"
    assert (await instance.run("python", "import sys, json; sys.executable")).value == "'/bin/python3'"
    await instance.write("file", b"content")
    assert (await instance.exec(["cat", "file"])).stdout == b"content"
    assert (await instance.exec(["id", "-u"])).stdout == b"1000\n"


@pytest.mark.promise("docker:image")
async def test_an_image_has_its_own_system_and_environment(images: Dockerd) -> None:
    async with DockerRuntime(ContainerOptions(socket=images.socket, image="system:good")) as runtime:
        await check_system(runtime)
        instance = await runtime.start()
        seen = await instance.exec(["env"])
        assert {b"OWN=word", b"PATH=/home/agent/.local/bin:/opt/own:/bin"} <= set(seen.stdout.split(b"\n"))


@pytest.mark.promise("docker:image")
async def test_a_rootfs_directory_has_its_own_system(system: Path) -> None:
    async with DockerRuntime(ContainerOptions(rootfs=system), tier="runc") as runtime:
        await check_system(runtime)


async def refusal(options: ContainerOptions, tier: Tier = "docker") -> str:
    """Return the error of a start that must fail."""
    with pytest.raises(IsolationUnavailable) as caught:
        async with DockerRuntime(options, tier=tier) as runtime:
            await runtime.start()
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.promise("docker:missing")
async def test_an_unusable_image_is_refused_with_the_reason(images: Dockerd) -> None:
    def options(image: str) -> ContainerOptions:
        return ContainerOptions(socket=images.socket, image=image)

    assert "run docker pull system:none" in await refusal(options("system:none"))
    assert "no python3: use one with Python 3.11" in await refusal(options("system:bare"))
    assert "its python3 is older than 3.11" in await refusal(options("system:old"))


@pytest.mark.promise("docker:missing")
async def test_a_missing_engine_is_reported_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "start dockerd" in await refusal(ContainerOptions(socket=tmp_path / "no.sock"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    assert "must be on this machine" in await refusal(ContainerOptions())
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert "cannot be used" in await refusal(ContainerOptions())


@pytest.mark.promise("docker:missing")
async def test_a_missing_program_is_reported_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "has no images: unpack 'x'" in await refusal(ContainerOptions(image="x"), "runc")
    assert "contains no system" in await refusal(ContainerOptions(rootfs=tmp_path), "runc")
    monkeypatch.setattr("runtimes.docker._bundle.SEARCHED", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install the package runc" in await refusal(ContainerOptions(), "runc")
    assert "install the package runsc" in await refusal(ContainerOptions(), "gvisor")


@pytest.mark.promise("docker:missing")
async def test_a_missing_mount_source_is_reported(engine: Dockerd) -> None:
    async with DockerRuntime(ContainerOptions(socket=engine.socket)) as runtime:
        with pytest.raises(IsolationUnavailable, match="/not/there") as caught:
            await runtime.start(InstanceSpec(mounts={"/data": "/not/there"}))
        assert "\n" not in str(caught.value)
        instance = await runtime.start()
        assert (await instance.exec(["echo", "on"])).stdout == b"on\n"


@pytest.mark.promise("docker:missing")
def test_a_missing_library_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("aiodocker", "runtimes.docker._"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiodocker", None)
    from runtimes.docker._runtime import make_launcher

    with pytest.raises(
        IsolationUnavailable, match=r"^runtime docker needs the extra docker: .* extras add docker$"
    ):
        make_launcher("docker", ContainerOptions())


@pytest.mark.promise("docker:mounted-services")
@pytest.mark.parametrize("tier", ["runc", "gvisor"])
async def test_a_folder_with_sockets_or_fifos_is_not_mounted(tmp_path: Path, tier: Tier) -> None:
    (tmp_path / "deep").mkdir()
    os.mkfifo(tmp_path / "deep" / "fifo")
    async with DockerRuntime(tier=tier) as runtime:
        for source in (tmp_path, tmp_path / "deep" / "fifo"):
            with pytest.raises(IsolationUnavailable, match="deep/fifo is a socket or FIFO"):
                await runtime.start(InstanceSpec(mounts={"/data": str(source)}))
