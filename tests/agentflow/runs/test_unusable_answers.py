"""Models whose answers can't be used: their seeds and tasks stay unfinished, and the same command tries again."""

import json
import re
import sqlite3
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
import pytest
from aiohttp import web

from agentflow.errors import RunStopped, StopCause, WorkPostponed
from agentflow.journal import NewSeed, Page, open_journal
from agentflow.rollouts import RESULTS, RolloutRun
from agentflow.runs import AnswerGuard, RoleReplies
from agentflow.synthesis.pipeline import SynthesisRun
from agentflow.testing.endpoint._server import EndpointConfig, FakeEndpoint
from agentflow.trace import Failure
from tests.agentflow.cli._programs import environment
from tests.agentflow.rollouts import _rollouts
from tests.agentflow.runs.test_outages import Files, seeds
from tests.agentflow.synthesis import _runs

REQUESTED = re.compile(rb'"json_schema","json_schema":\{"name":"(\w+)"|JSON schema of `(\w+)`')
BANANA = "Sure! Here is a banana."


class Unusable(msgspec.Struct, frozen=True):
    """An answer that can't be used."""

    text: str
    finish: str = "stop"


ANSWERS = {
    "banana": Unusable(BANANA),
    "braces": Unusable("{}"),
    "empty": Unusable(""),
    "cut": Unusable('{"proposals": [{"intent": "I begin with', "length"),
}

Choice: TypeAlias = Callable[[str, bytes], Unusable | None]
"""Returns the answer to a request for a type, given its body; `None` leaves it to the fake model."""


class MoodyEndpoint:
    """The fake endpoint, some of whose answers can't be used."""

    def __init__(self) -> None:
        self.url = ""
        self.choose: Choice = lambda name, body: None
        self.requests = 0
        self._fake = FakeEndpoint(EndpointConfig(tool_turns=1))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        body = await request.content.read()
        named = REQUESTED.search(body)
        name = (named[1] or named[2]).decode() if named else ""
        if (answer := self.choose(name, body)) is None:
            return await self._fake.handle(request, body)
        message = {"role": "assistant", "content": answer.text}
        choice = {"index": 0, "message": message, "finish_reason": answer.finish}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 9}})


@asynccontextmanager
async def moody_endpoint() -> AsyncGenerator[MoodyEndpoint]:
    """Serve it in this process."""
    endpoint = MoodyEndpoint()
    runner = web.ServerRunner(web.Server(endpoint.handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address: tuple[str, int] = runner.addresses[0]
    endpoint.url = f"http://127.0.0.1:{address[1]}/v1"
    try:
        yield endpoint
    finally:
        await runner.cleanup()


async def grow(
    folder: Path, url: str, *, count: int = 1, depth: int = 2, retry_failed: bool = False
) -> Files:
    config = _runs.config_for(
        folder, available_tools=["rag_search"], max_depth=depth, model_name="fake", base_url=url
    )
    run = SynthesisRun(config, retry_failed=retry_failed)
    await run.run([NewSeed(seed) for seed in seeds(count)])
    return _runs.contents(folder)


async def solve(
    folder: Path, url: str, *, count: int = 1, agent: str = "team", retry_failed: bool = False
) -> Files:
    named = {"available_tools": ["rag_search"], "model_name": "fake", "base_url": url, "agent": agent}
    config = _rollouts.config_for(folder, evaluation_metric="exact_match", **named)
    run = RolloutRun(config, retry_failed=retry_failed)
    await run.run(_rollouts.assigned(config, _rollouts.some_tasks(count)))
    return _rollouts.contents(folder, RESULTS)


@pytest.mark.promise("supervisor:unusable")
@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_synthesis_without_usable_answers_ends_after_three_seeds(kind: str, tmp_path: Path) -> None:
    async with moody_endpoint() as endpoint:
        endpoint.choose = lambda name, body: ANSWERS[kind]
        with pytest.raises(RunStopped) as stopped:
            await grow(tmp_path, endpoint.url, count=3)
    assert stopped.value.cause is StopCause.MODEL
    message = stopped.value.message
    assert re.fullmatch(
        "3 of 3 seeds are left: planner: no usable answer from fake: the answer .*"
        "nor for any of 3 seeds so far: .*, then run the same command to resume",
        message,
    )
    assert kind not in ("banana", "braces") or repr(ANSWERS[kind].text) in message


@pytest.mark.promise("rollout:unusable")
@pytest.mark.parametrize(
    ("agent", "role", "kind"), [("team", "analyst", "banana"), ("single", "agent", "cut")]
)
async def test_a_task_without_a_usable_answer_is_left_and_the_same_command_asks_again(
    agent: str, role: str, kind: str, tmp_path: Path
) -> None:
    async with moody_endpoint() as endpoint:
        undisturbed = await solve(tmp_path / "undisturbed", endpoint.url, agent=agent)
        endpoint.choose = lambda name, body: ANSWERS[kind]
        for _ in range(2):
            endpoint.requests = 0
            with pytest.raises(RunStopped, match=f"1 of 1 task is left: {role}: no usable answer from fake"):
                await solve(tmp_path / "run", endpoint.url, agent=agent)
            assert endpoint.requests
        endpoint.choose = lambda name, body: None
        assert await solve(tmp_path / "run", endpoint.url, agent=agent) == undisturbed


@pytest.mark.promise("rollout:unusable")
async def test_a_task_without_a_usable_answer_counts_as_failed_once_another_is_finished(
    tmp_path: Path,
) -> None:
    def fails_on_the_second(_name: str, body: bytes) -> Unusable | None:
        return ANSWERS["cut"] if _rollouts.some_tasks(2)[1].question.encode() in body else None

    async with moody_endpoint() as endpoint:
        endpoint.choose = fails_on_the_second
        files = await solve(tmp_path, endpoint.url, count=2, agent="single")
    answered, failed = map(msgspec.json.decode, files[RESULTS].splitlines())
    assert (answered["success"], failed["success"]) == (True, False)
    assert failed["failure"]["kind"] == "too_long"


@pytest.mark.promise("supervisor:unusable")
async def test_a_seed_without_a_usable_answer_of_one_role_stays_open_and_keeps_its_tree(
    tmp_path: Path,
) -> None:
    async with moody_endpoint() as endpoint:
        undisturbed = await grow(tmp_path / "undisturbed", endpoint.url)
        endpoint.choose = lambda name, body: ANSWERS["banana"] if name == "questionproposal" else None
        with pytest.raises(RunStopped, match=r"1 of 1 seed is left: generator: no usable answer"):
            await grow(tmp_path / "run", endpoint.url)
        requested: list[str] = []
        endpoint.choose = lambda name, body: requested.append(name)
        assert await grow(tmp_path / "run", endpoint.url) == undisturbed
        assert "questionproposal" in requested
        assert "plan" not in requested, "the trees are kept"


@pytest.mark.promise("supervisor:unusable")
async def test_a_learner_without_usable_answers_costs_only_its_label(tmp_path: Path) -> None:
    async with moody_endpoint() as endpoint:
        endpoint.choose = lambda name, body: ANSWERS["banana"] if name == "recalled" else None
        files = await grow(tmp_path / "run", endpoint.url)
    pairs = [json.loads(line) for line in files["synthesized_qa.jsonl"].splitlines()]
    assert pairs
    assert not any("known" in pair["metadata"] for pair in pairs)


@pytest.mark.promise("supervisor:unusable")
async def test_single_unusable_answers_among_usable_ones_are_data(tmp_path: Path) -> None:
    async with moody_endpoint() as endpoint:
        planned: list[bytes] = []

        def choose(name: str, body: bytes) -> Unusable | None:
            if name != "plan":
                return None
            planned.append(body)
            return ANSWERS["banana"] if len(planned) > 1 else None

        endpoint.choose = choose
        await grow(tmp_path / "run", endpoint.url)
        with closing(sqlite3.connect(tmp_path / "run" / "journal.db")) as journal:
            results = [json.loads(body) for (body,) in journal.execute("SELECT body FROM agentflow_harvests")]
        (result,) = results
        assert result["model_failures"]["garbage"] >= 1
        assert len(result["tree"]["nodes"]) > 1


@pytest.mark.promise("supervisor:unusable:retry")
async def test_seeds_that_gave_nothing_because_of_unusable_answers_are_tried_again_on_request(
    tmp_path: Path,
) -> None:
    async with moody_endpoint() as endpoint:
        undisturbed = await grow(tmp_path / "undisturbed", endpoint.url)
        endpoint.choose = lambda name, body: ANSWERS["braces"] if name == "readings" else None
        failed = await grow(tmp_path / "run", endpoint.url)
        assert failed != undisturbed
        endpoint.choose = lambda name, body: None
        assert await grow(tmp_path / "run", endpoint.url, retry_failed=True) == undisturbed
        endpoint.requests = 0
        assert await grow(tmp_path / "run", endpoint.url, retry_failed=True) == undisturbed
        assert not endpoint.requests, "seeds that ended regularly stay as they are"


@pytest.mark.promise("rollout:unusable:retry")
@pytest.mark.parametrize(("answer", "again"), [(Unusable(""), True), (Unusable("", "content_filter"), False)])
async def test_tasks_that_failed_for_a_reason_that_may_pass_are_tried_again_on_request(
    answer: Unusable, again: bool, tmp_path: Path
) -> None:
    async with moody_endpoint() as endpoint:
        undisturbed = await solve(tmp_path / "undisturbed", endpoint.url, agent="single")
        # The first call is a tool call, so the agent was usable.
        endpoint.choose = lambda name, body: answer if b'"role":"tool"' in body else None
        failed = await solve(tmp_path / "run", endpoint.url, agent="single")
        assert failed[RESULTS].count(b'"success":false') == 1
        endpoint.choose = lambda name, body: None
        result = await solve(tmp_path / "run", endpoint.url, agent="single", retry_failed=True)
        assert result == (undisturbed if again else failed)


@pytest.mark.promise("supervisor:unusable")
async def test_a_killed_process_with_only_unusable_answers_on_a_page_asks_again(tmp_path: Path) -> None:
    asked: list[bool] = []

    async def work(page: Page) -> tuple[str, RoleReplies]:
        async def ask() -> Failure | None:
            asked.append(True)
            return Failure("garbage", "the answer is empty") if len(asked) == 1 else None

        replies = RoleReplies()
        replies.add("planner", await page.once("plan/root/0", Failure | None, ask))  # pyright: ignore[reportArgumentType]
        return "grown", replies

    async with open_journal(f"sqlite:///{tmp_path / 'journal.db'}") as journal:
        run = await journal.open_run("test", {})
        (seed,) = await run.add_seeds([NewSeed("Who?")])
        await work(await run.open_page(seed))
        assert await AnswerGuard().work(run, seed, work, lambda _: ()) == "grown"
        assert len(asked) == 2


@pytest.mark.promise("supervisor:unusable")
async def test_a_role_that_answered_before_never_ends_the_run(tmp_path: Path) -> None:
    async def work(page: Page) -> tuple[str, RoleReplies]:
        replies = RoleReplies()
        replies.add("planner", Failure("garbage", "the answer is empty"))
        await page.note("plan/root/0", "asked")
        return "", replies

    async with open_journal(f"sqlite:///{tmp_path / 'journal.db'}") as journal:
        run = await journal.open_run("test", {})
        added = await run.add_seeds([NewSeed(str(number)) for number in range(5)])
        answered: set[str] = set()
        guard = AnswerGuard(answered=answered)
        for seed in added:
            with pytest.raises(RunStopped) as stopped:
                await guard.work(run, seed, work, lambda _: ())
            ends = seed.index == 2
            assert isinstance(stopped.value, WorkPostponed) != ends
            if ends:
                answered.add("planner")


@pytest.mark.promise("supervisor:unusable")
@pytest.mark.promise("supervisor:unusable:retry")
async def test_the_command_line_ends_with_3_and_finishes_with_a_better_model(tmp_path: Path) -> None:
    async with moody_endpoint() as endpoint:
        endpoint.choose = lambda name, body: ANSWERS["banana"]
        words = (
            "synth", f"base_url={endpoint.url}", "model_name=fake", "output_dir=out", "number_of_seed=2",
            "max_depth=2", "control=false",
        )  # fmt: skip
        command = [sys.executable, "-m", "agentflow.cli", *words, "--retry-failed"]

        async def run() -> tuple[int, str]:
            with anyio.fail_after(120):
                done = await anyio.run_process(command, cwd=tmp_path, env=environment(), check=False)
            return done.returncode, done.stderr.decode() + done.stdout.decode()

        status, output = await run()
        assert status == 3, output
        assert "agentflow: 2 of 2 seeds are left: planner: no usable answer from fake" in output
        endpoint.choose = lambda name, body: None
        status, output = await run()
        assert status == 0, output
