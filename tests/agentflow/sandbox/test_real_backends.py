"""The sandbox as people use it: shell, Python and files over one workspace, forked live, on each host."""

import anyio
import pytest

from agentflow.errors import ErrorKind
from agentflow.sandbox import Image, Sandbox, SyncSandbox
from mcp_servers import load_backend
from tests.agentflow.sandbox._hosts import HOSTS, Host, eager_runtime, opened
from tests.agentflow.sandbox.test_sandbox import kind

on_both_hosts = pytest.mark.parametrize("host", HOSTS)


@pytest.mark.promise("sandbox:real:first-page")
async def test_the_quick_start_of_the_documentation_works() -> None:
    async with Sandbox() as sandbox:
        result = await sandbox.execute("bash:run", {"command": "echo hi"})
        assert result.ok
        assert result.data["stdout"] == "hi\n"
        assert result.data["exit_code"] == 0
        result = await sandbox.execute("code:run", {"code": "x = 41\nx + 1"})
        assert result.data["value"] == "42"
        fork = await sandbox.fork()
        await fork.execute("code:run", {"code": "x = 0"})
        assert (await sandbox.execute("code:run", {"code": "x"})).data["value"] == "41"
        await fork.close()


@on_both_hosts
@pytest.mark.promise("sandbox:real:workspace")
async def test_backends_share_a_workspace_and_a_fork_has_its_own(host: Host) -> None:
    backends = [load_backend(name) for name in ("bash", "code", "files")]
    async with opened(host, *backends) as sandbox:
        await sandbox.execute("files:write", {"path": "n.txt", "content": "7"})
        await sandbox.execute("bash:run", {"command": "export N=8; mkdir d; cd d"})
        value = await sandbox.execute("python_execute", {"code": "n = int(open('n.txt').read()); n"})
        assert value.data["value"] == "7"
        fork = await sandbox.fork()
        await sandbox.execute("bash:run", {"command": "echo 9 > ~/n.txt; N=9"})
        shell = await fork.execute("bash:run", {"command": "cat ~/n.txt; echo; echo $N; pwd"})
        assert shell.data["stdout"] == "7\n8\n/home/agent/d\n"
        assert (await fork.execute("code:run", {"code": "n += 1; n"})).data["value"] == "8"
        assert (await sandbox.execute("code:run", {"code": "n"})).data["value"] == "7"
        await fork.close()


@on_both_hosts
@pytest.mark.promise("sandbox:real:programs-fail")
async def test_a_program_with_an_error_status_is_not_a_failed_call(host: Host) -> None:
    async with opened(host, load_backend("bash"), load_backend("code")) as sandbox:
        shell = await sandbox.execute("bash:run", {"command": "false"})
        assert shell.ok
        assert shell.data["exit_code"] == 1
        code = await sandbox.execute("code:run", {"code": "1/0"})
        assert code.ok
        assert "ZeroDivisionError" in str(code.data["error"])


@on_both_hosts
@pytest.mark.promise("sandbox:real:timeout")
async def test_a_timeout_returns_the_output_so_far(host: Host) -> None:
    async with opened(host, load_backend("bash"), make=eager_runtime) as sandbox:
        result = await sandbox.execute("bash:run", {"command": "echo begun; sleep 600"}, timeout=2)
        assert kind(result) is ErrorKind.TIMEOUT
        assert result.data["stdout"] == "begun\n"
        assert (await sandbox.execute("bash:run", {"command": "pgrep sleep"})).data["stdout"] == ""


@on_both_hosts
@pytest.mark.promise("sandbox:real:cancel")
async def test_cancelling_execute_kills_the_processes_of_the_call(host: Host) -> None:
    async with opened(host, load_backend("bash"), make=eager_runtime) as sandbox:
        begun = anyio.Event()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:

                async def sleep() -> None:
                    await sandbox.execute(
                        "bash:run",
                        {"command": "echo begun; sleep 600"},
                        on_progress=lambda done, total, message: begun.set(),
                    )

                group.start_soon(sleep)
                await begun.wait()
                group.cancel_scope.cancel()
            listing = await sandbox.execute("bash:run", {"command": "pgrep sleep"})
            assert listing.data["stdout"] == ""


@on_both_hosts
@pytest.mark.promise("sandbox:execute:parts")
async def test_a_plot_is_returned_as_a_picture(host: Host) -> None:
    async with opened(host, load_backend("code"), make=eager_runtime) as sandbox:
        code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
        result = await sandbox.execute("code:run", {"code": code})
    pictures = [part for part in result.parts if isinstance(part, Image)]
    assert pictures[0].data.startswith(b"\x89PNG")


@pytest.mark.promise("sandbox:blocking")
def test_synchronous_code_has_the_whole_api() -> None:
    with SyncSandbox() as sandbox:
        sandbox.execute("code:run", {"code": "x = 1"})
        with sandbox.fork() as fork:
            assert fork.execute("code:run", {"code": "x"}).data["value"] == "1"
