"""Network of a sandbox: programs reach the hosts of its allowlist through a proxy, and nothing else."""

import io
import subprocess
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from agentflow import Sandbox
from agentflow.errors import ConfigurationError, IsolationUnavailable
from agentflow.sandbox import SandboxSettings
from agentflow.settings import load_settings
from mcp_servers.serving._settings import ServerSettings
from runtimes import Instance, InstanceSpec, NetworkAccess
from runtimes.docker import ContainerOptions, DockerRuntime
from runtimes.process import ProcessRuntime
from tests.runtimes.egress._site import FakeSite, fake_site

HOST = "packages.example"


async def resolve(host: str, port: int) -> list[str]:
    if host != HOST:
        raise OSError("Name or service not known")
    return ["127.0.0.1"]


def wheel(folder: Path) -> None:
    """Make a package index with one package."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("demo_package.py", "value = 42\n")
        info = "demo_package-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo-package\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    index = folder / "simple" / "demo-package"
    index.mkdir(parents=True)
    (index / "demo_package-1.0-py3-none-any.whl").write_bytes(data.getvalue())


def repository(folder: Path) -> None:
    """Make a git repository that can be cloned from static files."""
    commands = (
        "git init -q -b main work && cd work && echo cloned > file && git add file"
        " && git -c user.name=a -c user.email=a@example.com commit -q -m first && cd .."
        " && git clone -q --bare work demo.git && cd demo.git && git update-server-info"
    )
    subprocess.run(
        ["bash", "-ec", commands], cwd=folder, check=True, env={"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    )


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[FakeSite]:
    folder = tmp_path_factory.mktemp("site")
    wheel(folder)
    repository(folder)
    async with fake_site(folder) as site:
        yield site


@pytest.fixture(scope="module")
async def runtime() -> AsyncGenerator[ProcessRuntime]:
    async with ProcessRuntime(preload=(), idle=False, resolve=resolve) as runtime:
        yield runtime


@pytest.fixture
async def instance(runtime: ProcessRuntime, site: FakeSite) -> AsyncGenerator[Instance]:
    with anyio.fail_after(120):
        access = NetworkAccess(allow=(f"{HOST}:{site.port}",), allow_private=True)
        instance = await runtime.start(InstanceSpec(network=access))
        yield instance
        await instance.stop()


async def bash(instance: Instance, command: str) -> str:
    result = await instance.run("bash", command)
    return result.stdout + result.stderr


@pytest.mark.promise("egress:programs")
async def test_usual_programs_reach_an_allowed_host(instance: Instance, site: FakeSite) -> None:
    url = f"http://{HOST}:{site.port}"
    assert await bash(instance, f"curl -sS {url}/a") == "GET /a "
    assert await bash(instance, f"curl -sS --proxytunnel {url}/b") == "GET /b "
    assert await bash(instance, f"curl -sS --socks5-hostname 127.0.0.1:3128 {url}/c") == "GET /c "
    read = "import urllib.request, urllib.error\ndef read(url): return urllib.request.urlopen(url).read()"
    await instance.run("python", read)
    assert (await instance.run("python", f"read('{url}/d')")).value == "b'GET /d '"
    index = f"--index-url {url}/files/simple --trusted-host {HOST} --disable-pip-version-check --no-cache-dir"
    installed = await bash(instance, f"python3 -m pip install -q --target lib {index} demo-package && ls lib")
    assert "demo_package.py" in installed
    assert await bash(instance, f"git clone -q {url}/files/demo.git && cat demo/file") == "cloned\n"


@pytest.mark.promise("egress:told")
async def test_programs_show_why_a_host_is_refused(instance: Instance, site: FakeSite) -> None:
    line = f"is not allowed: network.allow of this session has {HOST}:{site.port}."
    assert await bash(instance, "curl -sS http://other.example/") == f"agentflow: other.example:80 {line}\n"
    shown = await instance.run(
        "python", "import urllib.request\nurllib.request.urlopen('https://other.example/')"
    )
    assert shown.error is not None and f"other.example:443 {line}" in shown.error.message
    assert "response 403" in await bash(instance, "git clone https://other.example/x")


@pytest.mark.promise("egress:kept")
async def test_forks_and_restored_sandboxes_keep_their_network(instance: Instance, site: FakeSite) -> None:
    url = f"http://{HOST}:{site.port}"
    await instance.run(
        "python", "import urllib.request\ndef read(url): return urllib.request.urlopen(url).read()"
    )
    await bash(instance, "cd /tmp")
    fork = (await instance.fork()).instance
    grandchild = (await fork.fork()).instance
    for member in (fork, grandchild, instance):
        assert await bash(member, f"curl -sS {url}/shell") == "GET /shell "
        assert (await member.run("python", f"read('{url}/python')")).value == "b'GET /python '"
        assert "not allowed" in await bash(member, "curl -sS http://other.example/")
    await instance.stop()
    snapshot = await fork.snapshot()
    await fork.restore(snapshot)
    assert await bash(fork, f"curl -sS {url}/restored") == "GET /restored "
    assert await bash(grandchild, f"curl -sS {url}/survivor") == "GET /survivor "


@pytest.mark.promise("egress:limits")
async def test_a_fork_starts_with_the_traffic_of_its_parent(runtime: ProcessRuntime, site: FakeSite) -> None:
    access = NetworkAccess(allow=(f"{HOST}:*",), allow_private=True, max_bytes=1_500_000)
    parent = await runtime.start(InstanceSpec(network=access))
    large = f"curl -sS http://{HOST}:{site.port}/large | wc -c"
    assert await bash(parent, large) == f"{1 << 20}\n"
    fork = (await parent.fork()).instance
    await fork.restore(await fork.snapshot())
    assert int((await fork.run("bash", large)).stdout) < 1 << 20
    assert "has used its 1500000 bytes" in await bash(fork, f"curl -sS http://{HOST}:{site.port}/")
    assert await bash(parent, f"curl -sS http://{HOST}:{site.port}/") == "GET / "


@pytest.mark.promise("egress:only-way")
async def test_nothing_is_reached_past_the_proxy(
    runtime: ProcessRuntime, instance: Instance, site: FakeSite
) -> None:
    attempt = (
        "import socket\ndef reached(host, port, kind=socket.SOCK_STREAM):\n"
        "    with socket.socket(type=kind) as one:\n        try: one.connect((host, port)); return True\n"
        "        except OSError: return False"
    )
    targets = [("127.0.0.1", site.port), ("93.184.216.34", 80), ("10.0.0.1", 80), ("169.254.169.254", 80)]
    without = await runtime.start()
    for member in (instance, without):
        await member.run("python", attempt)
        value = (await member.run("python", f"[reached(*target) for target in {targets}]")).value
        assert value == str([False] * len(targets))
        assert (await member.run("python", "reached('8.8.8.8', 53, socket.SOCK_DGRAM)")).value == "False"
        names = "import os\nsorted(name for name in os.environ if 'PROXY' in name)"
        expected = member is instance
        assert ((await member.run("python", names)).value != "[]") is expected
        assert (await member.run("python", "reached('127.0.0.1', 3128)")).value == str(expected)
    # Another sandbox's proxy is in another network namespace, and nobody inside can take its port.
    taken = await instance.run(
        "python", "import socket\nsocket.create_server(('127.0.0.1', 3128), reuse_port=True)"
    )
    assert taken.error is not None and "Address already in use" in taken.error.message


@pytest.mark.promise("egress:settings")
async def test_a_runtime_without_allowlists_refuses_one() -> None:
    runtime = DockerRuntime(ContainerOptions(), tier="runc")
    with pytest.raises(IsolationUnavailable, match="works with the process runtime only"):
        await runtime.start(InstanceSpec(network=NetworkAccess(allow=("example.org",))))


@pytest.mark.promise("egress:settings")
@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            "{allow: [example.org, 'https://x.org']}",
            "network: entry 2 of allow is not a host: write example.org",
        ),
        (
            "{allow: [example.org], max_connections: 0}",
            "network: max_bytes and max_connections must be at least 1",
        ),
        ("{alow: [example.org]}", "network.alow is unknown; did you mean allow?"),
        ("{}", "network.allow is missing"),
    ],
)
def test_wrong_settings_of_the_network_are_one_line(value: str, line: str) -> None:
    for kind, key in ((SandboxSettings, "network"), (ServerSettings, "sessions.network")):
        with pytest.raises(ConfigurationError) as refused:
            load_settings(kind, overrides=[f"{key}={value}"])
        assert line in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.promise("egress:settings")
async def test_sessions_get_the_network_of_their_settings(site: FakeSite) -> None:
    rule = f"127.0.0.1:{site.port}"
    settings = load_settings(
        SandboxSettings, overrides=[f"network={{allow: ['{rule}'], allow_private: true}}"]
    )
    async with Sandbox(settings) as sandbox:
        command = {"command": f"curl -sS --noproxy '' http://{rule}/agent; curl -sS http://other.example/"}
        result = await sandbox.execute("bash:run", command)
    assert result.data["stdout"] == (
        f"GET /agent agentflow: other.example:80 is not allowed: network.allow of this session has {rule}.\n"
    )
