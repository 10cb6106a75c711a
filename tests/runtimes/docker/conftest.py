"""A Docker engine, and container runtimes on it, for the tests of this folder."""

from collections.abc import AsyncIterator, Iterator

import pytest

from runtimes import Instance
from runtimes.docker import ContainerOptions, DockerRuntime
from tests._dockerd import Dockerd, dockerd

TIERS = ("docker", "runc")


@pytest.fixture(scope="session")
def engine() -> Iterator[Dockerd]:
    """An engine of the suite's own."""
    with dockerd() as engine:
        yield engine


@pytest.fixture(scope="module")
async def docker(engine: Dockerd) -> AsyncIterator[DockerRuntime]:
    """A runtime on that engine."""
    async with DockerRuntime(ContainerOptions(socket=engine.socket)) as runtime:
        yield runtime


@pytest.fixture(scope="module")
async def runc() -> AsyncIterator[DockerRuntime]:
    """A runtime without an engine."""
    async with DockerRuntime(tier="runc") as runtime:
        yield runtime


@pytest.fixture(params=TIERS)
def runtime(request: pytest.FixtureRequest) -> DockerRuntime:
    """Each of the two."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def instance(runtime: DockerRuntime) -> AsyncIterator[Instance]:
    """One instance with the default limits."""
    instance = await runtime.start()
    yield instance
    await instance.stop()
