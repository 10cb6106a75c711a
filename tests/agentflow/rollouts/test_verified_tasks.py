"""Rollouts of verified tasks: each is scored by its own verifier, in real sandboxes."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from agentflow.engine import GrowthSettings, Prepare
from agentflow.errors import ConfigurationError
from agentflow.journal import MemoryPage, Page
from agentflow.learner._group_rollout import GroupRollout, GroupSettings
from agentflow.learner._groups import TaskDraw
from agentflow.rollouts import RolloutConfig, RolloutRun, RolloutSummary, assign
from agentflow.rollouts.benchmarks import load_tasks
from agentflow.sandbox import Sandbox, SandboxSettings
from agentflow.scoring import make_metric
from agentflow.synthesis import TASKS
from agentflow.synthesis._attempts import Triage
from agentflow.synthesis._config import DifficultySettings
from agentflow.synthesis._files import task_record
from agentflow.synthesis._tasks import derive_tasks, measure_difficulty
from agentflow.tasks import (
    TaskAttempt,
    TaskVerifiers,
    TerminalState,
    VerifiableTask,
    open_task_verifiers,
    rollout_task,
    verifiable_task,
)
from agentflow.trace import (
    Ending,
    Episode,
    NextStep,
    Solution,
    Task,
    TaskVerdict,
    Turn,
)
from tests.agentflow.rollouts._rollouts import lines
from tests.agentflow.synthesis import test_solution_tasks, test_tasks
from tests.agentflow.synthesis._runs import run_to_the_end as synthesise
from tests.agentflow.tasks._sight import serve_model
from tests.agentflow.tasks._trees import Workshop, workshop

SMALL = GrowthSettings(max_depth=3, branching_factor=2, depth_threshold=2)


class Player:
    """A model that makes the actions of an attempt, and gives its answer; or one that only gives another answer."""

    def __init__(self, tasks: list[VerifiableTask], *, solves: bool) -> None:
        self._tasks = {task.instruction: task for task in tasks}
        self._solves = solves

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request."""
        body = cast("dict[str, Any]", json.loads(await request.read()))
        asked = json.dumps(body["messages"])
        task = next(own for text, own in self._tasks.items() if json.dumps(text)[1:-1] in asked)
        done = sum(len(message.get("tool_calls") or ()) for message in body["messages"])
        # A program is the solution of a task about data; an agent answers with the value.
        acts = task.gold.actions if self._solves and "answer" not in task.metadata else ()
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if done < len(acts):
            action = acts[done]
            call = {"name": action.tool, "arguments": json.dumps(action.arguments)}
            message["tool_calls"] = [{"id": f"call_{done}", "type": "function", "function": call}]
        else:
            right = str(task.metadata.get("answer") or task.gold.answer or "done")
            message["content"] = right if self._solves else "42"
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
        )


async def derived(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, RolloutConfig]:
    """Derive tasks by a synthesis without a model; return their file, and the settings of a rollout of them."""
    if name in test_tasks.SEEDS:
        config = test_tasks.settings_of(name, folder / "out", "model_name=offline")
        seed = test_tasks.SEEDS[name]
    else:
        config = test_solution_tasks.settings_of(name, folder, monkeypatch, "model_name=offline")
        seed = test_solution_tasks.SEED
    await synthesise(config, [seed])
    shared = {
        field: getattr(config, field)
        for field in ("available_tools", "resource_types", "resource_init_configs")
    }
    return folder / "out" / TASKS, RolloutConfig.model_validate(
        {**shared, "agent": "single", "max_turns": 20}
    )


def tasks_in(file: Path) -> list[VerifiableTask]:
    """Return the tasks in a file."""
    return [msgspec.json.decode(line, type=VerifiableTask) for line in file.read_bytes().splitlines()]


async def play(
    config: RolloutConfig, file: Path, folder: Path, *, solves: bool
) -> tuple[RolloutSummary, list[dict[str, Any]]]:
    """Roll out the tasks of a file with a player."""
    known = tasks_in(file)
    async with serve_model(Player(known, solves=solves).answer) as url:
        model = {"model_name": "player", "base_url": url, "api_key": "x", "output_dir": str(folder)}
        chosen = RolloutConfig.model_validate(
            {**config.model_dump(exclude_unset=True), **model, "data_path": str(file)}
        )
        summary = await RolloutRun(chosen).run(assign(chosen))
    return summary, lines(folder, "results.jsonl")


async def check_rollouts(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roll out tasks of a kind; only the attempt that solves them is right."""
    file, config = await derived(name, folder, monkeypatch)
    summary, results = await play(config, file, folder / "right", solves=True)
    assert summary.metric == "verifier"
    assert summary.score == 1.0, results
    assert summary.tasks == len(tasks_in(file)) > 0
    summary, results = await play(config, file, folder / "wrong", solves=False)
    assert summary.score == 0.0
    assert all(result["reason"] for result in results)


@pytest.mark.promise("rollout:verified")
@pytest.mark.parametrize("name", ["text2sql", "terminal"])
async def test_tasks_of_a_synthesis_are_scored_by_their_own_verifier(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_rollouts(name, tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.promise("rollout:verified")
@pytest.mark.parametrize("name", ["data_analysis", "embodied"])
async def test_tasks_of_other_kinds_are_scored_by_their_own_verifier(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_rollouts(name, tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.promise("tasks:difficulty")
@pytest.mark.parametrize("name", ["text2sql", "terminal"])
async def test_a_synthesis_writes_the_difficulty_of_its_tasks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = await derived(name, tmp_path, monkeypatch)
    known = tasks_in(file)
    async with serve_model(Player(known, solves=True).answer) as url:
        agent = f"agent_model={{model_name: player, base_url: {url!r}, api_key: x}}"
        more = ("model_name=offline", "difficulty={attempts: 2, window: [0, 1], max_turns: 20}", agent)
        if name in test_tasks.SEEDS:
            config = test_tasks.settings_of(name, tmp_path / "tried", *more)
            seed = test_tasks.SEEDS[name]
        else:
            config = test_solution_tasks.settings_of(name, tmp_path, monkeypatch, *more, out="tried")
            seed = test_solution_tasks.SEED
        _, report = await synthesise(config, [seed])
    tried = tasks_in(tmp_path / "tried" / TASKS)
    assert [task.instruction for task in tried] == [task.instruction for task in known]
    assert all(task.difficulty is not None and task.difficulty["correct"] == 2 for task in tried)
    assert report.pass_rates == {"2/2": len(tried)}
    assert len(lines(tmp_path / "tried", "attempts.jsonl")) == 2 * len(tried)


class Bench(NamedTuple):
    """A task with everything that verifies it."""

    task: Task
    base: Sandbox
    verifiers: TaskVerifiers
    shop: Workshop


async def gold(task: Task, sandbox: Sandbox, page: Page, prepare: Prepare | None) -> Episode:
    """Make the actions of the solution; those on the page are not repeated."""
    own = verifiable_task(task)
    assert own is not None
    assert prepare is not None
    turns: list[Turn] = []
    for number, action in enumerate(own.gold.actions, 1):
        if f"{number}/act" not in page:
            await sandbox.execute(action.tool, action.arguments)
            await page.record(f"{number}/act", True)
        turns.append(Turn(number=number, step=NextStep("", "", "", action.tool), action=action, result=""))
    answer = Solution("", "done")
    return Episode(task=task, agent="single", ending=Ending.ANSWERED, turns=tuple(turns), solution=answer)


async def idle(task: Task, sandbox: Sandbox, page: Page, prepare: Prepare | None) -> Episode:
    """Claim that it is done."""
    del sandbox, page, prepare
    return Episode(task=task, agent="single", ending=Ending.ANSWERED, solution=Solution("", "done"))


@pytest.fixture(scope="module")
async def terminal(
    anyio_backend: Literal["asyncio"], tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Bench]:
    """A task of a terminal as a rollout reads it, the sandbox of the run, and its verifiers."""
    settings = SandboxSettings(backends=["bash"])
    async with workshop(TerminalState(), settings, ["bash_run"], SMALL, most=1) as shop:
        [derived_task] = await shop.tasks(0)
        file = tmp_path_factory.mktemp("tasks") / TASKS
        file.write_bytes(msgspec.json.encode(task_record(derived_task)))
        [task] = load_tasks(file)
        tools = await shop.base.tools("bash_run")
        async with open_task_verifiers({"terminal"}, shop.base, tools, settings) as verifiers:
            yield Bench(task, shop.base, verifiers, shop)


@pytest.mark.promise("rollout:verified:resumed")
async def test_the_verdict_on_a_resumed_episode_is_that_on_its_actions(
    terminal: Bench,
) -> None:
    task, base, verifiers, _ = terminal
    own = verifiable_task(task)
    assert own is not None
    begun = len(own.gold.actions) // 2
    for done in (0, begun, len(own.gold.actions)):
        page = MemoryPage()
        for number in range(1, done + 1):
            await page.record(f"{number}/act", True)
        async with await base.fork() as sandbox:
            episode = await verifiers.run(task, sandbox, page, gold)
        assert episode.verdict == TaskVerdict(passed=True), done
        async with await base.fork() as sandbox:
            again = await verifiers.run(task, sandbox, page, gold)
        assert again == episode
    async with await base.fork() as sandbox:
        failed = (await verifiers.run(task, sandbox, MemoryPage(), idle)).verdict
    assert failed is not None
    assert not failed.passed
    assert not failed.error


class Failing:
    """Verifier that fails the first time."""

    name = "document"

    def __init__(self) -> None:
        self._verdicts = [TaskVerdict(passed=True), TaskVerdict(passed=False, error="down")]

    async def verify(
        self, task: VerifiableTask, attempt: TaskAttempt, session: Sandbox | None = None
    ) -> TaskVerdict:
        """Fail, then pass."""
        return self._verdicts.pop()


@pytest.mark.promise("rollout:verified:resumed")
async def test_a_verifier_that_failed_is_asked_again(terminal: Bench) -> None:
    own = verifiable_task(terminal.task)
    assert own is not None
    task, page = rollout_task(replace(own, kind="document")), MemoryPage()
    verifiers = TaskVerifiers({"document": Failing()})
    for error, passed in (("down", False), ("", True), ("", True)):
        verdict = (await verifiers.run(task, terminal.base, page, idle)).verdict
        assert verdict is not None
        assert (verdict.error, verdict.passed) == (error, passed)


@pytest.mark.promise("rollout:verified:trained")
async def test_the_verdict_is_the_reward_of_an_episode(terminal: Bench) -> None:
    task, base, verifiers, _ = terminal

    class Runner:
        metric = make_metric("verifier")
        solve = staticmethod(gold)

        async def play(
            self, task: Task, seed: str, *, temperature: float | None = None, max_turns: int | None = None
        ) -> Episode:
            async with await base.fork() as sandbox:
                return await verifiers.run(task, sandbox, MemoryPage(), self.solve)

    runner = Runner()
    rewards: list[float] = []
    rollout = GroupRollout(
        runner,
        GroupSettings(trained=("agent",), temperature=1.0, tries=1),
        on_result=lambda result: rewards.append(result.reward),
    )
    await rollout.group(TaskDraw(0, task), 1)
    runner.solve = staticmethod(idle)
    await rollout.group(TaskDraw(1, task), 1)
    assert rewards == [1.0, 0.0]


class Trier:
    """Solves the first attempts at a task, as many as it is told to."""

    def __init__(self, bench: Bench, right: int) -> None:
        self._bench = bench
        self._right = right
        self.tried = 0

    async def attempt_task(self, task: VerifiableTask, page: Page) -> Episode:
        """Try a task in a sandbox of its own."""
        self.tried += 1
        solve = gold if self.tried <= self._right else idle
        async with await self._bench.base.fork() as sandbox:
            return await self._bench.verifiers.run(rollout_task(task), sandbox, page, solve)


@pytest.mark.promise("tasks:difficulty")
async def test_attempts_measure_the_difficulty_of_a_task(terminal: Bench) -> None:
    derived = await derive_tasks(await terminal.shop.grow(0), terminal.shop.kind, Page())
    settings = DifficultySettings(attempts=2)
    for right, reasons in ((0, [Triage.NEVER_SOLVED]), (1, []), (2, [Triage.ALWAYS_SOLVED])):
        trier, page = Trier(terminal, right), Page()
        result = await measure_difficulty(derived, settings, page, trier)
        assert [one.reason for one in result.triaged_tasks] == reasons
        [task] = [*result.tasks, *(one.task for one in result.triaged_tasks)]
        assert task.difficulty is not None
        assert (task.difficulty["attempts"], task.difficulty["rate"]) == (2, right / 2)
        low, high = task.difficulty["interval"]
        assert 0 <= low <= right / 2 <= high <= 1
        assert high - low > 0.5
        assert (task.difficulty["turns"] > 0) is (right > 0)
        assert [own.pair for own in result.attempts] == [one.id for one in result.tasks]
        trier.tried = 0
        assert await measure_difficulty(derived, settings, page, trier) == result


@pytest.mark.promise("rollout:verified:refused")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "cooking"}, "task t1: cooking has no verifier here: use gui, terminal, embodied, "),
        ({"verifier": 7}, "task t1: can't be verified: Expected `array`, got `int` - at `$.verifier`"),
    ],
)
def test_tasks_that_can_not_be_verified_are_refused_in_one_line(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    row = {
        "id": "t1",
        "kind": "document",
        "instruction": "What is it?",
        "setup": {"tools": ["x"]},
        "gold": {"name": "gold", "answer": "5"},
        "verifier": [],
        "wrong": [{"name": "no_op"}],
        "tree_id": "tree",
        "source_id": "seed",
        "answer": "5",
        **change,
    }
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row), encoding="utf-8")
    own = {"data_path": str(tmp_path / "tasks.jsonl"), "model_name": "x", "agent": "single"}
    with pytest.raises(ConfigurationError) as refused:
        assign(RolloutConfig.model_validate(own))
    assert str(refused.value).startswith(message)
    # Another metric needs no verifier.
    assert (
        assign(RolloutConfig.model_validate({**own, "evaluation_metric": "exact_match"})).verified
        == frozenset()
    )
