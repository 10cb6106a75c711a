"""The offline engine as a model."""

import subprocess
import sys

import msgspec
import pytest

from agentflow.errors import ModelFailure, RunStopped, StopCause
from agentflow.models import Accounts, Call, Model
from agentflow.models._model import OfflineModel
from agentflow.questions import ProposalRequest, QuestionProposal, Recalled, RecallRequest, documents_from
from agentflow.trace import (
    Judgement,
    JudgementRequest,
    Plan,
    PlanRequest,
    Request,
)
from tests.agentflow.offline._walks import BATCH, SEARCH, documents, walks

CONTENT = "Explore the Grey Petrel and her captain."
PATH = next(walks(CONTENT, (SEARCH, BATCH)))
SHOWN = documents_from((each.id, each.title, each.text) for each in documents()[:12])
REQUESTS: dict[type[msgspec.Struct], Request[msgspec.Struct]] = {
    Plan: PlanRequest(seed=CONTENT, tools=(SEARCH, BATCH), path=PATH, count=2),
    Judgement: JudgementRequest(seed=CONTENT, path=PATH[:-1], step=PATH[-1]),
    QuestionProposal: ProposalRequest(documents=SHOWN, count=3, keep=3, seed=CONTENT),
    Recalled: RecallRequest(question="In which year was Alba founded?"),
}


def call(reply: type[msgspec.Struct], request: Request[msgspec.Struct] | None) -> Call[msgspec.Struct]:
    return Call(role="planner", messages=(), reply=reply, request=request)


@pytest.mark.promise("offline:pure")
@pytest.mark.parametrize("reply", REQUESTS)
async def test_the_same_request_has_the_same_answer_and_its_text_decodes_into_it(
    reply: type[msgspec.Struct],
) -> None:
    model: Model = OfflineModel(Accounts())
    first = await model.complete(call(reply, REQUESTS[reply]))
    assert first == await OfflineModel(Accounts()).complete(call(reply, REQUESTS[reply]))
    assert msgspec.json.decode(first.text, type=reply) == first.value
    assert (first.model, model.name, model.vision) == ("offline", "offline", False)


_PRINT = """
from agentflow.offline._engine import plan
from agentflow.offline._questions import propose
from tests.agentflow.models.test_offline import REQUESTS
from agentflow.questions import QuestionProposal
from agentflow.trace import Plan
print(plan(REQUESTS[Plan]), propose(REQUESTS[QuestionProposal]))
"""


@pytest.mark.promise("offline:pure")
def test_answers_do_not_depend_on_the_hash_seed() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", _PRINT],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert "DraftStep" in said.pop()


@pytest.mark.promise("offline:knows-nothing")
async def test_a_question_without_text_is_not_answered() -> None:
    completion = await OfflineModel(Accounts()).complete(call(Recalled, REQUESTS[Recalled]))
    assert completion.value == Recalled("", is_certain=False)


@pytest.mark.promise("offline:accounts")
async def test_the_usage_of_the_offline_engine_is_accounted() -> None:
    accounts = Accounts()
    completion = await OfflineModel(accounts).complete(call(QuestionProposal, REQUESTS[QuestionProposal]))
    assert accounts.by_role == {"planner": completion.usage}
    assert completion.usage.calls == 1
    assert completion.usage.prompt_tokens > 100
    assert completion.usage.completion_tokens > 20


@pytest.mark.promise("offline:accounts")
async def test_a_budget_ends_a_run_of_the_offline_engine() -> None:
    model = OfflineModel(Accounts(max_tokens=10))
    await model.complete(call(Plan, REQUESTS[Plan]))
    with pytest.raises(RunStopped) as stopped:
        await model.complete(call(Plan, REQUESTS[Plan]))
    assert stopped.value.cause is StopCause.BUDGET


@pytest.mark.promise("offline:refuses")
@pytest.mark.parametrize(("reply", "request_"), [(Plan, None), (Plan, REQUESTS[Recalled])])
async def test_an_unsupported_call_is_refused_in_one_line(
    reply: type[msgspec.Struct], request_: Request[msgspec.Struct] | None
) -> None:
    with pytest.raises(ModelFailure, match=r"^the offline engine answers .*$"):
        await OfflineModel(Accounts()).complete(call(reply, request_))
