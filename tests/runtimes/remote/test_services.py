"""Life of remote sandboxes, keys, settings."""

import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from grpclib.client import Channel
from modal_proto import api_pb2
from modal_proto.api_grpc import ModalClientStub

from agentflow.errors import CannotFork, ConfigurationError, IsolationUnavailable, RuntimeFailure
from mcp_servers import RuntimeSettings
from mcp_servers.core._runtimes import check_runtime, runtime_maker
from runtimes import InstanceSpec
from runtimes.remote import RemoteRuntime, ServiceName
from tests.runtimes.remote.conftest import KEY, Stub, running_stub

KEYS = [("daytona", "DAYTONA_API_KEY"), ("e2b", "E2B_API_KEY"), ("modal", "MODAL_TOKEN_SECRET")]
"""Services with a key, and the environment variable that holds it."""
_CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims"


async def _fetch(stub: Stub, path: str) -> Any:  # noqa: ANN401 - JSON
    headers = {"x-api-key": KEY, "authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=stub.url, headers=headers) as client:
        return (await client.get(path)).json()


async def _daytona(stub: Stub) -> dict[str, Any]:
    return {sandbox["id"]: sandbox for sandbox in (await _fetch(stub, "/sandbox?limit=200"))["items"]}


async def _e2b(stub: Stub) -> dict[str, Any]:
    return {sandbox["sandboxID"]: sandbox for sandbox in await _fetch(stub, "/v2/sandboxes")}


async def _k8s(stub: Stub) -> dict[str, Any]:
    return {
        sandbox["metadata"]["name"]: sandbox["spec"] for sandbox in (await _fetch(stub, _CLAIMS))["items"]
    }


async def _modal(stub: Stub) -> dict[str, Any]:
    address = httpx2.URL(stub.url)
    async with Channel(address.host, address.port) as channel:
        reply = await ModalClientStub(channel).SandboxListV2(
            api_pb2.SandboxListRequest(), metadata={"x-modal-token-secret": KEY}
        )
    return {sandbox.id: sandbox for sandbox in reply.sandboxes}


_LISTS: Mapping[str, Callable[[Stub], Awaitable[dict[str, Any]]]] = {
    "daytona": _daytona,
    "e2b": _e2b,
    "k8s": _k8s,
    "modal": _modal,
}


async def sandboxes(stub: Stub) -> dict[str, Any]:
    """Return the sandboxes that the service has, by their ids, each as the service describes it."""
    return await _LISTS[stub.name](stub)


@pytest.mark.promise("remote:orphans")
async def test_sandboxes_end_with_their_runtime(stub: Stub) -> None:
    async with RemoteRuntime(stub.name, stub.options()) as runtime:
        ids = {(await runtime.start()).id, (await runtime.start()).id}
        assert set(await sandboxes(stub)) == ids
    assert await sandboxes(stub) == {}


@pytest.mark.promise("remote:orphans")
async def test_the_next_runtime_ends_the_sandboxes_of_a_killed_server(stub: Stub) -> None:
    program = [sys.executable, "-m", "tests.runtimes.remote.doomed_server", stub.name]
    command = [*program, stub.options().model_dump_json()]
    doomed = await anyio.to_thread.run_sync(
        lambda: subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
    )
    assert doomed.stdout is not None
    orphan = (await anyio.to_thread.run_sync(doomed.stdout.readline)).strip()
    async with RemoteRuntime(stub.name, stub.options()):
        assert list(await sandboxes(stub)) == [orphan]
    doomed.kill()
    doomed.wait()
    doomed.stdout.close()
    async with RemoteRuntime(stub.name, stub.options()) as runtime:
        assert await sandboxes(stub) == {}
        await (await runtime.start()).stop()


@pytest.mark.promise("remote:orphans")
async def test_the_lifetime_of_a_sandbox_is_set_at_the_service(stub: Stub) -> None:
    async with RemoteRuntime(stub.name, stub.options(lifetime=1234)) as runtime:
        instance = await runtime.start()
        (before,) = (await sandboxes(stub)).values()
        await instance.calls.sandbox.renew(100_000)
        (after,) = (await sandboxes(stub)).values()
    if stub.name == "daytona":
        assert (before["autoDestroyAt"], before["networkBlockAll"]) == ("in 21 minutes", True)
        assert (before["autoStopInterval"], before["autoDeleteInterval"]) == (0, 0)
        assert after["autoDestroyAt"] == "in 1667 minutes"
    elif stub.name == "e2b":
        assert (before["timeout"], before["internet"], after["timeout"]) == (1234, False, 100_000)
    elif stub.name == "k8s":
        assert before["lifecycle"]["shutdownPolicy"] == "Delete"
        assert after["lifecycle"]["shutdownTime"] > before["lifecycle"]["shutdownTime"]
    else:
        assert (before.timeout_secs, before.idle_timeout_secs, before.name) == (86_400, 1234, "BLOCKED")
        assert after.ready_at > before.ready_at


@pytest.mark.promise("remote:spec")
async def test_a_template_that_does_not_exist_is_one_line(stub: Stub) -> None:
    async with RemoteRuntime(stub.name, stub.options(template="missing")) as runtime:
        with pytest.raises(IsolationUnavailable, match=f"^{stub.name}: ") as error:
            await runtime.start()
    assert "\n" not in str(error.value)


@pytest.mark.promise("remote:keys")
@pytest.mark.parametrize(("name", "variable"), KEYS)
async def test_a_refused_key_does_not_appear_in_the_error(
    monkeypatch: pytest.MonkeyPatch, name: ServiceName, variable: str
) -> None:
    with running_stub(name) as stub:
        monkeypatch.setenv(variable, "another-secret-77d1")
        with pytest.raises(Exception, match="is not valid") as error:
            async with RemoteRuntime(name, stub.options()):
                raise NotImplementedError
    assert "another-secret" not in str(error.value)
    assert f"${variable}" in str(error.value)


@pytest.mark.promise("remote:keys")
@pytest.mark.parametrize(("name", "variable"), KEYS)
async def test_a_missing_key_is_named(
    monkeypatch: pytest.MonkeyPatch, name: ServiceName, variable: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(IsolationUnavailable, match=rf"^runtime {name} needs a key: set .*\b{variable}$"):
        async with RemoteRuntime(name):
            raise NotImplementedError


@pytest.mark.promise("remote:keys")
async def test_kubernetes_asks_for_a_warm_pool() -> None:
    with pytest.raises(IsolationUnavailable, match=r"^runtime k8s needs a warm pool: set runtime: "):
        async with RemoteRuntime("k8s"):
            raise NotImplementedError


@pytest.mark.promise("remote:keys")
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("daytona", "daytona_api_client_async"),
        ("daytona", "daytona_toolbox_api_client_async"),
        ("e2b", "e2b"),
        ("k8s", "k8s_agent_sandbox"),
        ("modal", "modal"),
    ],
)
def test_a_missing_library_is_one_line_with_the_command_that_adds_it(name: str, module: str) -> None:
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from runtimes.remote import RemoteRuntime\n"
        f"RemoteRuntime({name!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False)
    line = done.stderr.splitlines()[-1]
    assert f"runtime {name} needs the extra {name}: " in line
    assert line.endswith(f"extras add {name}")


@pytest.mark.promise("remote:spec")
async def test_a_sandbox_that_fails_to_start_is_deleted_and_its_reason_reported() -> None:
    with running_stub("daytona") as stub:
        async with RemoteRuntime("daytona", stub.options(template="broken")) as runtime:
            with pytest.raises(IsolationUnavailable, match=r"ended: the image does not exist$"):
                await runtime.start()
            assert await sandboxes(stub) == {}


@pytest.mark.promise("remote:gone")
@pytest.mark.parametrize("name", ["daytona", "modal"])
async def test_a_failure_of_a_running_sandbox_is_not_its_end(name: ServiceName) -> None:
    with running_stub(name) as stub:
        async with RemoteRuntime(name, stub.options()) as runtime:
            instance = await runtime.start()
            with pytest.raises(RuntimeFailure, match=f"^{name}: .*(file not found|No such file)"):
                await instance.calls.sandbox.download("/tmp/missing")
            with pytest.raises(RuntimeFailure, match=f"^{name}: "):
                await instance.calls.sandbox.command("sleep 1000", 1)
            assert (await instance.exec(["echo", "hi"])).stdout == b"hi\n"


@pytest.mark.promise("remote:gone")
async def test_an_upload_that_fails_reports_the_reason() -> None:
    with running_stub("modal") as stub:
        async with RemoteRuntime("modal", stub.options()) as runtime:
            instance = await runtime.start()
            with pytest.raises(RuntimeFailure, match=r"^modal: a command failed: mkdir: .*/proc/none"):
                await instance.calls.sandbox.upload("/proc/none/file", bytes(5_000_000))
            assert (await instance.exec(["echo", "hi"])).stdout == b"hi\n"


@pytest.mark.promise("remote:orphans")
async def test_sandboxes_of_all_pages_are_found() -> None:
    with running_stub("daytona") as stub:
        async with RemoteRuntime("daytona", stub.options()) as runtime:
            ids = {(await runtime.start()).id for _ in range(3)}
            async with RemoteRuntime("daytona", stub.options()):
                assert set(await sandboxes(stub)) == ids


@pytest.mark.promise("remote:fork")
async def test_a_copy_without_its_memory_is_ended_and_reported() -> None:
    with running_stub("e2b") as stub:
        async with RemoteRuntime("e2b", stub.options(template="forgetful")) as runtime:
            parent = await runtime.start()
            await parent.run("bash", "x=1")
            with pytest.raises(CannotFork):
                await parent.fork()
            assert (await parent.run("bash", "echo $x")).stdout == "1\n"
            assert list(await sandboxes(stub)) == [parent.id]


@pytest.mark.promise("remote:setting")
async def test_a_remote_runtime_is_chosen_by_the_setting_of_all_runtimes(stub: Stub) -> None:
    options = {name: value for name, value in stub.options().model_dump(exclude_unset=True).items() if value}
    settings = RuntimeSettings.model_validate({"name": stub.name, **options})
    async with runtime_maker(settings, InstanceSpec())() as runtime:
        instance = await runtime.start()
        assert (await instance.exec(["echo", "hi"])).stdout == b"hi\n"


@pytest.mark.promise("remote:setting")
def test_an_option_of_another_runtime_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="k8s has no option internet; daytona or e2b or modal does"):
        check_runtime(RuntimeSettings(name="k8s", internet=True))
    with pytest.raises(ConfigurationError, match="e2b has no option pool"):
        check_runtime(RuntimeSettings(name="e2b", pool=1))
    with pytest.raises(
        ConfigurationError, match="process has no option template; daytona or e2b or k8s or modal does"
    ):
        check_runtime(RuntimeSettings(name="process", template="x"))
