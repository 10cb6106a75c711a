"""A search strategy and an agent of the user's own, each in a few lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentflow.engine import (
    AgentWork,
    EpisodeEngine,
    EpisodeSettings,
    Grower,
    OpenEpisode,
    OpenNode,
    turn_of,
)
from agentflow.errors import ConfigurationError
from agentflow.models import Model
from agentflow.rollouts import arollout, load_rollout_config, make_agent
from agentflow.sandbox import Sandbox
from agentflow.team import call_tool
from agentflow.trace import (
    Action,
    ActionOutcome,
    BlobStore,
    Ending,
    MemoryBlobStore,
    NextStep,
    Reply,
    Solution,
)
from tests.agentflow.engine._functions import SEED, PlanBy, fresh_page, grower, stateful_plan
from tests.agentflow.team._model import FunctionModel, unasked
from tests.agentflow.team._solving import TASK, Book, Diary


class Beam:
    """Search that keeps the two nodes of each round with the longest texts; both grow two children."""

    width = 4

    def choose(self, frontier: Sequence[OpenNode]) -> list[tuple[OpenNode, int]]:
        by_length = sorted(frontier, key=lambda candidate: len(candidate.node.text), reverse=True)
        best = [candidate.path for candidate in by_length[:2] if candidate.node.depth < 3]
        return [(candidate, 2 if candidate.path in best else 0) for candidate in frontier]


@pytest.mark.promise("engine:search")
async def test_a_search_of_the_users_own_chooses_the_nodes_that_grow() -> None:
    journal: dict[str, bytes] = {}
    async with grower(PlanBy(stateful_plan)) as growing:
        beam = _with(growing, Beam)
        tree = await beam.grow(SEED, fresh_page(journal))
        planner = PlanBy(stateful_plan)
        again = await _with(growing, Beam, planner).grow(SEED, fresh_page(journal))
    assert [sum(node.depth == depth for node in tree.nodes) for depth in range(5)] == [1, 2, 4, 4, 0]
    assert again == tree and not planner.requests


class BestFirst:
    """Search that grows one node at a time, the deepest first, and leaves the others open."""

    width = 8

    def choose(self, frontier: Sequence[OpenNode]) -> list[tuple[OpenNode, int]]:
        deepest = max(frontier, key=lambda candidate: candidate.node.depth)
        return [(deepest, 2)] if deepest.node.depth < 3 else []


@pytest.mark.promise("engine:search")
async def test_a_search_may_leave_nodes_open_for_later_rounds() -> None:
    async with grower(PlanBy(stateful_plan)) as growing:
        tree = await _with(growing, BestFirst).grow(SEED, fresh_page())
    assert [node.depth for node in tree.nodes] == [0, 1, 1, 2, 2, 3, 3]
    # Each observation depends on its path alone, although siblings grew in other rounds.
    assert all(node.text for node in tree.nodes[1:])


class Stray:
    """Search that returns a node of another tree."""

    width = 1

    def choose(self, frontier: Sequence[OpenNode]) -> list[tuple[OpenNode, int]]:
        [node] = frontier
        return [(OpenNode(node.path, node.node, node.steps, node.state), 1)]


@pytest.mark.promise("engine:search")
async def test_a_search_that_returns_another_node_is_refused() -> None:
    async with grower(PlanBy(stateful_plan)) as growing:
        with pytest.raises(ConfigurationError, match=r"^search: `choose` may only return nodes"):
            await _with(growing, Stray).grow(SEED, fresh_page())


@dataclass
class Looker:
    """Agent without a model: it looks at the task's subject once, and answers with what it sees."""

    blobs: BlobStore
    name = "looker"

    def begin(self, episode: OpenEpisode) -> AgentWork:
        return Looking(episode)

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        return await call_tool(sandbox, action, self.blobs)


@dataclass
class Looking:
    """One episode of it."""

    episode: OpenEpisode

    async def work(self) -> Ending:
        action, failure = self.episode.bind("diary_look", {"what": "1871"})
        assert action is not None and failure is None
        timed = await self.episode.act("1/act", 1, action)
        step = NextStep("Look.", "", "", action.tool)
        text = timed.value.observation.text
        self.episode.turns.append(turn_of(1, step, action, timed.value, text, timed.seconds))
        return Ending.ANSWERED

    async def answer(self) -> Reply[Solution]:
        return Reply(Solution("", self.episode.turns[-1].result.removeprefix("One sees ").rstrip(".")))


def looker(model: Model, blobs: BlobStore) -> Looker:
    """Make one; `agent: tests.agentflow.engine.test_extending:looker` names this function."""
    return Looker(blobs)


@pytest.mark.promise("engine:agent")
async def test_an_agent_of_the_users_own_runs_episodes_that_resume() -> None:
    agent = make_agent(f"{__name__}:looker", FunctionModel(unasked), MemoryBlobStore())
    book, diary = Book(), Diary()
    async with Sandbox(backends=[diary]) as sandbox:
        tools = await sandbox.tools("diary_look")
        engine = EpisodeEngine(agent=agent, tools=tools, settings=EpisodeSettings())
        episode = await engine.solve(TASK, sandbox, book.open())
        again = await engine.solve(TASK, sandbox, book.open())
    assert (episode.agent, episode.answer, episode.ending) == ("looker", "1871", "answered")
    assert again == episode and diary.calls == ["1871"]


@dataclass
class Searcher(Looker):
    """Agent that searches the documents with the question and answers with the first result."""

    name = "searcher"

    def begin(self, episode: OpenEpisode) -> AgentWork:
        return Searching(episode)


class Searching(Looking):
    """One episode of it."""

    async def work(self) -> Ending:
        action, _ = self.episode.bind("rag_search", {"query": self.episode.task.question, "top_k": 1})
        assert action is not None
        timed = await self.episode.act("1/act", 1, action)
        text = timed.value.observation.text
        step = NextStep("Search.", "", "", action.tool)
        self.episode.turns.append(turn_of(1, step, action, timed.value, text, timed.seconds))
        return Ending.ANSWERED


def searcher(model: Model, blobs: BlobStore) -> Searcher:
    """Make one."""
    return Searcher(blobs)


@pytest.mark.promise("engine:agent")
async def test_a_rollout_runs_an_agent_of_the_users_own(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "In which year was Skyreach Observatory founded?", "answer": "1709"}\n')
    record = await arollout(
        data_path=str(tasks),
        output_dir=str(tmp_path / "out"),
        agent=f"{__name__}:searcher",
        available_tools=["rag_search"],
        evaluation_metric="contains_answer",
    )
    summary = record["summary"]
    assert (summary["agent"], summary["tasks"], summary["score"]) == (f"{__name__}:searcher", 1, 1.0)


def nothing(model: Model, blobs: BlobStore) -> None:
    """Return no agent."""


@pytest.mark.promise("engine:agent")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (f"{__name__}:nothing", "agent: .*:nothing returns no agent: it needs `name`, `begin` and `act`"),
        (f"{__name__}:TASK", "agent: .*:TASK is not a function"),
        (f"{__name__}:lookr", ".*:lookr: .* has no lookr"),
    ],
)
def test_a_setting_that_names_no_agent_is_refused(name: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{problem}"):
        make_agent(name, FunctionModel(unasked), MemoryBlobStore())


@pytest.mark.promise("engine:agent")
def test_an_unknown_agent_is_refused_before_anything_begins(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="there is no 'tema'; choose team, single or module:function"
    ):
        load_rollout_config(overrides=["agent=tema", f"output_dir={tmp_path}"])


def _with(growing: Grower, search: type[Beam | BestFirst | Stray], planner: PlanBy | None = None) -> Grower:
    return Grower(
        growing.settings,
        run=growing.run,
        planner=planner or growing.planner,
        executor=growing.executor,
        verifier=growing.verifier,
        sandboxes=growing.sandboxes,
        search=search,
    )
