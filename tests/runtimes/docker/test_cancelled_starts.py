"""Starts cancelled at the worst moment leave nothing behind."""

import os
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from aiohttp import web

from agentflow.errors import RuntimeFailure
from runtimes import Limits
from runtimes.docker import ContainerOptions, DockerRuntime
from runtimes.docker._bundle import BundleLauncher
from runtimes.docker._engine import OWNER, EngineLauncher
from runtimes.docker._instance import InitConnection
from runtimes.docker._plan import Container, ContainerLauncher, ContainerPlan, Tier
from runtimes.process._channel import RequestChannel
from tests._dockerd import Dockerd
from tests.runtimes.docker.conftest import TIERS

pytestmark = pytest.mark.promise("docker:leave")

PLAN = ContainerPlan(name="one", argv=("python3",), env={}, mounts=(), hidden=(), limits=Limits())


class SlowEngine:
    """Docker engine that completes every request when it is released, even after its client has gone."""

    def __init__(self) -> None:
        self.containers: set[str] = set()
        self.requested = anyio.Event()
        self.released = anyio.Event()
        self.idle = anyio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        path, method = request.path, request.method
        if path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.43", "Os": "linux"})
        if path.endswith("/containers/create"):
            return await self._create(request.query["name"])
        if method == "DELETE":
            name = path.rpartition("/")[2]
            if name not in self.containers:
                return web.json_response({"message": "no such container"}, status=404)
            self.containers.remove(name)
        if path.endswith("/json"):
            return web.json_response({"Config": {}} if "/images/image/" in path else [])
        return web.Response(status=204)

    async def _create(self, name: str) -> web.Response:
        self.requested.set()
        await self.released.wait()
        self.containers.add(name)
        self.idle.set()
        return web.json_response({"Id": name}, status=201)


@pytest.fixture
async def slow_engine(tmp_path: Path) -> AsyncIterator[SlowEngine]:
    engine = SlowEngine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "engine")).start()
    yield engine
    await runner.cleanup()


async def start_and_cancel(
    launcher: ContainerLauncher, requested: anyio.Event, released: anyio.Event
) -> None:
    """Cancel a start while its request is in flight, and complete the request afterwards."""

    async def start() -> None:
        container = await launcher.launch(PLAN)
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            with anyio.CancelScope(shield=True):
                await container.end()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await requested.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                # Enough iterations of the event loop for every request of the cancelled task to be answered.
                for _ in range(1000):
                    await anyio.lowlevel.checkpoint()
                released.set()


async def test_a_container_that_the_engine_creates_after_the_start_was_cancelled_is_removed(
    slow_engine: SlowEngine, tmp_path: Path
) -> None:
    launcher = EngineLauncher(ContainerOptions(socket=tmp_path / "engine", image="image"))
    await launcher.open(str(tmp_path), "realm", lambda _: True)
    await start_and_cancel(launcher, slow_engine.requested, slow_engine.released)
    with anyio.fail_after(60):
        await slow_engine.idle.wait()
    assert slow_engine.containers == set()
    await launcher.close()


def write_runc(folder: Path) -> None:
    """Write a `runc` whose first `delete` comes before the container exists; it logs its subcommands."""
    program = folder / "runc"
    program.write_text(
        "#!/bin/bash\n"
        f"cd {folder}\n"
        'for word in "$@"; do case $word in run|delete) echo $word >> log ;; esac; done\n'
        'case " $* " in\n'
        '*" run "*) echo $$ > pid; exec sleep 47111 ;;\n'
        '*" delete "*) [ $(grep -c delete log) -ge 2 ] && kill -9 $(cat pid); exit 0 ;;\n'
        "esac\n"
    )
    program.chmod(0o755)


@pytest.fixture
async def bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BundleLauncher:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_runc(tmp_path)
    launcher = BundleLauncher("runc", ContainerOptions())
    await launcher.open(str(tmp_path), "realm", lambda _: True)
    return launcher


async def test_a_container_whose_program_was_just_started_when_the_start_was_cancelled_is_deleted(
    bundles: BundleLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, released = anyio.Event(), anyio.Event()
    open_process = anyio.open_process

    async def open_slowly(command: list[str], **options: object) -> anyio.abc.Process:
        process = await open_process(command, **cast("Any", options))
        if "run" not in command:
            return process
        started.set()
        try:
            await released.wait()
        except BaseException:
            # As asyncio does with a process that it has just started.
            process.kill()
            raise
        return process

    monkeypatch.setattr(anyio, "open_process", open_slowly)
    await start_and_cancel(bundles, started, released)
    assert "delete" in (tmp_path / "log").read_text()
    await bundles.close()


async def test_a_container_that_does_not_exist_yet_is_deleted_again_until_it_is_gone(
    bundles: BundleLauncher, tmp_path: Path
) -> None:
    with anyio.fail_after(60):
        container = await bundles.launch(PLAN)
        while not (tmp_path / "pid").exists():
            await anyio.lowlevel.checkpoint()
        await container.end()
    assert (tmp_path / "log").read_text().split() == ["run", "delete", "delete"]
    await bundles.close()


@pytest.mark.parametrize("tier", TIERS)
async def test_closing_the_runtime_ends_a_container_that_another_task_is_starting(
    engine: Dockerd, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, released = anyio.Event(), anyio.Event()
    answer = InitConnection.answer

    async def answer_late(
        self: InitConnection, container: Container, settings: dict[str, Any], seconds: float
    ) -> RequestChannel:
        called.set()
        await released.wait()
        return await answer(self, container, settings, seconds)

    monkeypatch.setattr(InitConnection, "answer", answer_late)
    failures: list[RuntimeFailure] = []

    async def start(runtime: DockerRuntime) -> None:
        with pytest.raises(RuntimeFailure, match="closed") as failure:
            await runtime.start()
        failures.append(failure.value)

    with tempfile.TemporaryDirectory(prefix="servers-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        options = ContainerOptions(socket=engine.socket if tier == "docker" else None)
        runtime = DockerRuntime(options, tier=tier)
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                async with runtime:
                    tasks.start_soon(partial(start, runtime))
                    await called.wait()
                released.set()
        assert os.listdir(f"{folder}/agentflow-{os.geteuid()}") == []
    assert len(failures) == 1
    assert engine.docker("ps", "--all", "--quiet", "--filter", f"label={OWNER}") == ""
    with pytest.raises(RuntimeFailure, match="the runtime is closed"):
        await runtime.start()
