"""Tools with a model inside."""

import pytest

from agentflow.engine import EpisodeEngine, EpisodeSettings
from agentflow.errors import ModelFailure, ModelFailureKind, RunStopped, StopCause
from agentflow.models import Call
from agentflow.sandbox import Sandbox
from agentflow.team import TeamAgent, model_tools
from agentflow.team._executor import call_tool
from agentflow.team._model_tools import Program
from agentflow.trace import Action, Command, MemoryBlobStore, NextStep, Usage
from tests.agentflow.team._model import FunctionModel, team
from tests.agentflow.team._solving import TASK, Book, Script


@pytest.mark.promise("team:tools:generator")
async def test_base_generator_is_one_call_of_its_own_model() -> None:
    model = FunctionModel(lambda _: "22 degrees")
    async with Sandbox(backends=model_tools(base_generator=model)) as sandbox:
        [tool] = await sandbox.tools("base_generator")
        assert tool.limits
        assert tool.practices
        assert tool.bind(tool.examples[0])
        result = await sandbox.execute("base_generator", {"query": "Convert 72 F."})
    assert (result.ok, result.data) == (True, {"result": "22 degrees"})
    [call] = model.calls
    assert call.role == "tool"
    assert "Convert 72 F." in str(call.messages)


@pytest.mark.promise("team:tools:generator")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModelFailure(ModelFailureKind.GARBAGE, "no JSON"), "base_generator: garbage: no JSON"),
        (RunStopped(StopCause.BUDGET, "no money left"), "base_generator: no money left"),
    ],
)
async def test_a_failing_model_makes_a_failed_call(error: Exception, said: str) -> None:
    def fail(call: Call[object]) -> object:
        raise error

    model = FunctionModel(fail)
    async with Sandbox(backends=model_tools(base_generator=model)) as sandbox:
        result = await sandbox.execute("base_generator", {"query": "?"})
    assert result.error is not None
    assert (result.error.kind, result.error.message) == ("failed", said)
    assert len(model.calls) == 1


@pytest.mark.promise("team:tools:coder")
async def test_python_coder_runs_code_in_the_sandbox_and_rewrites_a_failing_program_once() -> None:
    programs = [
        "total = undefined",
        "total = sum(range(10))\nprint('sum', total)\ntotal * 2",
        "[][1]",
        "[][2]",
    ]

    def write(call: Call[object]) -> Program:
        return Program(programs.pop(0))

    model = FunctionModel(write)
    async with Sandbox(backends=["code", *model_tools(python_coder=model)]) as sandbox:
        result = await sandbox.execute("python_coder", {"query": "Sum them."})
        assert result.data["stdout"] == "sum 45\n"
        assert result.data["value"] == "90"
        assert "total: int = 45" in str(result.data["variables"])
        assert "NameError" in str(model.calls[1].messages[-1])
        # The session is the one that code_run has.
        assert (await sandbox.execute("code_run", {"code": "total"})).data["value"] == "45"
        broken = await sandbox.execute("python_coder", {"query": "Break it."})
    assert broken.ok
    assert broken.data["error"] == "IndexError: list index out of range"
    assert broken.data["code"] == "[][2]"
    assert programs == []


@pytest.mark.promise("team:tools:usage")
async def test_usage_of_a_model_inside_a_tool_counts_towards_the_episode() -> None:
    script = Script(
        turns=9,
        next=lambda _: NextStep("j", "c", "g", "base_generator"),
        command=lambda _: Command("Ask.", {"query": "?"}),
    )
    inside = FunctionModel(lambda _: "22 degrees")
    book = Book()
    async with Sandbox(backends=model_tools(base_generator=inside)) as sandbox, team(script) as (members, _):
        settings = EpisodeSettings(max_tokens=440, max_turns=5)
        engine = EpisodeEngine(agent=TeamAgent(members), tools=await sandbox.tools(), settings=settings)
        episode = await engine.solve(TASK, sandbox, book.open())
    assert episode.usage["tool"] == Usage(1, 100, 10)
    assert episode.turns[0].result == "22 degrees"
    # The tool's own call was the fourth: the verifier was not asked any more.
    assert "verifier" not in episode.calls
    assert episode.ending == "tokens"


@pytest.mark.promise("team:tools:stopped")
async def test_a_tool_call_whose_model_stops_the_run_has_no_outcome() -> None:
    gone = RunStopped(StopCause.MODEL, "gone")

    def fail(call: Call[object]) -> object:
        raise gone

    store = MemoryBlobStore()
    async with Sandbox(backends=model_tools(base_generator=FunctionModel(fail))) as sandbox:
        with pytest.raises(RunStopped) as stopped:
            await call_tool(sandbox, Action("base_generator", {"query": "?"}), store)
    assert stopped.value is gone
