"""inspect_ai's own checks for sandboxes, run against the process runtime."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from inspect_ai.util import SandboxEnvironment

from runtimes.process import ProcessRuntime
from tests._plain_user import PlainUser
from tests.runtimes.process.inspect_adapter import CHECKS, InstanceEnvironment


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[ProcessRuntime]:
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def environment(runtime: ProcessRuntime) -> AsyncIterator[SandboxEnvironment]:
    instance = await runtime.start()
    yield InstanceEnvironment(instance)
    await instance.stop()


@pytest.mark.promise("instances:inspect")
@pytest.mark.parametrize("check", CHECKS)
async def test_an_instance_passes_the_check_of_inspect(environment: SandboxEnvironment, check: str) -> None:
    await CHECKS[check](environment)


def test_every_check_of_inspect_is_found() -> None:
    assert len(CHECKS) >= 44


def report_of(user: PlainUser, env: dict[str, str]) -> dict[str, Any]:
    command = (str(user.python), "-m", "tests.runtimes.process.inspect_adapter")
    run = user.run(*command, timeout=110, env=env)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.promise("instances:inspect:user")
def test_an_ordinary_user_with_a_range_of_ids_passes_every_check(plain_user: PlainUser) -> None:
    report = report_of(plain_user, {})
    assert report["root"]
    assert report["failures"] == {}


@pytest.mark.promise("instances:inspect:one-id")
def test_an_ordinary_user_with_one_id_passes_every_check_but_root_inside(plain_user: PlainUser) -> None:
    report = report_of(plain_user, {"PATH": "/nowhere"})
    assert not report["root"]
    assert list(report["failures"]) == ["test_exec_as_user"]
