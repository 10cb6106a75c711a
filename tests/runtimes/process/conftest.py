"""A runtime of the process runtime's own tests, and the kinds of user that use it."""

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

Kind = Literal["whoever runs the suite", "a user with a range of ids", "a user without a range of ids"]
KINDS: tuple[Kind, ...] = (
    "whoever runs the suite",
    "a user with a range of ids",
    "a user without a range of ids",
)
"""Who may use the process runtime."""

# Without this program an ordinary user can't be given its range of ids.
_NO_NEWUIDMAP = {"PATH": "/nowhere"}


@pytest.fixture
async def runtime() -> AsyncIterator[ProcessRuntime]:
    """A runtime of this test's own.

    Like those of the other tests it is not idle: what is in its sandboxes has deadlines to meet, the test's and the
    runtime's own, also where the rest of the suite runs at the same time.
    """
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime) -> Instance:
    """One instance with the default limits."""
    return await runtime.start()


class Users:
    """Runs a module of the tests as each kind of user; every module once for each."""

    def __init__(self, plain: pytest.FixtureRequest) -> None:
        self._request = plain
        self._reports: dict[tuple[str, Kind], object] = {}

    def report(self, module: str, kind: Kind) -> object:
        """What the module printed, as JSON."""
        if (module, kind) not in self._reports:
            done = self._run(f"from {module} import main; main()", kind)
            assert done.returncode == 0, done.stderr
            self._reports[module, kind] = json.loads(done.stdout)
        return self._reports[module, kind]

    def _run(self, script: str, kind: Kind) -> subprocess.CompletedProcess[str]:
        if kind == "whoever runs the suite":
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
    """Runs modules as each kind of user."""
    return Users(request)
