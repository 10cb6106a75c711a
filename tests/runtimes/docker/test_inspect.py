"""inspect_ai's checks of a sandbox, run against the Docker runtime."""

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment

from runtimes import InstanceSpec
from runtimes.docker import ContainerOptions, DockerRuntime
from tests._dockerd import Dockerd
from tests.runtimes.process.inspect_adapter import CHECKS, InstanceEnvironment

PLAIN = InstanceSpec()


@pytest.fixture(scope="module")
async def runtime(engine: Dockerd) -> AsyncIterator[DockerRuntime]:
    """Runtime whose root may add users, as one of the checks requires."""
    options = ContainerOptions(socket=engine.socket, writable=True, pool=2)
    async with DockerRuntime(options, pool_spec=PLAIN) as runtime:
        yield runtime


@pytest.fixture
async def environment(runtime: DockerRuntime) -> AsyncIterator[SandboxEnvironment]:
    instance = await runtime.start(PLAIN)
    yield InstanceEnvironment(instance)
    await instance.stop()


@pytest.mark.promise("docker:inspect")
@pytest.mark.parametrize("check", CHECKS)
async def test_a_container_passes_the_checks_of_inspect(environment: SandboxEnvironment, check: str) -> None:
    await CHECKS[check](environment)
