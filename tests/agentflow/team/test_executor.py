"""The executor with real tools: what an action came to."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from agentflow.errors import ErrorKind, RunStopped, StopCause, ToolFailure
from agentflow.sandbox import Backend, Image, Sandbox, TextContent, tool
from agentflow.team._executor import SERVER_SECONDS, call_tool
from agentflow.testing import VirtualClock, VirtualTimeLoop
from agentflow.trace import Action, ActionOutcome, Blob, Failure, MemoryBlobStore
from mcp_servers import CallContext
from runtimes.process import ProcessRuntime
from tests.agentflow.sandbox._backends import EchoBackend
from tests.agentflow.sandbox._hosts import TOKEN, serving
from tests.agentflow.team._model import team


@asynccontextmanager
async def eager(*backends: str) -> AsyncGenerator[Sandbox]:
    """A sandbox in which nothing waits until nobody else on the machine works: calls have a limited time."""
    async with (
        ProcessRuntime(preload=(), idle=False) as runtime,
        Sandbox(backends=backends, runtime=runtime) as sandbox,
    ):
        yield sandbox


async def acted(sandbox: Sandbox, tool: str, **arguments: object) -> ActionOutcome:
    return await keeping(MemoryBlobStore(), sandbox, tool, arguments)


async def keeping(
    blobs: MemoryBlobStore, sandbox: Sandbox, tool: str, arguments: dict[str, object]
) -> ActionOutcome:
    async with team(blobs=blobs) as (members, _):
        return await members.executor.act(sandbox, Action(tool, arguments))


@pytest.mark.promise("team:executor:observation")
@pytest.mark.promise("team:executor:trouble")
@pytest.mark.promise("team:executor:failure")
async def test_shell_code_and_files_give_observations() -> None:
    async with eager("bash", "code", "files") as sandbox:
        assert (
            await acted(sandbox, "bash_run", command="echo hi > n.txt; cat n.txt")
        ).observation.text == "hi"
        assert (await acted(sandbox, "files_read", path="n.txt")).observation.text == "hi"
        assert (await acted(sandbox, "files_list")).observation.text == "n.txt (file, 3 bytes)"

        absent = await acted(sandbox, "bash_run", command="grep -c nothing n.txt")
        assert (absent.observation.text, absent.trouble, absent.failure) == ("0\nexit code: 1", "", None)
        broken = await acted(sandbox, "bash_run", command="ls nowhere")
        assert broken.trouble == "exit code 2"
        assert "No such file" in broken.observation.text

        assert (await acted(sandbox, "code_run", code="print('a')\n6 * 7")).observation.text == "a\n42"
        raised = await acted(sandbox, "code_run", code="print('so far')\n[][1]")
        assert raised.trouble == "IndexError: list index out of range"
        assert raised.observation.text == "so far\nerror: IndexError: list index out of range"
        queried = await acted(sandbox, "code_sql", query="SELECT 1 AS n UNION SELECT 2 ORDER BY n")
        assert queried.observation.text == "n\n1\n2"
        assert (await acted(sandbox, "code_sql", query="SELECT * FROM nowhere")).trouble.startswith("Catalog")

        missing = await acted(sandbox, "files_read", path="nowhere.txt")
        assert missing.failure is not None
        assert missing.failure.kind == "not_found"
        slow = await acted(sandbox, "bash_run", command="echo begun; sleep 60", timeout=5)
        assert slow.failure is not None
        assert slow.failure.kind == "timeout"
        assert slow.observation.text.startswith("begun")

        assert not raised.lost
        ended = await acted(sandbox, "bash_run", command="echo bye; exit 3")
        assert ended.lost
        assert ended.observation.text.startswith("bye\nexit code: 3\nnote: ")


@pytest.mark.promise("team:executor:observation")
async def test_an_observation_is_the_same_in_another_sandbox() -> None:
    actions: dict[str, dict[str, object]] = {
        "bash_run": {"command": "mktemp -d; for n in $(seq 9999); do echo line $n; done"},
        "code_run": {"code": "import tempfile\nprint(object())\ntempfile.mkdtemp()"},
    }
    seen: list[list[str]] = []
    for _ in range(2):
        async with eager("bash", "code") as sandbox:
            outcomes = [await acted(sandbox, name, **arguments) for name, arguments in actions.items()]
        seen.append([outcome.observation.text for outcome in outcomes])
    assert "object object at 0x…" in seen[0][1]
    assert seen[0][1] == seen[1][1]
    assert seen[0][0].splitlines()[1:] == seen[1][0].splitlines()[1:]


@pytest.mark.promise("team:executor:pictures")
async def test_images_are_stored_as_blobs() -> None:
    blobs = MemoryBlobStore()
    async with eager("code") as sandbox:
        # On a slow machine it would tell that it looks for fonts.
        quiet = "import logging\nlogging.getLogger('matplotlib').setLevel('ERROR')\n"
        code = f"{quiet}import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('sales');"
        outcome = await keeping(blobs, sandbox, "code_run", {"code": code})
    [blob] = outcome.observation.blobs
    assert isinstance(blob, Blob)
    assert blob.mime == "image/png"
    assert blobs.kept[blob.hash].startswith(b"\x89PNG")
    assert outcome.observation.text == ""


class Moody(Backend):
    """Fails as often as told before it answers."""

    name = "moody"
    description = "Fails."

    def __init__(self, failures: int = 0, kind: ErrorKind = ErrorKind.FAILED) -> None:
        super().__init__()
        self.calls = 0
        self.failures = failures
        self.kind = kind

    def answer(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ToolFailure(self.kind, "not now")
        return "done"

    @tool(read_only=True)
    async def look(self) -> str:
        """Look."""
        return self.answer()

    @tool()
    async def act(self) -> str:
        """Act."""
        return self.answer()

    @tool(read_only=True)
    async def tell(self, context: CallContext) -> dict[str, object]:
        """Show a text beside the data."""
        context.show(TextContent("[1] Vell (d-1)\nA town."))
        return {"hits": [{"score": 0.5}]}

    @tool(read_only=True)
    async def paint(self, context: CallContext) -> str:
        """Show a picture."""
        context.show(Image(b"png"))
        return self.answer()

    @tool()
    async def spray(self, context: CallContext) -> str:
        """Show a picture, and leave traces."""
        context.show(Image(b"png"))
        return self.answer()


async def tried(verb: str, moody: Moody, blobs: MemoryBlobStore | None = None) -> ActionOutcome:
    async with Sandbox(backends=[moody]) as sandbox:
        return await keeping(blobs or MemoryBlobStore(), sandbox, f"moody_{verb}", {})


@pytest.mark.promise("team:executor:observation")
async def test_text_returned_by_a_tool_is_the_observation() -> None:
    assert (await tried("tell", Moody())).observation.text == "[1] Vell (d-1)\nA town."


@pytest.mark.promise("team:executor:failure")
async def test_an_unknown_tool_is_a_failed_call() -> None:
    outcome = await tried("lok", Moody())
    assert outcome.failure == Failure("tool_not_found", "no tool 'moody_lok'. Did you mean 'moody:look'?")


@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualTimeLoop})], ids=["virtual-time"]
)
class TestRetries:
    """In virtual time: pauses between tries take none."""

    @pytest.mark.promise("team:executor:retry")
    @pytest.mark.parametrize("kind", [ErrorKind.BUSY, ErrorKind.UNAVAILABLE])
    async def test_a_repeatable_call_of_an_unreachable_tool_is_retried(self, kind: ErrorKind) -> None:
        moody, hopeless = Moody(3, kind), Moody(9, kind)
        assert (await tried("look", moody)).observation.text == "done"
        assert moody.calls == 4
        assert (await tried("look", hopeless)).failure == Failure(kind, "not now")
        assert hopeless.calls == 4

    @pytest.mark.promise("team:executor:retry")
    @pytest.mark.parametrize("kind", [ErrorKind.BUSY, ErrorKind.UNAVAILABLE])
    async def test_any_other_call_is_made_once(self, kind: ErrorKind) -> None:
        moody = Moody(1, kind)
        assert (await tried("act", moody)).failure == Failure(kind, "not now")
        assert moody.calls == 1

    @pytest.mark.promise("team:executor:retry")
    @pytest.mark.parametrize("kind", [ErrorKind.TIMEOUT, ErrorKind.FAILED, ErrorKind.NOT_FOUND])
    async def test_another_failure_is_final(self, kind: ErrorKind) -> None:
        moody = Moody(1, kind)
        assert (await tried("look", moody)).failure == Failure(kind, "not now")
        assert moody.calls == 1


class Forgetful(MemoryBlobStore):
    """A blob store with a bug."""

    async def put(self, data: bytes, mime: str) -> Blob:
        raise KeyError("no room")


@pytest.mark.promise("team:executor:retry")
@pytest.mark.promise("team:pool:crash")
@pytest.mark.parametrize(("verb", "calls"), [("paint", 2), ("spray", 1)])
async def test_after_a_crash_only_a_repeatable_call_is_made_again(verb: str, calls: int) -> None:
    moody = Moody()
    outcome = await tried(verb, moody, Forgetful())
    assert outcome.failure is not None
    assert outcome.failure.kind == "failed"
    assert "KeyError" in outcome.failure.message
    assert moody.calls == calls


class FullDisk(MemoryBlobStore):
    """A blob store that can't go on."""

    async def put(self, data: bytes, mime: str) -> Blob:
        raise RunStopped(StopCause.JOURNAL, "the disk is full")


@pytest.mark.promise("team:model-failure")
async def test_a_full_disk_ends_the_run() -> None:
    with pytest.raises(RunStopped, match="the disk is full"):
        await tried("paint", Moody(), FullDisk())


class LeapingClock(VirtualClock):
    """A clock on which a sleep takes no time."""

    async def sleep(self, seconds: float) -> None:
        """Move on by that much."""
        self.advance(seconds)


@pytest.mark.promise("team:executor:server-lost")
async def test_a_call_waits_a_minute_for_a_lost_server_and_then_stops_the_run() -> None:
    clock = LeapingClock()
    async with serving(EchoBackend()) as server, Sandbox(server.url, token=TOKEN) as sandbox:
        call = Action("say", {"text": "hi"})
        outcome = await call_tool(sandbox, call, MemoryBlobStore(), clock)
        assert outcome.failure is None
        server.stop()
        await server.stopped.wait()
        with pytest.raises(RunStopped, match=r"^no tool server answers: .* to resume\.$") as stopped:
            await call_tool(sandbox, call, MemoryBlobStore(), clock)
    assert stopped.value.cause is StopCause.SANDBOX
    assert SERVER_SECONDS <= clock.now() < 2 * SERVER_SECONDS
