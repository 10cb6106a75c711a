"""Docker engine, and container runtimes that use it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from runtimes import Instance
from runtimes.docker import ContainerOptions, DockerRuntime
from tests._dockerd import Dockerd, dockerd

TIERS = ("docker", "runc")


@pytest.fixture(scope="session")
def engine() -> Iterator[Dockerd]:
    """Start an engine for the test session."""
    with dockerd() as engine:
        yield engine


@pytest.fixture(scope="module")
async def docker(engine: Dockerd) -> AsyncIterator[DockerRuntime]:
    """Runtime with that engine."""
    async with DockerRuntime(ContainerOptions(socket=engine.socket)) as runtime:
        yield runtime


@pytest.fixture(scope="module")
async def runc() -> AsyncIterator[DockerRuntime]:
    """Runtime without an engine."""
    async with DockerRuntime(tier="runc") as runtime:
        yield runtime


@pytest.fixture(params=TIERS)
def runtime(request: pytest.FixtureRequest) -> DockerRuntime:
    """Run the test with each of the two."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def instance(runtime: DockerRuntime) -> AsyncIterator[Instance]:
    """Instance with the default limits."""
    instance = await runtime.start()
    yield instance
    await instance.stop()
