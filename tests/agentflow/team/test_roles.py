"""Roles: typed requests and typed replies, whatever the model does."""

from collections.abc import Awaitable, Callable

import pytest

from agentflow.actors import Supervisor
from agentflow.errors import ConfigurationError, ModelFailure, ModelFailureKind, RunStopped, StopCause
from agentflow.models import Call, ImagePart
from agentflow.questions import (
    AskedQuestion,
    Basis,
    HiddenAnswer,
    HiddenRequest,
    OtherAnswers,
    OthersRequest,
    ProposalRequest,
    QuestionProposal,
    ReadingRequest,
    Readings,
    Recalled,
    RecallRequest,
    RepairedDrafts,
    RepairRequest,
    documents_from,
)
from agentflow.team import Team
from agentflow.trace import (
    AnalysisRequest,
    Assessment,
    Command,
    CommandRequest,
    DecidedStep,
    Decision,
    DecisionRequest,
    Failure,
    Judgement,
    JudgementRequest,
    Memory,
    MemoryBlobStore,
    NextStep,
    NextStepRequest,
    Plan,
    Proposal,
    QueryAnalysis,
    Reply,
    Solution,
    SolutionRequest,
    Summary,
    SummaryRequest,
    ToolCard,
    Usage,
    Verdict,
    VerificationRequest,
)
from tests.agentflow.team._model import SEARCH, FunctionModel, plan_request, step, team

DOCUMENTS = documents_from([("a", "", "Mara founded Vell."), ("b", "", "Vell is old.")])
JUDGED = JudgementRequest(seed="s", path=(), step=step("Mara did."))
PROPOSE = ProposalRequest(documents=DOCUMENTS, count=1, keep=1, seed="s")
REPAIR = RepairRequest(documents=DOCUMENTS, fallen=())
HIDDEN = HiddenRequest(documents=DOCUMENTS[1:], question="Who?")
READ = ReadingRequest(documents=DOCUMENTS, questions=(AskedQuestion(1, "Who?"),))
OTHERS = OthersRequest(question="Who?", answer="Mara", candidates=(), documents=DOCUMENTS)
RECALL = RecallRequest(question="Who?")

ANALYSE = AnalysisRequest(question="Who?", tools=(SEARCH,))
ANALYSIS = QueryAnalysis("Who it was.", "", "", "")
NEXT = NextStepRequest(question="Who?", tools=(SEARCH,), analysis=ANALYSIS, memory=Memory(), turns_left=3)
STEP = NextStep("First of all.", "the tower", "Find it.", "rag_search")
COMMAND = CommandRequest(question="Who?", step=STEP, tool=SEARCH)
VERIFY = VerificationRequest(
    question="Who?", tools=(SEARCH,), analysis=ANALYSIS, memory=Memory(), turns_left=2
)
SOLVE = SolutionRequest(question="Who?", analysis=ANALYSIS, memory=Memory())
SUMMARISE = SummaryRequest(question="Who?", summary="Nobody yet.", turns=())

ASKED: dict[str, Callable[[Team], Awaitable[Reply[object]]]] = {
    "plan": lambda members: members.planner.plan(plan_request()),  # pyright: ignore[reportAssignmentType]
    "judge": lambda members: members.verifier.judge(JUDGED),
    "propose": lambda members: members.generator.propose_questions(PROPOSE),
    "repair": lambda members: members.generator.repair_questions(REPAIR),
    "hidden": lambda members: members.reader.read_hidden(HIDDEN),
    "read": lambda members: members.reader.read_all(READ),
    "others": lambda members: members.reader.find_others(OTHERS),
    "recall": lambda members: members.reader.recall(RECALL),
}
SOLVING: dict[str, Callable[[Team], Awaitable[Reply[object]]]] = {
    "analyse": lambda members: members.planner.analyse(ANALYSE),  # pyright: ignore[reportAssignmentType]
    "next_step": lambda members: members.planner.next_step(NEXT),  # pyright: ignore[reportAssignmentType]
    "decide": lambda members: members.planner.decide(DecisionRequest(next=NEXT)),  # pyright: ignore[reportAssignmentType]
    "command": lambda members: members.executor.command(COMMAND),  # pyright: ignore[reportAssignmentType]
    "verify": lambda members: members.verifier.decide(VERIFY),  # pyright: ignore[reportAssignmentType]
    "solve": lambda members: members.generator.solve(SOLVE),  # pyright: ignore[reportAssignmentType]
    "summarise": lambda members: members.generator.summarise(SUMMARISE),  # pyright: ignore[reportAssignmentType]
}
EVERY = {**ASKED, **SOLVING}
each_role = pytest.mark.parametrize("ask", EVERY.values(), ids=EVERY)


@pytest.mark.promise("team:planner:plan")
async def test_a_plan_has_at_most_the_requested_proposals_and_no_unused_nulls() -> None:
    def answer(call: Call[object]) -> Plan:
        given = {"limit": None, "filters": [{"year": 1871, "place": None}]}
        proposals = [Proposal("why", "rag_search", {"query": str(n), **given}) for n in range(5)]
        return Plan((Proposal("why", "rag_search", {"query": None}), *proposals))

    request = plan_request(step("found"), count=2)
    async with team(answer) as (members, model):
        reply = await members.planner.plan(request)
    assert reply.value == Plan(
        (
            Proposal("why", "rag_search", {"query": None}),
            Proposal("why", "rag_search", {"query": "0", "filters": [{"year": 1871}]}),
        )
    )
    assert reply.usage == Usage(1, 100, 10)
    [call] = model.calls
    assert call.role == "planner"
    assert call.reply is Plan
    assert call.request is request
    assert call.schema is not None


@pytest.mark.promise("team:planner:plan")
@pytest.mark.parametrize(("count", "tools"), [(0, None), (2, ())])
async def test_without_tools_or_count_no_model_is_asked(
    count: int, tools: tuple[ToolCard, ...] | None
) -> None:
    request = plan_request(count=count) if tools is None else plan_request(count=count, tools=tools)
    async with team() as (members, _):
        assert await members.planner.plan(request) == Reply(value=Plan(()))


@pytest.mark.promise("questions:prompts")
@pytest.mark.promise("team:reader")
async def test_the_generator_writes_questions_and_the_reader_checks_them() -> None:
    answers = {
        QuestionProposal: QuestionProposal((), (), ()),
        RepairedDrafts: RepairedDrafts(()),
        HiddenAnswer: HiddenAnswer("Mara", Basis.GUESSED, ()),
        Readings: Readings(()),
        OtherAnswers: OtherAnswers((), "", 0),
        Recalled: Recalled("Mara", is_certain=True),
    }
    async with team(lambda call: answers[call.reply]) as (members, model):  # pyright: ignore[reportArgumentType]
        replies = [await ask(members) for name, ask in ASKED.items() if name not in ("plan", "judge")]
    assert [reply.value for reply in replies] == list(answers.values())
    assert [(call.role, call.request) for call in model.calls] == [
        ("generator", PROPOSE),
        ("generator", REPAIR),
        ("reader", HIDDEN),
        ("reader", READ),
        ("reader", OTHERS),
        ("learner", RECALL),
    ]


DECISION = Decision("Not yet.", Assessment.INCOMPLETE, stop=False)
ANSWERS: dict[str, object] = {
    "analyse": ANALYSIS,
    "next_step": STEP,
    "decide": DecidedStep(DECISION, STEP),
    "command": Command("Search.", {"query": "tower"}),
    "verify": DECISION,
    "solve": Solution("She said so.", "Mara"),
    "summarise": Summary("Nobody yet."),
}


@pytest.mark.promise("team:tasks:schemas")
@pytest.mark.parametrize("name", SOLVING)
async def test_in_an_episode_each_role_answers_a_typed_request_with_a_typed_reply(name: str) -> None:
    async with team(lambda _: ANSWERS[name]) as (members, model):
        reply = await SOLVING[name](members)
    assert reply.value == ANSWERS[name]
    assert reply.usage == Usage(1, 100, 10)
    [call] = model.calls
    assert call.reply is type(reply.value)
    assert call.schema is not None
    assert call.schema["additionalProperties"] is False
    assert call.request is not None


@pytest.mark.promise("team:tasks:schemas")
async def test_a_command_has_no_nulls_forced_by_a_strict_schema() -> None:
    idle = Command("Search.", {"query": "tower", "limit": None})
    async with team(lambda _: idle) as (members, _):
        assert (await members.executor.command(COMMAND)).value == ANSWERS["command"]


@pytest.mark.promise("team:specs")
async def test_each_role_uses_its_own_model() -> None:
    names = ("planner", "analyst", "executor", "verifier", "generator")
    models = {name: FunctionModel(lambda call: ANSWERS[_KINDS[type(call.request)]]) for name in names}
    members = Team(models)
    async with Supervisor(members.specs(), name="team"):
        for ask in SOLVING.values():
            await ask(members)
    roles = {name: [call.role for call in model.calls] for name, model in models.items()}
    assert roles == {
        "planner": ["planner", "planner"],
        "analyst": ["analyst"],
        "executor": ["executor"],
        "verifier": ["verifier"],
        "generator": ["generator", "generator"],
    }


_KINDS: dict[type, str] = {
    AnalysisRequest: "analyse",
    NextStepRequest: "next_step",
    DecisionRequest: "decide",
    CommandRequest: "command",
    VerificationRequest: "verify",
    SolutionRequest: "solve",
    SummaryRequest: "summarise",
}


@pytest.mark.promise("team:verifier:model")
async def test_a_model_judges_only_observations_without_an_obvious_verdict() -> None:
    repeats = Judgement(Verdict.REPEATS, "known")
    async with team(lambda _: repeats, verify="model") as (members, model):
        assert (await members.verifier.judge(JUDGED)).value == repeats
        assert len(model.calls) == 1
        for plain in (
            JudgementRequest(seed="s", path=(), step=step("[]")),
            JudgementRequest(seed="s", path=(), step=step("x", failure=Failure("failed", "x"))),
        ):
            reply = await members.verifier.judge(plain)
            assert reply.value is not None
            assert reply.value.verdict in (Verdict.EMPTY, Verdict.ERROR)
        assert len(model.calls) == 1


@pytest.mark.promise("team:verifier:model")
def test_judging_by_model_requires_a_model() -> None:
    model = FunctionModel(lambda _: None)
    with pytest.raises(ConfigurationError, match="verify=model needs a model"):
        Team({"planner": model, "generator": model}, verify="model")


@pytest.mark.promise("team:specs")
def test_a_missing_model_and_one_of_an_unknown_role_are_refused() -> None:
    model = FunctionModel(lambda _: None)
    with pytest.raises(ConfigurationError, match=r"^team: no model for the generator; add it to `models`$"):
        Team({"planner": model})
    with pytest.raises(ConfigurationError, match=r"^team: there is no role planer; the roles are planner, "):
        Team({"planer": model, "generator": model})


@each_role
@pytest.mark.promise("team:model-failure")
async def test_a_failed_model_call_is_a_reply(ask: Callable[[Team], Awaitable[Reply[object]]]) -> None:
    def answer(call: Call[object]) -> object:
        raise ModelFailure(ModelFailureKind.GARBAGE, "no JSON")

    async with team(answer, verify="model") as (members, _):
        assert await ask(members) == Reply(failure=Failure("garbage", "no JSON"))


@each_role
@pytest.mark.promise("team:model-failure")
async def test_the_end_of_a_run_is_raised(ask: Callable[[Team], Awaitable[Reply[object]]]) -> None:
    def answer(call: Call[object]) -> object:
        raise RunStopped(StopCause.BUDGET, "no tokens left")

    async with team(answer, verify="model") as (members, _):
        with pytest.raises(RunStopped, match="no tokens left"):
            await ask(members)


@each_role
@pytest.mark.promise("team:pool:crash")
async def test_a_crash_is_retried_once_and_then_becomes_a_failed_reply(
    ask: Callable[[Team], Awaitable[Reply[object]]],
) -> None:
    def answer(call: Call[object]) -> object:
        raise ZeroDivisionError("a bug")

    async with team(answer, verify="model") as (members, model):
        reply = await ask(members)
        assert reply.failure is not None
        assert reply.failure.kind == "unavailable"
        assert "ZeroDivisionError: a bug" in reply.failure.message
        assert len(model.calls) == 2


@pytest.mark.promise("team:prompts:pictures")
async def test_images_of_a_path_come_from_the_blob_store() -> None:
    blobs = MemoryBlobStore()
    blob = await blobs.put(b"png", "image/png")
    async with team(lambda _: Plan(()), vision=True, blobs=blobs) as (members, model):
        await members.planner.plan(plan_request(step("a chart", images=(blob,))))
    assert ImagePart(b"png", "image/png") in [
        part for message in model.calls[0].messages for part in message.parts
    ]


@pytest.mark.promise("team:specs")
async def test_the_team_has_one_supervisor_per_role() -> None:
    async with team() as (members, _):
        specs = members.specs()
    assert [spec.id for spec in specs] == ["planners", "executors", "verifiers", "generators", "readers"]
    assert {spec.kind for spec in specs} == {"supervisor"}
