"""Roles made of plain functions, over real sandboxes."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b

from agentflow.engine import BranchSandboxes, Grower, GrowthSettings
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.trace import (
    Action,
    ActionOutcome,
    Failure,
    Judgement,
    JudgementRequest,
    Observation,
    Plan,
    PlanRequest,
    Proposal,
    Reply,
    Seed,
    Text,
    Tree,
    Usage,
    Verdict,
)
from tests._pages import page_over

SEED = Seed(index=0, id="seed_001", content="the sea and its tides")


class PlanBy:
    """A planner that is a function of the request; remembers what it was asked."""

    def __init__(self, plan: Callable[[PlanRequest], Sequence[Proposal]]) -> None:
        self._plan = plan
        self.requests: list[PlanRequest] = []

    async def plan(self, request: PlanRequest) -> Reply[Plan]:
        self.requests.append(request)
        return Reply(value=Plan(tuple(self._plan(request))), usage=Usage(1, 10, 5))


class Act:
    """Minimal executor over a real sandbox."""

    def __init__(self) -> None:
        self.acted: list[Action] = []

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        self.acted.append(action)
        result = await sandbox.execute(action.tool, action.arguments)
        data = result.data
        words = " ".join(str(data[name]) for name in ("stdout", "value", "entries", "rows") if data.get(name))
        code = data.get("exit_code", 0)
        return ActionOutcome(
            Observation((Text(words),)),
            None if result.error is None else Failure(result.error.kind, result.error.message),
            f"exit code {code}" if code else "",
            bool(data.get("state_lost")),
        )


class JudgeBy:
    """A verifier that is a function of the request."""

    def __init__(self, judge: Callable[[JudgementRequest], Verdict] = lambda _: Verdict.NEW) -> None:
        self._judge = judge
        self.requests: list[JudgementRequest] = []

    def by_rule(self, request: JudgementRequest) -> Judgement | None:
        return None

    async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
        self.requests.append(request)
        verdict = Verdict.ERROR if request.step.failure else self._judge(request)
        return Reply(value=Judgement(verdict))


def fresh_page(entries: dict[str, bytes] | None = None) -> Page:
    """A page that is kept in memory, in the dictionary that is given."""
    return page_over({} if entries is None else entries)


@asynccontextmanager
async def grower(
    planner: PlanBy,
    *,
    settings: GrowthSettings | None = None,
    executor: Act | None = None,
    verifier: JudgeBy | None = None,
    backends: Sequence[str] = ("bash", "code"),
    tools: Sequence[str] = ("bash_run", "code_run"),
    sandbox: SandboxSettings | None = None,
) -> AsyncGenerator[Grower]:
    """A grower over a sandbox with those backends."""
    async with Sandbox(sandbox, backends=backends) as base:
        yield Grower(
            settings or GrowthSettings(),
            run="run",
            planner=planner,
            executor=executor or Act(),
            verifier=verifier or JudgeBy(),
            sandboxes=BranchSandboxes(base, await base.tools(tools)),
        )


def stateful_plan(request: PlanRequest) -> list[Proposal]:
    """Propose actions that leave marks in files and variables and print all earlier marks."""
    spot = blake2b(repr([step.action for step in request.path]).encode(), digest_size=3).hexdigest()
    proposals: list[Proposal] = []
    for number in range(request.count):
        mark = f"{spot}{number}{len(request.taken)}"
        proposals.append(
            Proposal("write", "bash_run", {"command": f"echo {mark} >> marks; cat marks"})
            if number % 2 == 0
            else Proposal("set", "code_run", {"code": f"x = globals().get('x', []) + ['{mark}']\nprint(x)"})
        )
    return proposals


def words_of(tree: Tree) -> dict[str, str]:
    """Text of every observation by node."""
    return {node.id: node.observation.text for node in tree.nodes}
