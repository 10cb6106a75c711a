"""Judges give ended episodes their rewards; a failed judge is a failed reward, never 0."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from agentflow.errors import ConfigurationError, RunStopped, StopCause
from agentflow.gateway import EpisodeOutcome, PromptOrigin, RecordedCall
from agentflow.models import Message, TextPart
from agentflow.readers import (
    EnvironmentService,
    EnvironmentState,
    EnvironmentType,
    read_tasks,
    serve_environments,
)
from agentflow.scoring import Scored
from agentflow.trace import Task, Tokens
from agentflow.tuner.judges import (
    Judged,
    as_outcome,
    checked_outcome,
    make_judge,
)

TASK = Task(index=0, id="sum", question="2 + 2?", references=("4",))


def judged(
    answer: str | None = None,
    *,
    task: Task = TASK,
    reward: dict[str, float] | None = None,
    metrics: dict[str, float] | None = None,
    failure: str = "",
) -> Judged:
    outcome = EpisodeOutcome(answer=answer, reward=reward, metrics=metrics or {}, failure=failure)
    return Judged(task=task, outcome=outcome)


def message(role: Literal["user", "assistant"], text: str) -> Message:
    return Message(role, (TextPart(text),))


def recorded(
    id: str, said: str, *asked: str, parent: str = "", before: int = 0, agent: str = ""
) -> RecordedCall:
    return RecordedCall(
        id=id, agent=agent, dialect="chat", trained=True, delivered=True, origin=PromptOrigin.OPENING, parent=parent,
        before=before, messages=tuple(message("user", text) for text in asked), answer=message("assistant", said),
        tokens=Tokens(prompt=(1,), sampled=(2, 3), logprobs=(-0.1, -0.2)),
    )  # fmt: skip


@pytest.mark.promise("judges:judged")
def test_a_judge_sees_answer_transcript_and_tokens() -> None:
    calls = (
        recorded("c1", "a", "hello"),
        recorded("c2", "b", "more", parent="c1", before=2),
        recorded("w1", "howl", "who", agent="wolf"),
    )
    seen = Judged(task=TASK, calls=calls)
    texts = [part.text for turn in seen.transcript("") for part in turn.parts if isinstance(part, TextPart)]
    assert texts == ["hello", "a", "more", "b"]
    assert (seen.answer, len(seen.transcript()), len(seen.tokens()), len(seen.tokens("wolf"))) == (
        "howl",
        2,
        3,
        1,
    )
    assert seen.transcript("nobody") == () and Judged(task=TASK).answer == ""


@pytest.mark.promise("judges:workflow")
async def test_the_reward_of_the_workflow_stands() -> None:
    for spec in (None, "workflow", "exact_match", returns(9.0)):
        outcome = await make_judge(spec).judge(
            judged("5", reward={"wolf": -1.0, "seer": 2.5}, metrics={"turns": 3.0})
        )
        assert (outcome.reward, outcome.metrics, outcome.failure) == (
            {"wolf": -1.0, "seer": 2.5},
            {"turns": 3.0},
            "",
        )
    none = await make_judge("workflow").judge(judged("4"))
    assert (none.reward, none.failure) == (
        None,
        "workflow: the workflow returned no reward; return a number, or name a judge",
    )


@pytest.mark.promise("judges:metrics")
async def test_any_metric_is_a_judge() -> None:
    for spec, answer, reward in [
        (None, "4", 1.0),
        ("exact_match", "5", 0.0),
        ("numeric_match", "it is 4", 1.0),
    ]:
        outcome = await make_judge(spec).judge(judged(answer))
        assert (outcome.reward, outcome.answer, outcome.failure) == (reward, answer, "")
    unknown = await make_judge().judge(judged("4", task=Task(index=0, id="x", question="?")))
    assert unknown.reward is None and "the task has no reference answer" in unknown.failure
    with pytest.raises(ConfigurationError, match="did you mean exact_match"):
        make_judge("exact_mach")
    with pytest.raises(ConfigurationError, match="a model judges"):
        make_judge("llm_judgement")


def returns(value: object) -> Callable[..., object]:
    def score(answer: str, task: Task) -> object:
        return value

    return score


def told(value: object) -> Callable[..., object]:
    def score(judged: Judged) -> object:
        return value

    return score


def with_option(answer: str, task: Task, *, strict: bool = True) -> float:
    return 1.0 if strict else 0.0


FUNCTIONS: list[tuple[Callable[..., object], object]] = [
    (returns(-1), -1.0),
    (returns(2.5), 2.5),
    (told({"wolf": 1, "seer": -0.5}), {"wolf": 1.0, "seer": -0.5}),
    (returns(Scored(0.25)), 0.25),
    (told(EpisodeOutcome(reward=0.5, success=True)), 0.5),
    (with_option, 1.0),
]


@pytest.mark.promise("judges:functions")
@pytest.mark.parametrize(("function", "reward"), FUNCTIONS)
async def test_a_function_gives_any_finite_number(function: Callable[..., object], reward: object) -> None:
    outcome = await make_judge(function).judge(judged("5"))
    assert (outcome.reward, outcome.answer, outcome.failure) == (reward, "5", "")


@pytest.mark.promise("judges:functions")
async def test_a_coroutine_function_is_awaited_and_so_is_what_a_function_returns() -> None:
    async def later(answer: str, task: Task) -> float:
        return 0.25

    def soon(answer: str, task: Task) -> object:
        return later(answer, task)

    for function in (later, soon):
        assert (await make_judge(function).judge(judged("5"))).reward == 0.25


def raises(error: BaseException) -> Callable[..., object]:
    def judge(answer: str, task: Task) -> object:
        raise error

    return judge


GARBAGE: list[tuple[Callable[..., object], str]] = [
    (returns(math.nan), "nan is not a finite number"),
    (returns(-math.inf), "-inf is not a finite number"),
    (returns(10**400), "is not a finite number"),
    (returns(True), "True is no number; return 1.0 or 0.0"),
    (returns(None), "None is no outcome"),
    (returns("1.0"), "returned the text '1.0'"),
    (returns({"wolf": math.nan}), "reward of wolf: nan is not a finite number"),
    (returns({"wolf": True}), "reward of wolf: True is no number"),
    (returns({}), "is no outcome"),
    (told(EpisodeOutcome(reward=math.nan)), "nan is not a finite number"),
    (told(EpisodeOutcome(reward=1.0, metrics={"m": math.inf})), "reward of m: inf is not"),
    (told(EpisodeOutcome()), "gave no reward"),
    (raises(ValueError("no\nsuch table")), "ValueError: no such table"),
    (raises(KeyError("x")), "KeyError"),
]


@pytest.mark.promise("judges:failures")
@pytest.mark.parametrize(("function", "problem"), GARBAGE)
async def test_garbage_is_a_failure_of_the_reward_and_never_0(
    function: Callable[..., object], problem: str
) -> None:
    outcome = await make_judge(function).judge(judged("5", metrics={"turns": 2.0}))
    assert outcome.reward is None and outcome.metrics == {"turns": 2.0}
    assert problem in outcome.failure and "\n" not in outcome.failure


@pytest.mark.promise("judges:failures")
async def test_a_run_that_must_stop_is_no_failure_of_a_reward() -> None:
    with pytest.raises(RunStopped):
        await make_judge(raises(RunStopped(StopCause.SCORING, "stop"))).judge(judged("5"))
    failed = await make_judge(told(1.0)).judge(judged("5", failure="the client crashed"))
    assert (failed.reward, failed.failure) == (None, "the client crashed")


@pytest.mark.promise("judges:sandbox")
async def test_a_judge_may_inspect_the_sandbox() -> None:
    def score(answer: str, task: Task, sandbox: object) -> float:
        return 1.0 if sandbox == "open" else -1.0

    judge = make_judge({"game": score, "default": "exact_match"})
    assert judge.needs_sandbox and not make_judge("exact_match").needs_sandbox
    task = Task(index=0, id="g", question="?", metadata={"source": "game"})
    assert (await judge.judge(Judged(task=task, sandbox="open"))).reward == 1.0


@pytest.mark.promise("judges:by_source")
async def test_each_source_has_its_judge() -> None:
    judge = make_judge({"openai/gsm8k": "numeric_match", "maze": returns(7.0)})

    async def reward(source: str, answer: str) -> object:
        task = Task(index=0, id="x", question="?", references=("4",), metadata={"source": source})
        return (await judge.judge(judged(answer, task=task))).reward

    assert [await reward("openai/gsm8k", "so 4"), await reward("maze", ""), await reward("nq", "4")] == [
        1.0,
        7.0,
        1.0,
    ]
    with pytest.raises(
        ConfigurationError, match="task x has source 'chess', and there are judges for openai/gsm8k, maze"
    ):
        await reward("chess", "4")
    named = make_judge("by_source", options={"chess": "exact_match"})
    assert (
        await named.judge(judged("4", task=Task(index=0, id="x", question="?", references=("4",))))
    ).reward == 1.0
    wrongs: list[dict[str, Any]] = [{}, {"a": "exact_mach"}, {"a": 3}]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            make_judge(wrong)


@pytest.mark.promise("judges:reasoning_gym")
async def test_tasks_of_reasoning_gym_are_judged_by_their_scorers() -> None:
    task = next(read_tasks("reasoning_gym:gcd?size=1&seed=3"))
    for judge in (make_judge(), make_judge("reasoning_gym"), make_judge({"reasoning_gym": "reasoning_gym"})):
        right = await judge.judge(judged(task.references[0], task=task))
        wrong = await judge.judge(judged("no idea", task=task))
        assert right.reward == 1.0 and isinstance(wrong.reward, float) and wrong.reward < 0.5


class Fixed:
    """Environment that is always worth 2.5."""

    def start(self) -> EnvironmentState:
        return EnvironmentState()

    def step(self, action: object) -> EnvironmentState:
        return EnvironmentState(done=True)

    def info(self) -> object:
        return None

    def evaluate(self) -> float:
        return 2.5

    def close(self) -> None:
        return None


@pytest.mark.promise("judges:environment")
async def test_an_environment_service_evaluates_its_instance() -> None:
    fixed = EnvironmentType(tasks=lambda split: ["1"], make=lambda task: Fixed())
    task = Task(
        index=0, id="1", question="?", metadata={"environment": {"env_type": "fixed", "task_id": "1"}}
    )
    async with serve_environments({"fixed": fixed}) as url, EnvironmentService(url) as service:
        judge = make_judge({"environment": {"url": url, "tries": 1}})
        async with service.open(task, keep=True) as world:
            await world.step({"role": "assistant", "content": "go"})
        assert (await judge.judge(judged(world.id, task=task))).reward == 2.5
        gone = await judge.judge(judged(world.id, task=task))
        assert gone.reward is None and "there is no instance" in gone.failure
        none = await judge.judge(judged(task=task))
        assert "the workflow returned no instance" in none.failure
    with pytest.raises(ConfigurationError, match="url"):
        make_judge({"environment": {"url": "localhost"}})


@pytest.mark.promise("judges:functions")
async def test_a_function_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_rewards.py").write_text(
        "async def close(answer, task):\n    return 0.5\nclass Thing:\n    pass\n"
    )
    outcome = await make_judge("own_rewards.py:close").judge(judged("x"))
    assert outcome.reward == 0.5
    for wrong, problem in [
        ("own_rewards.py:closed", "did you mean close"),
        ("own_rewards.py:Thing", "not a function"),
    ]:
        with pytest.raises(ConfigurationError, match=problem):
            make_judge(wrong)
    with pytest.raises(ConfigurationError, match="has no options"):
        make_judge("own_rewards.py:close", options={"a": 1})


def test_outcomes_are_read_from_results() -> None:
    assert as_outcome("text") == EpisodeOutcome(answer="text")
    assert checked_outcome(EpisodeOutcome(reward=-1.0)).reward == -1.0
