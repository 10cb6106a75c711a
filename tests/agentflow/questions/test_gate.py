"""The gate: what falls, why, and how many rounds of calls it takes."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

import pytest
from msgspec.structs import replace

from agentflow.errors import ModelFailureKind
from agentflow.questions import (
    Basis,
    Draft,
    DraftKind,
    GateCheck,
    GateSettings,
    HiddenAnswer,
    HiddenRequest,
    JudgedDraft,
    OtherAnswer,
    OtherAnswers,
    OthersRequest,
    ProposalRequest,
    QuestionGate,
    QuestionProposal,
    ReadingAnswer,
    ReadingRequest,
    Readings,
    Recalled,
    RecallRequest,
    RepairedDraft,
    RepairedDrafts,
    RepairRequest,
    ShownDocument,
)
from agentflow.trace import Failure, Look, LookRequest, Reply, Usage
from tests.agentflow.questions._notes import draft, notes

T = TypeVar("T")
DOCUMENTS = notes()
SOUND = draft(DOCUMENTS)
CUT = Failure(ModelFailureKind.TOO_LONG, "cut at its limit")
WITHOUT_REPAIRS = GateSettings(repairs=False)


class Roles:
    """Writer with these drafts, and a reader that answers 119 days if it sees both notes; each test changes one of them."""

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = drafts or (SOUND,)
        self.hidden = HiddenAnswer("100 days", Basis.GUESSED, ())
        self.evidence = ("119 days",)
        self.naturalness = 4
        self.recalled = Recalled("", is_certain=False)
        self.others = OtherAnswers((), "", 0)
        self.repaired: tuple[Draft, ...] = ()
        self.cut_above = 99
        self.spent = Usage(1, 900, 100)
        self.asked: list[object] = []

    @property
    def generator(self) -> Self:
        """This object, which also writes."""
        return self

    @property
    def reader(self) -> Self:
        """This object, which also reads."""
        return self

    async def propose_questions(self, request: ProposalRequest) -> Reply[QuestionProposal]:
        self.asked.append(request)
        if request.count > self.cut_above:
            return Reply(failure=CUT, usage=self.spent)
        return Reply(QuestionProposal((), (), self.drafts[len(request.asked) :][: request.keep]))

    async def repair_questions(self, request: RepairRequest) -> Reply[RepairedDrafts]:
        self.asked.append(request)
        return Reply(RepairedDrafts(tuple(RepairedDraft(n, each) for n, each in enumerate(self.repaired, 1))))

    async def look(self, request: LookRequest) -> Reply[Look]:
        self.asked.append(request)
        return Reply(Look(True))

    async def read_hidden(self, request: HiddenRequest) -> Reply[HiddenAnswer]:
        self.asked.append(request)
        return Reply(self.hidden)

    async def read_all(self, request: ReadingRequest) -> Reply[Readings]:
        self.asked.append(request)
        if len(request.questions) > self.cut_above:
            return Reply(failure=CUT)
        readings = (
            ReadingAnswer(
                number=each.number,
                documents=(1, 2),
                derivation="by the dates",
                answers=self.evidence,
                naturalness=self.naturalness,
            )
            for each in request.questions
        )
        return Reply(Readings(tuple(readings)))

    async def find_others(self, request: OthersRequest) -> Reply[OtherAnswers]:
        self.asked.append(request)
        return Reply(self.others)

    async def recall(self, request: RecallRequest) -> Reply[Recalled]:
        self.asked.append(request)
        return Reply(self.recalled)

    def count(self, kind: type[object]) -> int:
        return sum(isinstance(each, kind) for each in self.asked)


class Calls:
    """Makes each call once."""

    def __init__(self) -> None:
        self.replies: dict[str, object] = {}

    async def reply(
        self, key: str, kind: type[Reply[T]], call: Callable[[], Awaitable[Reply[T]]]
    ) -> Reply[T]:
        assert key not in self.replies
        self.replies[key] = made = await call()
        return made


class Corpus:
    """Corpus of the notes."""

    def __init__(self) -> None:
        self.queries: list[Sequence[str]] = []

    async def search(self, key: str, queries: Sequence[str]) -> tuple[ShownDocument, ...]:
        self.queries.append(queries)
        return DOCUMENTS


async def written(
    roles: Roles, settings: GateSettings = WITHOUT_REPAIRS, *, keep: int = 10
) -> list[JudgedDraft]:
    gate = QuestionGate(DOCUMENTS, roles, Calls(), settings, search=Corpus())
    return await gate.write(ProposalRequest(documents=DOCUMENTS, count=12, keep=keep))


@pytest.mark.promise("questions:gate")
async def test_a_sound_question_passes_with_the_votes_of_all_readers() -> None:
    roles = Roles()
    [judged] = await written(roles)
    assert judged.passed
    assert (judged.necessary, judged.naturalness, judged.known, judged.disputed) == (2, 4.0, 0.0, False)
    assert {vote.check for vote in judged.votes} == {
        GateCheck.ONE_DOCUMENT,
        GateCheck.KNOWN,
        GateCheck.EVIDENCE,
        GateCheck.UNIQUE,
    }
    hidden = [each for each in roles.asked if isinstance(each, HiddenRequest)]
    assert [[each.number for each in request.documents] for request in hidden] == [[1], [2]]


@pytest.mark.promise("questions:gate")
async def test_no_reader_is_shown_the_answer_before_it_has_answered() -> None:
    roles = Roles()
    await written(roles)
    blind = [each for each in roles.asked if isinstance(each, HiddenRequest | ReadingRequest | RecallRequest)]
    assert blind
    for request in blind:
        assert "119" not in repr(
            replace(request, documents=()) if not isinstance(request, RecallRequest) else request
        )


@pytest.mark.promise("questions:gate:falls")
@pytest.mark.parametrize(
    ("attribute", "value", "check"),
    [
        ("hidden", HiddenAnswer("119", Basis.STATED, (1,)), GateCheck.ONE_DOCUMENT),
        ("hidden", HiddenAnswer("119 days", Basis.GUESSED, ()), GateCheck.ONE_DOCUMENT),
        ("evidence", ("120 days",), GateCheck.EVIDENCE),
        ("evidence", ("119 days", "120 days"), GateCheck.EVIDENCE),
        ("evidence", (), GateCheck.EVIDENCE),
        ("naturalness", 2, GateCheck.NATURALNESS),
        ("others", OtherAnswers((OtherAnswer("98 days", 1, "q", "another date"),), "", 0), GateCheck.UNIQUE),
        ("others", OtherAnswers((), "withdrawn in 2024", 0), GateCheck.UNIQUE),
        ("others", OtherAnswers((), "", 2), GateCheck.ONE_DOCUMENT),
    ],
)
async def test_a_draft_falls_at_the_check_that_its_fault_is_for(
    attribute: str, value: object, check: GateCheck
) -> None:
    roles = Roles()
    setattr(roles, attribute, value)
    [judged] = await written(roles)
    assert [fault.check for fault in judged.findings] == [check]


@pytest.mark.promise("questions:gate:hidden")
@pytest.mark.parametrize(
    ("hidden", "necessary"),
    [
        (HiddenAnswer("119 days", Basis.REMEMBERED, ()), 1),
        (HiddenAnswer("119 days", Basis.INFERRED, (3, 4)), 2),
    ],
)
async def test_what_is_known_by_heart_proves_nothing_and_several_other_documents_are_several(
    hidden: HiddenAnswer, necessary: int
) -> None:
    roles = Roles()
    roles.hidden = hidden
    [judged] = await written(roles)
    assert (judged.passed, judged.necessary) == (True, necessary)


@pytest.mark.promise("questions:gate:known")
async def test_what_a_model_knows_is_a_label_unless_it_is_to_be_dropped() -> None:
    roles = Roles()
    roles.recalled = Recalled("119 days", is_certain=True)
    [judged] = await written(roles)
    assert (judged.passed, judged.known) == (True, 1.0)
    [judged] = await written(roles, GateSettings(repairs=False, drop_known=True))
    assert [fault.check for fault in judged.findings] == [GateCheck.KNOWN]
    roles.recalled = Recalled("98 days", is_certain=True)
    [judged] = await written(roles)
    assert (judged.passed, judged.known, judged.disputed) == (True, 0.0, True)
    candidates = next(each.candidates for each in reversed(roles.asked) if isinstance(each, OthersRequest))
    assert candidates == ("98 days",)


@pytest.mark.promise("questions:gate:order")
async def test_a_draft_that_a_rule_refuses_costs_no_call() -> None:
    roles = Roles(replace(SOUND, answer="7"))
    [judged] = await written(roles)
    assert [fault.check for fault in judged.findings] == [GateCheck.COMPUTATION]
    assert len(roles.asked) == 1


@pytest.mark.promise("questions:gate:order")
async def test_all_drafts_share_the_calls_that_read_all_documents() -> None:
    others = [
        replace(SOUND, kind=DraftKind.COMPUTATION, answer=f"{119 - n}", steps=(*SOUND.steps[:2], replace(SOUND.steps[2], computes=f"days(s1, s2) - {n}")))
        for n in (1, 2)
    ]  # fmt: skip
    roles = Roles(SOUND, *others)
    judged = await written(roles)
    assert [each.passed for each in judged] == [True, False, False]
    assert roles.count(ReadingRequest) == 2
    assert roles.count(HiddenRequest) == 3 + 1
    first, second = (each for each in roles.asked if isinstance(each, ReadingRequest))
    assert {each.question for each in first.questions} == {each.question for each in second.questions}


@pytest.mark.promise("questions:gate:duplicates")
async def test_a_second_draft_with_the_same_answer_and_documents_falls() -> None:
    roles = Roles(SOUND, replace(SOUND, question="After how many days did release 4.1 follow release 4.0?"))
    judged = await written(roles)
    assert [[fault.check for fault in each.findings] for each in judged] == [[], [GateCheck.DUPLICATE]]


@pytest.mark.promise("questions:gate:repair")
async def test_a_fallen_draft_is_written_anew_once_with_its_faults() -> None:
    roles = Roles(replace(SOUND, answer="7"))
    roles.repaired = (SOUND,)
    fallen, repaired = await written(roles, GateSettings())
    request = next(each for each in roles.asked if isinstance(each, RepairRequest))
    assert [each.reasons for each in request.fallen] == [tuple(fault.reason for fault in fallen.findings)]
    assert (repaired.passed, repaired.attempt, repaired.number) == (True, 2, fallen.number)
    roles.repaired = (replace(SOUND, answer="8"),)
    _, again = await written(roles, GateSettings())
    assert not again.passed


@pytest.mark.promise("questions:gate:cut")
async def test_an_answer_that_is_cut_at_its_limit_is_asked_for_in_two_halves() -> None:
    second = replace(SOUND, question="How many days before release 4.1 was release 4.0 published, plus one?", answer="120",
                     steps=(*SOUND.steps[:2], replace(SOUND.steps[2], computes="days(s1, s2) + 1")))  # fmt: skip
    roles = Roles(SOUND, second)
    roles.cut_above = 6
    judged = await written(roles, keep=1)
    assert roles.count(ProposalRequest) == 3
    assert len(judged) == 2
    roles.cut_above, roles.asked = 1, []
    gate = QuestionGate(DOCUMENTS, roles, Calls(), GateSettings(repairs=False))
    judged = await gate.judge(
        [JudgedDraft(draft=each, number=n) for n, each in enumerate((SOUND, second), 1)]
    )
    assert judged[0].passed
    assert roles.count(ReadingRequest) == 2 * 3


@pytest.mark.promise("questions:gate:failures")
async def test_a_reader_that_can_not_be_asked_proves_nothing() -> None:
    class Silent(Roles):
        async def read_hidden(self, request: HiddenRequest) -> Reply[HiddenAnswer]:
            return Reply(failure=Failure(ModelFailureKind.UNAVAILABLE, "no answer"))

    [judged] = await written(Silent())
    assert [(fault.check, fault.repairable) for fault in judged.findings] == [(GateCheck.ONE_DOCUMENT, False)]


@pytest.mark.promise("questions:gate:fuzz")
async def test_an_accepted_question_is_described_unless_its_description_fails_a_check() -> None:
    settings = GateSettings(repairs=False, fuzz=True)
    described = replace(
        SOUND, question="How many days lie between the two releases that disagree on idle connections?"
    )
    roles = Roles()
    roles.repaired = (described,)
    [judged] = await written(roles, settings)
    assert (judged.draft.question, judged.attempt) == (described.question, 3)
    [request] = [each for each in roles.asked if isinstance(each, RepairRequest)]
    assert "describe them" in request.fallen[0].reasons[0]
    roles = Roles()
    roles.repaired = (replace(described, answer="120"),)
    [judged] = await written(roles, settings)
    assert (judged.draft.question, judged.attempt) == (SOUND.question, 1)


@pytest.mark.promise("questions:gate:repeated")
async def test_a_question_falls_if_the_call_that_it_rests_on_gives_another_result() -> None:
    class Repeating(Calls):
        async def fault(self, node: str) -> str:
            return "it gives another result" if node == "query" else ""

    def documents(node: str) -> tuple[ShownDocument, ...]:
        return (DOCUMENTS[0], replace(DOCUMENTS[1], computed=True, nodes=(node,)))

    for node, expected in (("query", [GateCheck.REPEATED]), ("other", [])):
        calls, roles = Repeating(), Roles()
        gate = QuestionGate(documents(node), roles, calls, WITHOUT_REPAIRS, repeated=calls)
        [judged] = await gate.write(ProposalRequest(documents=documents(node), count=12, keep=1))
        assert [fault.check for fault in judged.findings] == expected
        assert all(not fault.repairable for fault in judged.findings)


@pytest.mark.promise("questions:gate:cut")
async def test_a_gate_tells_that_its_documents_are_too_long_for_the_writer() -> None:
    roles = Roles()
    roles.cut_above, roles.spent = 0, Usage(1)
    gate = QuestionGate(DOCUMENTS, roles, Calls(), WITHOUT_REPAIRS)
    assert await gate.write(ProposalRequest(documents=DOCUMENTS, count=12, keep=10)) == []
    assert gate.too_long
