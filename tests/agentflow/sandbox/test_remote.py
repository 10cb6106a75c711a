import socket
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import pytest

from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.sandbox import Sandbox
from tests.agentflow.sandbox._backends import CounterBackend, EchoBackend
from tests.agentflow.sandbox._cable import cable_to
from tests.agentflow.sandbox._hosts import TOKEN, serving
from tests.agentflow.sandbox.test_sandbox import kind


@contextmanager
def free_port() -> Generator[int]:
    """Return a free port that the system does not hand out: binding it explicitly works."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.mark.promise("sandbox:remote:dead-server")
async def test_an_unreachable_server_gives_one_clear_error() -> None:
    with free_port() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(ToolFailure, match="no server answers") as raised:
            await Sandbox(url).start()
        assert raised.value.kind is ErrorKind.UNAVAILABLE
        result = await Sandbox(url).execute("bash:run", {"command": "true"})
        assert kind(result) is ErrorKind.UNAVAILABLE


@pytest.mark.promise("sandbox:remote:token")
@pytest.mark.parametrize("token", [None, "guess"])
async def test_a_wrong_token_reveals_nothing(token: str | None) -> None:
    async with serving(EchoBackend()) as server:
        with pytest.raises(ToolFailure, match="token") as raised:
            await Sandbox(server.url, token=token).start()
    assert raised.value.kind is ErrorKind.DENIED


@pytest.mark.promise("sandbox:remote:address")
async def test_the_url_of_the_server_or_of_a_backend_is_accepted() -> None:
    async with serving(EchoBackend(), CounterBackend()) as server:
        root = server.url.removesuffix("/mcp")
        async with Sandbox(root + "/", token=TOKEN) as all_of_them:
            assert len({tool.backend for tool in await all_of_them.tools()}) == 2
        async with Sandbox(root + "/echo/mcp", token=TOKEN) as one:
            assert {tool.backend for tool in await one.tools()} == {"echo"}
            assert (await one.execute("say", {"text": "hi"})).ok


@pytest.mark.promise("sandbox:remote:private")
async def test_another_token_can_not_use_the_session() -> None:
    async with (
        serving(CounterBackend()) as server,
        Sandbox(server.url, token=TOKEN) as mine,
        Sandbox(server.url, token="knock") as another,
    ):
        await mine.execute("up")
        (live,) = await mine.list_sessions()
        stolen = await another.execute("up", {"session": live.session})
        assert kind(stolen) is ErrorKind.SESSION_NOT_FOUND
        assert (await mine.execute("up")).data == {"result": 2}


@pytest.mark.promise("sandbox:remote:stops")
async def test_a_server_that_stops_fails_the_calls_and_the_sandbox_still_closes() -> None:
    async with serving(EchoBackend(), CounterBackend()) as server:
        sandbox = Sandbox(server.url, token=TOKEN)
        assert (await sandbox.execute("up")).ok
        server.stop()
        await server.stopped.wait()
    assert kind(await sandbox.execute("say", {"text": "hi"})) is ErrorKind.UNAVAILABLE
    assert kind(await sandbox.execute("up")) is ErrorKind.UNAVAILABLE
    with anyio.fail_after(60):
        await sandbox.close()


@pytest.mark.promise("sandbox:remote:stops")
async def test_a_server_that_comes_back_answers_again_without_the_old_sessions() -> None:
    with free_port() as port:
        async with serving(CounterBackend(), EchoBackend(), port=port) as server:
            sandbox = Sandbox(server.url, token=TOKEN)
            assert (await sandbox.execute("up")).ok
            server.stop()
            await server.stopped.wait()
        async with serving(CounterBackend(), EchoBackend(), port=port):
            assert (await sandbox.execute("say", {"text": "hi"})).ok
            assert kind(await sandbox.execute("up")) is ErrorKind.SESSION_NOT_FOUND
            await sandbox.destroy_session()
            assert (await sandbox.execute("up")).data == {"result": 1}
            await sandbox.close()


@pytest.mark.promise("sandbox:remote:token")
async def test_a_server_started_again_with_another_token_gets_the_call_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = EchoBackend()
    stale: list[str] = []

    def read(_: str) -> str:
        return stale.pop() if stale else TOKEN

    # The file of the old server is read just before the new one replaces it.
    monkeypatch.setattr("agentflow.sandbox._remote.local_token", read)
    async with serving(backend) as server, Sandbox(server.url) as sandbox:
        stale.append("that of the old server")
        assert (await sandbox.execute("say", {"text": "hi"})).ok
        assert (stale, backend.calls) == ([], 1)
        stale += ["another", "one"]
        result = await sandbox.execute("say", {"text": "hi"})
        assert kind(result) is ErrorKind.DENIED
        assert backend.calls == 1


@pytest.mark.promise("sandbox:remote:once")
async def test_a_call_whose_answer_is_lost_is_not_sent_again() -> None:
    backend = EchoBackend()
    async with (
        serving(backend) as server,
        cable_to(server.url) as cable,
        Sandbox(cable.url, token=TOKEN) as sandbox,
    ):
        cable.cut_before = b"only once"
        result = await sandbox.execute("say", {"text": "only once"})
        assert kind(result) is ErrorKind.UNAVAILABLE
        assert "may have run" in str(result.error)
        assert cable.requests == 1
        cable.requests = 0
        assert (await sandbox.execute("say", {"text": "again"})).ok, "the others are not concerned"
    assert backend.calls == 2


@pytest.mark.promise("sandbox:remote:once")
async def test_a_call_that_takes_too_long_is_not_sent_again() -> None:
    backend = CounterBackend()
    async with serving(backend) as server, Sandbox(server.url, token=TOKEN) as sandbox:
        assert kind(await sandbox.execute("stay", timeout=0.05)) is ErrorKind.TIMEOUT
        assert (await sandbox.execute("up")).data == {"result": 1}


@pytest.mark.promise("sandbox:remote:unsayable")
@pytest.mark.parametrize("text", ["\ud800", float("nan"), b"bytes", {1, 2}])
async def test_arguments_outside_json_are_refused_and_the_connection_continues(text: object) -> None:
    backend = EchoBackend()
    async with serving(backend) as server, Sandbox(server.url, token=TOKEN) as sandbox:
        assert kind(await sandbox.execute("say", {"text": text})) is ErrorKind.BAD_ARGUMENTS
        assert (await sandbox.execute("say", {"text": "hi"})).ok
    assert backend.calls == 1


@pytest.mark.promise("sandbox:remote:many")
async def test_many_calls_at_once_share_one_connection() -> None:
    async with serving(EchoBackend()) as server, Sandbox(server.url, token=TOKEN) as sandbox:
        calls = [("say", {"text": str(number)}) for number in range(100)]
        results = await sandbox.execute_batch(calls, parallel=True)
    assert [result.data["text"] for result in results] == [str(number) for number in range(100)]


@pytest.mark.promise("sandbox:remote:large")
async def test_large_texts_are_transferred_and_larger_ones_than_allowed_refused() -> None:
    backend = EchoBackend()
    async with serving(backend) as server, Sandbox(server.url, token=TOKEN) as sandbox:
        text = "grüße " * 500_000
        assert (await sandbox.execute("say", {"text": text})).data["text"] == text
        heard = await sandbox.execute("say", {"text": text}, on_progress=print)
        assert heard.data["text"] == text, "also where the answer is a stream"
        assert kind(await sandbox.execute("say", {"text": "x" * 17_000_000})) is ErrorKind.BAD_ARGUMENTS
        assert (await sandbox.execute("say", {"text": "hi"})).ok
    assert backend.calls == 3


@pytest.mark.promise("sandbox:settings:remote")
def test_objects_can_not_be_sent_to_a_server() -> None:
    with pytest.raises(ConfigurationError, match="give them to the server"):
        Sandbox("http://127.0.0.1:1", backends=[EchoBackend()])
