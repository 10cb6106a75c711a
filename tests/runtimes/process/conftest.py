"""Fixtures for the process runtime's tests: a runtime, and the kinds of users that run it."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import pytest

from runtimes import Instance
from runtimes.process import ProcessRuntime

if TYPE_CHECKING:
    from tests._plain_user import PlainUser

Kind = Literal["the current user", "a user with a range of ids", "a user without a range of ids"]
KINDS: tuple[Kind, ...] = (
    "the current user",
    "a user with a range of ids",
    "a user without a range of ids",
)
"""Kinds of users of the process runtime."""

# Without `newuidmap` an ordinary user can't map its range of ids.
_NO_NEWUIDMAP = {"PATH": "/nowhere"}


@pytest.fixture
async def runtime() -> AsyncIterator[ProcessRuntime]:
    """Runtime of one test, without idle priority: its sandboxes must meet deadlines while other tests run."""
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> Instance:
    """Instance with the default limits."""
    return await runtime.start()


class Users:
    """Run test modules as each kind of user, each module once per kind."""

    def __init__(self, plain: pytest.FixtureRequest) -> None:
        self._request = plain
        self._reports: dict[tuple[str, Kind], object] = {}

    def report(self, module: str, kind: Kind) -> object:
        """Return the JSON that the module printed."""
        if (module, kind) not in self._reports:
            done = self._run(f"from {module} import main; main()", kind)
            assert done.returncode == 0, done.stderr
            self._reports[module, kind] = json.loads(done.stdout)
        return self._reports[module, kind]

    def _run(self, script: str, kind: Kind) -> subprocess.CompletedProcess[str]:
        if kind == "the current user":
            return subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                encoding="utf-8",
                timeout=400,
                check=False,
            )
        plain: PlainUser = self._request.getfixturevalue("plain_user")
        environment = _NO_NEWUIDMAP if kind == "a user without a range of ids" else None
        return plain.run_python(script, timeout=400, env=environment)


@pytest.fixture(scope="session")
def users(request: pytest.FixtureRequest) -> Users:
    """Runner of modules as each kind of user."""
    return Users(request)
