"""Episodes behind the gateway branch: the messages of a beginning are repeated, and the state of its tools is copied."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
import pytest
from openai import APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletionMessage
from pydantic import Field

from agentflow.engine import EveryDecision, PathNode
from agentflow.errors import CannotFork, ConfigurationError
from agentflow.gateway import EpisodeOffer, EpisodeOutcome, ExactAnswerer
from agentflow.learner import POLICY, Group, RolloutContext, Sample, TaskDraw
from agentflow.learner._checkpoints import RolloutStore
from agentflow.learner.losses import LossSettings
from agentflow.learner.losses._step import call_advantages
from agentflow.models import Accounts, ModelSettings
from agentflow.rollouts import Assignment
from agentflow.sandbox import Backend, Sandbox, Session, tool
from agentflow.testing import fake_endpoint
from agentflow.trace import Task, Tokens
from agentflow.tuner import PolicyEndpoint, load_tune_config, serve_run
from agentflow.tuner._branch_sandbox import OpenSandbox
from agentflow.tuner._gateway_rollout import tree_of_group
from agentflow.tuner._workflow_rollouts import WorkflowRollouts
from tests.agentflow.gateway._engine import RandomEngine
from tests.agentflow.tuner._tuning import CountingBackbone, some_tasks, tuned

SIZE = 8
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "list")]


@asynccontextmanager
async def shell() -> AsyncGenerator[Sandbox]:
    """Open a sandbox with a shell."""
    async with Sandbox(backends=["bash"]) as sandbox:
        yield sandbox


class Killed(BaseException):
    """The process ends here."""


class LogAgent:
    """Calls the model until it answers, at most four times; tools keep a log of the arguments of all calls."""

    def __init__(self) -> None:
        self.logs: list[tuple[list[str], list[str]]] = []
        """Logs that a tool showed, and those that the episode had written."""
        self.ended: list[str] = []
        """Episodes that ended."""
        self.begun = count()

    async def __call__(self, task: Task, policy: PolicyEndpoint) -> EpisodeOutcome:
        """Play an episode without a sandbox."""
        return await self.play(task, policy, next(self.begun))

    async def play(self, task: Task, policy: PolicyEndpoint, number: int) -> EpisodeOutcome:
        """Play an episode.

        :param number: number of the attempt, over all episodes.
        """
        messages: list[Any] = [{"role": "user", "content": self.question(task, number)}]
        log: list[str] = []
        for _ in range(4):
            message = await self.ask(policy, messages)
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                arguments = call.function.arguments if call.type == "function" else ""
                log.append(str(sum(map(ord, arguments))))
                shown = await self.write(log[-1], policy.sandbox, number)
                self.logs.append((shown.split(), list(log)))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
            if not message.tool_calls:
                break
        self.ended.append(policy.episode)
        return EpisodeOutcome(reward=len(log) + len(messages[-1].get("content", "")) / 100)

    async def ask(self, policy: PolicyEndpoint, messages: list[Any]) -> ChatCompletionMessage:
        """Call the model."""
        async with AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=0) as client:
            said = await client.chat.completions.create(model=policy.model, messages=messages, tools=TOOLS)
        return said.choices[0].message

    def question(self, task: Task, number: int) -> str:
        """Return the first message; answers depend on its length."""
        del number
        return f"{task.question}? 0000"

    async def write(self, word: str, sandbox: Any, number: int) -> str:  # noqa: ANN401 - any sandbox
        """Add a word to the log; return it."""
        del sandbox, number
        return word


class ShellAgent(LogAgent):
    """Keeps its log in a variable of a shell."""

    async def __call__(
        self, task: Task, policy: PolicyEndpoint, sandbox: Sandbox | None = None
    ) -> EpisodeOutcome:
        """Play an episode with a sandbox."""
        assert policy.sandbox is sandbox
        return await self.play(task, policy, next(self.begun))

    async def write(self, word: str, sandbox: Any, number: int) -> str:  # noqa: ANN401 - any sandbox
        """Add a word to the log; return the whole log."""
        del number
        result = await sandbox.execute("bash:run", {"command": f'log="$log {word}"; echo $log'})
        return result.data["stdout"]


async def trained_group(
    folder: Path,
    agent: LogAgent,
    engine: RandomEngine,
    sandbox: OpenSandbox = shell,
    backbone: CountingBackbone | None = None,
    size: int = SIZE,
) -> Group:
    """Train on one group; return it."""
    await tuned(
        folder,
        agent,
        some_tasks(1),
        model=ExactAnswerer(engine.engine),
        backbone=backbone,
        sandbox=sandbox,
        width=2,
        tasks_per_step=1,
        episodes_per_task=size,
    )
    batch = RolloutStore(folder / "rollouts").read(1)
    assert batch is not None
    [group] = batch.groups
    return group


async def played(
    folder: Path,
    agent: LogAgent,
    engine: RandomEngine,
    sandbox: OpenSandbox = shell,
    backbone: CountingBackbone | None = None,
) -> list[Sample]:
    """Train on one group without failures; return its samples."""
    group = await trained_group(folder, agent, engine, sandbox, backbone)
    assert group.failures == ()
    assert sum(sample.multiplicity for sample in group.samples) == SIZE
    assert all(shown in (log, log[-1:]) for shown, log in agent.logs)
    return list(group.samples)


def calls_by_node(samples: Sequence[Sample]) -> dict[str, Tokens]:
    """Return the call of each node; a call that samples share is the same one in each."""
    calls: dict[str, Tokens] = {}
    for sample in samples:
        assert sample.nodes
        for node, call in zip(sample.nodes, sample.calls, strict=True):
            assert calls.setdefault(node, call) == call
    return calls


def trees(samples: Sequence[Sample]) -> list[str]:
    """Return the number of the tree of each sample."""
    return [node.partition("-")[0] for sample in samples for node in (sample.nodes or ())[:1]]


@pytest.mark.promise("tuner:branches")
async def test_a_beginning_is_sampled_once_and_its_shell_is_forked(tmp_path: Path) -> None:
    agent, engine = ShellAgent(), RandomEngine()
    samples = await played(tmp_path, agent, engine)
    calls = calls_by_node(samples)
    assert len(engine.told) == len(calls) < sum(len(sample.calls) for sample in samples)
    told = {(prompt, ids) for prompt, ids, _ in engine.told}
    assert {(call.prompt, call.sampled) for call in calls.values()} == told
    assert set(trees(samples)) == {"0"}
    assert len(agent.ended) == len(samples) < SIZE, (
        "an early end stands for those that would have parted later"
    )
    assert max(len(log) for _, log in agent.logs) > 2
    own = sum(sample.details["sampled_tokens"] for sample in samples)
    assert own == sum(len(ids) for _, ids, _ in engine.told)
    for credit in ("siblings", "treerl", "tree_grpo"):
        assert any(map(any, call_advantages(samples, LossSettings(credit=credit))))


@pytest.mark.promise("tuner:branches")
@pytest.mark.parametrize(("size", "width"), [(1, 2), (2, 4), (5, 2), (8, 2), (16, 4), (7, 3)])
def test_a_group_is_divided_as_by_the_search_of_the_engine(size: int, width: int) -> None:
    search, root = EveryDecision(width, size), PathNode(some_tasks(1)[0], (), None)
    root.share = search.share
    nodes, leaves = [root], list[tuple[int, ...]]()
    while nodes:
        for node, number in search.choose([nodes.pop()]):
            for position, share in enumerate(node.shares(number)):
                child = PathNode(node.task, (*node.path, position), node)
                child.share = share
                leaves += [child.path] * (share == 1)
                nodes += [child] * (share > 1)
    tree = tree_of_group([f"3/{member}" for member in range(size)], width)
    assert sorted(branch.path for branch in tree) == sorted(leaves)
    for member, branch in enumerate(tree):
        assert (branch.origin == "") == (branch.calls == 0)
        below = [other for other in tree if other.origin == f"3/{member}"]
        assert [calls for calls, _ in branch.splits] == [other.calls for other in below]
        assert all(other.path[: other.calls] == branch.path[: other.calls] for other in below)


class Impatient(ShellAgent):
    """Asks another question in each attempt."""

    def question(self, task: Task, number: int) -> str:
        return f"{task.question}? {number:04d}"


class Forgetful(ShellAgent):
    """Makes another call of its tool in each attempt."""

    async def write(self, word: str, sandbox: Any, number: int) -> str:  # noqa: ANN401 - any sandbox
        await sandbox.execute("bash:run", {"command": f": {number}"})
        return await super().write(word, sandbox, number)


class Careless(Impatient):
    """Asks another question in each attempt, and swallows the gateway's refusal."""

    async def play(self, task: Task, policy: PolicyEndpoint, number: int) -> EpisodeOutcome:
        with suppress(APIStatusError):
            return await super().play(task, policy, number)
        return EpisodeOutcome(reward=99.0)


@pytest.mark.promise("tuner:branches")
@pytest.mark.parametrize(
    "agent", [Impatient(), Forgetful(), Careless()], ids=lambda agent: type(agent).__name__
)
async def test_an_agent_that_does_not_repeat_itself_is_played_independently(
    agent: ShellAgent, tmp_path: Path
) -> None:
    engine = RandomEngine()
    samples = await played(tmp_path, agent, engine)
    calls = calls_by_node(samples)
    assert len(calls) == sum(len(sample.calls) for sample in samples), "nothing is shared"
    assert {(call.prompt, call.sampled) for call in calls.values()} <= {told[:2] for told in engine.told}
    assert len(set(trees(samples))) == len(samples) - 1 > 2, "two part at the first decision"
    assert all(sample.reward < 99 for sample in samples)


class Unlucky(ShellAgent):
    """Crashes in the first episode of a group."""

    async def play(self, task: Task, policy: PolicyEndpoint, number: int) -> EpisodeOutcome:
        if policy.episode == "0/0":
            raise ConnectionError("no luck")
        return await super().play(task, policy, number)


@pytest.mark.promise("tuner:branches")
async def test_without_their_origin_episodes_are_independent(tmp_path: Path) -> None:
    group = await trained_group(tmp_path, Unlucky(), RandomEngine(), size=4)
    assert [failure.kind for failure in group.failures] == ["crashed"]
    assert [(sample.id, sample.multiplicity) for sample in group.samples] == [("0/1", 1), ("0/2", 2)]
    assert trees(group.samples) == ["1", "0"]


@pytest.mark.promise("tuner:branches")
def test_without_branching_offers_are_as_they_were() -> None:
    offer = EpisodeOffer(id="1/0", group="1", task=some_tasks(1)[0])
    assert "branch" not in msgspec.json.decode(msgspec.json.encode(offer))


class Pages(list[str]):
    """Log of a session."""


class Ledger(Backend):
    """Keeps a log that can't be copied."""

    name = "ledger"
    description = "A ledger."

    def __init__(self, *, numbered: bool) -> None:
        self.numbered = numbered
        """The log names the call, so that no other call shows the same."""
        self.words: list[str] = []

    async def initialize(self, session: Session, settings: object) -> None:
        """Begin."""
        session.put(Pages())

    async def fork(self, session: Session, forked: Session) -> None:
        """Refuse."""
        raise CannotFork("the ledger is locked")

    @tool(open_world=False)
    async def write(self, session: Session, word: Annotated[str, Field(description="What to write.")]) -> str:
        """Write a word; return the log."""
        self.words.append(word)
        pages = session.get(Pages)
        pages.append(f"{word}.{len(self.words)}" if self.numbered else word)
        return " ".join(pages)


class LedgerAgent(ShellAgent):
    """Keeps its log in a ledger."""

    async def write(self, word: str, sandbox: Any, number: int) -> str:  # noqa: ANN401 - any sandbox
        result = await sandbox.execute("ledger:write", {"word": word})
        return " ".join(page.partition(".")[0] for page in result.data["result"].split())


@pytest.mark.promise("tuner:branches")
@pytest.mark.parametrize("numbered", [False, True])
async def test_a_state_that_cannot_be_copied_is_made_again_if_its_calls_return_the_same(
    numbered: bool, tmp_path: Path
) -> None:
    ledger = Ledger(numbered=numbered)

    @asynccontextmanager
    async def fresh() -> AsyncGenerator[Sandbox]:
        async with Sandbox(backends=[ledger]) as sandbox:
            yield sandbox

    agent, engine = LedgerAgent(), RandomEngine()
    samples = await played(tmp_path, agent, engine, fresh)
    shared = sum(len(sample.calls) for sample in samples) - len(calls_by_node(samples))
    assert (shared == 0) == numbered
    assert (set(trees(samples)) == {"0"}) != numbered


class KilledInBranch(LogAgent):
    """The process is killed as it plays its sixth attempt."""

    async def play(self, task: Task, policy: PolicyEndpoint, number: int) -> EpisodeOutcome:
        if number == 5:
            raise Killed
        return await super().play(task, policy, number)


class KilledInShell(KilledInBranch, ShellAgent):
    """The same, with a shell."""


@pytest.mark.promise("tuner:branches")
async def test_after_a_kill_branches_continue_from_what_is_on_disk(tmp_path: Path) -> None:
    whole = await played(tmp_path / "whole", LogAgent(), RandomEngine())
    with pytest.raises(BaseExceptionGroup):
        await played(tmp_path / "killed", KilledInBranch(), RandomEngine())
    agent, engine = LogAgent(), RandomEngine()
    assert await played(tmp_path / "killed", agent, engine) == whole
    assert 0 < len(engine.told) < len(calls_by_node(whole))


@pytest.mark.promise("tuner:branches")
async def test_after_a_kill_branches_whose_shells_are_lost_are_played_independently(tmp_path: Path) -> None:
    first, second = RandomEngine(), RandomEngine()
    with pytest.raises(BaseExceptionGroup):
        await played(tmp_path, KilledInShell(), first)
    samples = await played(tmp_path, ShellAgent(), second)
    told = {(prompt, ids) for prompt, ids, _ in first.told + second.told}
    assert {(call.prompt, call.sampled) for call in calls_by_node(samples).values()} <= told


@pytest.mark.promise("tuner:settings")
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"solve": "team"}, "branching: episodes of solve=team do not branch behind the gateway"),
        ({"agents": {"wolf": {"trained": True}}}, "branching: episodes of several agents do not branch"),
        ({"branching": {"width": 1}}, "branching.width: with 1 nothing branches"),
        ({"branching": {"at": "uncertain"}}, "branching.at: behind the gateway the first decisions branch"),
        (
            {"branching": {"roles": ["planner"]}},
            "branching.roles: behind the gateway each call is a decision",
        ),
        (
            {"branching": {"leaves": 3}},
            "branching.leaves: a group has schedule.episodes_per_task episodes, 8",
        ),
    ],
)
def test_branching_that_the_gateway_cannot_do_is_refused_in_one_line(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem) as found:
        load_tune_config(arguments={"branching": {"width": 2}, **settings})
    assert "\n" not in str(found.value)


@pytest.mark.promise("tuner:settings")
def test_a_swarm_refuses_to_branch(tmp_path: Path) -> None:
    config = load_tune_config(arguments={"branching": {}, "output_dir": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="branching: the states of clients can't be copied"):
        serve_run(config)


@pytest.mark.promise("tuner:branches")
async def test_a_tuning_branches_behind_the_process_of_its_gateway_in_forks_of_its_pool(
    tmp_path: Path,
) -> None:
    [task] = some_tasks(1)
    arguments = {
        "solve": "an:agent",
        "branching": {"width": 2},
        "episodes": {"available_tools": ["bash_run"], "max_workers": 4},
        "output_dir": str(tmp_path / "out"),
    }
    config, log, agent = load_tune_config(arguments=arguments), tmp_path / "log", ShellAgent()
    async with fake_endpoint(log=log) as url:
        context = RolloutContext(
            config=config,
            assignment=Assignment(tasks=[task], name="own", metric="exact_match"),
            models={POLICY: ModelSettings(name="any", base_url=url)},
            engine_ready=anyio.lowlevel.checkpoint,
            on_result=lambda result: None,
            accounts=Accounts(),
        )
        async with WorkflowRollouts(config, agent).open(context) as rollout:
            group = await rollout.group(TaskDraw(0, task), SIZE)
    assert [len(sample.calls) for sample in group.samples] == [4] * SIZE
    # Of four episodes with four calls, one shares its first call and two share their first two.
    assert len(calls_by_node(group.samples)) == 2 * (4 + 3 + 2 + 2) == log.read_text().count('{"token_ids"')
    assert all(shown == written for shown, written in agent.logs)
