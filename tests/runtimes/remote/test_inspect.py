"""inspect_ai's checks of a sandbox, run against remote sandboxes."""

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment

from runtimes.remote import RemoteInstance, RemoteRuntime
from tests.runtimes.process.inspect_adapter import CHECKS, InstanceEnvironment


@pytest.fixture(scope="module")
async def shared(runtime: RemoteRuntime) -> AsyncIterator[RemoteInstance]:
    """Sandbox for all checks of a service."""
    instance = await runtime.start()
    yield instance
    await instance.stop()


@pytest.fixture
def environment(shared: RemoteInstance) -> SandboxEnvironment:
    return InstanceEnvironment(shared)


@pytest.mark.promise("remote:inspect")
@pytest.mark.parametrize("check", CHECKS)
async def test_a_remote_sandbox_passes_the_checks_of_inspect(
    environment: SandboxEnvironment, check: str
) -> None:
    await CHECKS[check](environment)
