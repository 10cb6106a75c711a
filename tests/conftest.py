"""Fixtures and hooks of the whole suite."""

import gc
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from agentflow.serving import ModelServer
from tests import _features, _plain_user
from tests._failures import FailureLog
from tests._plain_user import PlainUser
from tests._postgres import PostgresServer, postgres_server
from tests._spreading import ByFile
from tests._vllm import real_server, tiny_server

if TYPE_CHECKING:
    from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs] - it is typed, and does not say so

# Collecting tests creates millions of objects that live until the end: searching them for garbage takes seconds.
gc.disable()

# The same examples in every run, however busy the machine is. `make soak` uses random ones.
settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failures", metavar="FILE", help="write the ids and tracebacks of failed tests to FILE"
    )
    parser.addoption(
        "--record",
        action="store_true",
        help="record the results in tests/features.json, and write docs/features.md",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record results in the process that controls the run, not in its workers."""
    if hasattr(config, "workerinput"):
        return
    path = config.getoption("--failures")
    if path is not None:
        config.pluginmanager.register(FailureLog(Path(path)))
    if config.getoption("--record"):
        config.pluginmanager.register(_features.FeatureRecord(time.strftime("%Y-%m-%d")))


def pytest_sessionstart() -> None:
    """Forget the key of a developer: settings that name resources would use the default model with it."""
    os.environ.pop("OPENAI_API_KEY", None)
    os.environ.pop("OPENAI_BASE_URL", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests of the served model first, so that no worker waits for its slow start at the end."""
    if config.getoption("--record"):
        for item in items:
            _features.describe(item)
    served = {"vllm", "smollm2"}
    items.sort(key=lambda item: not (isinstance(item, pytest.Function) and served & {*item.fixturenames}))


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among modules and collected tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> ByFile | None:
    """Use the custom scheduler only with `--dist loadfile`."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Make the tests' programs interruptible, also when a shell started the suite in the background."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Restore the loggers: a program under test configures logging for itself."""
    loggers = [logging.getLogger(name) for name in (None, "agentflow", "mcp_servers", "runtimes")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture(scope="session")
def plain_user() -> Iterator[PlainUser]:
    """Return an ordinary user: `plain_user.run_python("print(1)").stdout`."""
    try:
        with _plain_user.plain_user() as user:
            yield user
    except _plain_user.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Return a Postgres server of the suite: `postgres.new_database()` returns the URL of an empty database."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def vllm() -> Iterator[ModelServer]:
    """Return a real vLLM on the CPU, with a tiny untrained model."""
    with tiny_server() as server:
        yield server


@pytest.fixture(scope="session")
def smollm2() -> Iterator[ModelServer]:
    """Return a real vLLM on the CPU, with SmolLM2 in float32."""
    with real_server("float32") as server:
        yield server
