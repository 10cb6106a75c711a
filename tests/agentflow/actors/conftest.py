"""Tests of the kernel run in virtual time, unless their module says otherwise."""

import pytest

from agentflow.testing import VirtualTimeLoop


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}
