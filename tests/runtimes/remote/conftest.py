"""Stubs of the services, and runtimes that use them through the services' own libraries."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from runtimes import Instance
from runtimes.remote import RemoteOptions, RemoteRuntime, ServiceName

KEY = "stub-secret-f3a9c1"
"""Key of every stub."""


@dataclass(frozen=True)
class Stub:
    """Running stub of a service."""

    name: ServiceName
    url: str
    settings: Mapping[str, str]
    """Environment variables with which the service's library uses it."""
    template: str | None = None

    def options(self, **options: object) -> RemoteOptions:
        """Return the options of a runtime that uses it."""
        values = {"lifetime": 600, "template": self.template, **self.own_options(), **options}
        return RemoteOptions.model_validate(values)

    def own_options(self) -> dict[str, object]:
        """Return the options that only this service takes."""
        return {"url": self.url} if self.name == "k8s" else {}


@contextmanager
def stub_process(module: str) -> Generator[str]:
    """Run a stub; yield its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.runtimes.remote.stubs.{module}"],
        stdout=subprocess.PIPE,
        env={**os.environ, "STUB_KEY": KEY},
        encoding="utf-8",
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _e2b(url: str) -> Stub:
    names = {"E2B_API_KEY": KEY, "E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_HTTP_VERSION": "1.1"}
    return Stub("e2b", url, names)


def _k8s(url: str) -> Stub:
    cluster = {"name": "stub", "cluster": {"server": url}}
    context = {"name": "stub", "context": {"cluster": "stub", "user": "stub"}}
    user = {"name": "stub", "user": {"token": KEY}}
    config = {"current-context": "stub", "clusters": [cluster], "contexts": [context], "users": [user]}
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False, encoding="utf-8") as file:
        json.dump(config, file)
    return Stub("k8s", url, {"KUBECONFIG": file.name}, template="pool")


def _modal(url: str) -> Stub:
    names = {"MODAL_TOKEN_ID": "ak-stub", "MODAL_TOKEN_SECRET": KEY, "MODAL_SERVER_URL": url}
    return Stub("modal", url, names)


def _daytona(url: str) -> Stub:
    return Stub("daytona", url, {"DAYTONA_API_KEY": KEY, "DAYTONA_API_URL": url})


STUBS: Mapping[str, Callable[[str], Stub]] = {"daytona": _daytona, "e2b": _e2b, "k8s": _k8s, "modal": _modal}


@contextmanager
def running_stub(name: str) -> Generator[Stub]:
    """Run a stub with the environment that its library reads."""
    with stub_process(name) as url, pytest.MonkeyPatch.context() as patch:
        stub = STUBS[name](url)
        for variable, value in stub.settings.items():
            patch.setenv(variable, value)
        yield stub


@pytest.fixture(scope="module", params=list(STUBS))
def stub(request: pytest.FixtureRequest) -> Iterator[Stub]:
    """Run the tests of a module with the stub of each service."""
    with running_stub(request.param) as stub:
        yield stub


@pytest.fixture(scope="module")
async def runtime(stub: Stub) -> AsyncIterator[RemoteRuntime]:
    """Runtime of that service."""
    async with RemoteRuntime(stub.name, stub.options()) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: RemoteRuntime) -> AsyncIterator[Instance]:
    """Instance with the default limits."""
    instance = await runtime.start()
    yield instance
    await instance.stop()
