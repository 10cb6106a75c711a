"""Missing requirements are reported in one line with the remedy, and nothing starts without them."""

import json

import pytest

from agentflow.errors import IsolationUnavailable
from runtimes.process import ProcessRuntime
from tests._plain_user import PlainUser

REPORT = """
import anyio, json
from agentflow.errors import AgentFlowError
from runtimes.process import ProcessRuntime
async def main():
    async with ProcessRuntime(preload=(), idle=False) as runtime:
        instance = await runtime.start()
        await instance.run("python", "x = 1")
        try:
            await instance.fork()
            fork = "done"
        except AgentFlowError as error:
            fork = f"{type(error).__name__}: {error}"
        try:
            root = (await instance.exec(["id", "-u"], user="root")).stdout.decode()
        except (AgentFlowError, OSError) as error:
            root = f"{type(error).__name__}: {error}"
        after = (await instance.run("python", "x")).value
        able = runtime.capabilities
        print(json.dumps({"fork": fork, "root": root, "after": after, "can": able.fork, "notes": able.notes}))
anyio.run(main)
"""
FORBIDDEN = """
import anyio, ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
# This process can't create user namespaces, as on a machine where they are disabled.
code = b"".join(struct.pack("=HBBI", *line) for line in [
    (0x20, 0, 0, 0), (0x15, 0, 3, NUMBER), (0x20, 0, 0, 16), (0x45, 0, 1, 0x10000000), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000),
])
buffer = ctypes.create_string_buffer(code, len(code))
program = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
from agentflow.errors import IsolationUnavailable
from runtimes.process import ProcessRuntime
async def main():
    try:
        async with ProcessRuntime(preload=()):
            print("started")
    except IsolationUnavailable as error:
        print(error)
anyio.run(main)
""".replace("NUMBER", "272 if os.uname().machine == 'x86_64' else 97")


@pytest.mark.promise("probe:range")
def test_a_user_with_a_range_of_ids_has_live_forks_and_root_inside(plain_user: PlainUser) -> None:
    done = plain_user.run_python(REPORT, timeout=100)
    seen = json.loads(done.stdout)
    assert (seen["can"], seen["fork"], seen["root"], seen["after"]) == ("live", "done", "0\n", "1"), (
        done.stderr
    )
    assert all(note.count("\n") == 0 for note in seen["notes"])
    # This user can't create cgroups.
    assert any("no cgroup limits the CPU: each " in note for note in seen["notes"])


@pytest.mark.promise("probe:no-range")
def test_a_user_without_a_range_of_ids_gets_the_package_to_install(plain_user: PlainUser) -> None:
    done = plain_user.run_python(REPORT, timeout=100, env={"PATH": "/nowhere"})
    seen = json.loads(done.stdout)
    assert seen["can"] == "none", done.stderr
    assert "install the package uidmap" in seen["fork"]
    assert seen["fork"].startswith("CannotFork: ")
    assert "install the package uidmap" in seen["root"]
    assert seen["after"] == "1"
    assert any("install the package uidmap" in note for note in seen["notes"])
    # No trusted process fails behind the scenes.
    assert done.stderr == ""


@pytest.mark.promise("probe:closed")
def test_nothing_starts_without_isolation(plain_user: PlainUser) -> None:
    done = plain_user.run_python(FORBIDDEN, timeout=100)
    assert "started" not in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert "can't" in done.stdout


@pytest.mark.promise("probe:closed")
async def test_a_machine_without_linux_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(IsolationUnavailable, match="Linux"):
        await ProcessRuntime().__aenter__()
