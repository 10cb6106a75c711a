"""Episodes of a team: calls, repairs, and failures that do not end them."""

import pytest

from agentflow.errors import ModelFailure, ModelFailureKind, RunStopped, StopCause
from agentflow.models import Call, Message, TextPart
from agentflow.trace import (
    Action,
    Assessment,
    Command,
    CommandRequest,
    Decision,
    Ending,
    Failure,
    NextStep,
    NextStepRequest,
    SolutionRequest,
    Task,
    Tokens,
    Usage,
    VerificationRequest,
)
from tests.agentflow.team._model import unasked
from tests.agentflow.team._solving import ANALYSIS, SOLUTION, STOP, TASK, Book, Diary, Script, roles, solved


def garbage(request: object) -> object:
    raise ModelFailure(ModelFailureKind.GARBAGE, "no JSON")


def text_of(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def unreachable(request: object) -> object:
    raise ModelFailure(ModelFailureKind.UNAVAILABLE, "nobody there")


@pytest.mark.promise("team:solve:calls")
async def test_a_task_takes_an_analysis_three_calls_per_turn_and_an_answer() -> None:
    episode, model = await solved(Script(turns=3))
    turn = ["planner", "executor", "verifier"]
    assert roles(model) == ["analyst", *turn * 3, "generator"]
    assert (episode.ending, episode.answer, episode.solution) == (Ending.VERIFIED, "1871", SOLUTION)
    assert episode.analysis == ANALYSIS
    assert [turn.result for turn in episode.turns][-1] == "line 1 (blue); line 2 (blue); line 3 (blue)"
    assert episode.turns[-1].decision == STOP
    assert episode.usage["planner"] == Usage(3, 300, 30)
    assert episode.calls == {"analyst": 1, "planner": 3, "executor": 3, "verifier": 3, "generator": 1}


@pytest.mark.promise("team:solve:merged")
async def test_a_planner_that_verifies_its_own_work_takes_two_calls_per_turn() -> None:
    episode, model = await solved(Script(turns=9), verify="merged", max_turns=3)
    assert roles(model) == ["analyst", *["planner", "executor"] * 3, "generator"]
    assert episode.ending is Ending.TURNS
    stopped, model = await solved(Script(turns=2), verify="merged", max_turns=9)
    assert roles(model) == ["analyst", *["planner", "executor"] * 2, "planner", "generator"]
    assert stopped.ending is Ending.VERIFIED
    assert stopped.turns[-1].decision == STOP


@pytest.mark.promise("team:solve:limits")
async def test_the_planner_sees_the_turns_left_and_the_last_turn_is_followed_by_an_answer() -> None:
    left: list[int] = []
    left_after: list[int] = []
    script = Script(turns=99)

    def answer(call: Call[object]) -> object:
        if isinstance(call.request, NextStepRequest):
            left.append(call.request.turns_left)
        if isinstance(call.request, VerificationRequest):
            left_after.append(call.request.turns_left)
        return script(call)

    episode, model = await solved(answer, max_turns=3)
    assert (left, left_after) == ([3, 2, 1], [2, 1, 0])
    verifying = [text_of(call.messages[-1]) for call in model.calls if call.role == "verifier"]
    assert [text.rpartition("Steps left: ")[2][0] for text in verifying] == ["2", "1", "0"]
    assert (episode.ending, episode.answer, len(episode.turns)) == (Ending.TURNS, "1871", 3)


@pytest.mark.promise("team:solve:calls")
@pytest.mark.parametrize(("tools", "turns"), [((), 5), (("diary_write",), 0)])
async def test_without_tools_or_turns_the_answer_follows_immediately(
    tools: tuple[str, ...], turns: int
) -> None:
    episode, model = await solved(Script(), tools=tools, max_turns=turns)
    assert roles(model) == ["analyst", "generator"]
    assert episode.answer == "1871"


@pytest.mark.promise("team:solve:repair")
async def test_invalid_arguments_are_rewritten_once_given_the_error() -> None:
    asked: list[CommandRequest] = []

    def command(request: CommandRequest) -> Command:
        asked.append(request)
        return Command("Write.", {"text": "door"} if request.mistake else {"txt": "door"})

    episode, _ = await solved(Script(turns=1, command=command))
    assert [bool(request.mistake) for request in asked] == [False, True]
    assert "argument 'text' is missing" in asked[1].mistake
    assert asked[1].before == Command("Write.", {"txt": "door"})
    assert episode.turns[0].action == Action("diary_write", {"text": "door"})
    assert episode.turns[0].result == "door (blue)"


@pytest.mark.promise("team:solve:repair")
async def test_arguments_rejected_by_the_tool_are_rewritten_only_once() -> None:
    diary = Diary()
    script = Script(turns=1, command=lambda _: Command("Write.", {"text": "unreadable"}))
    episode, model = await solved(script, diary=diary)
    assert diary.calls == ["unreadable", "unreadable"]
    assert episode.turns[0].failure == Failure("bad_arguments", "that can't be read")
    assert "that can't be read" in episode.turns[0].result
    assert roles(model).count("executor") == 2


@pytest.mark.promise("team:solve:failures")
async def test_any_other_failure_of_a_tool_is_a_result() -> None:
    diary = Diary()
    script = Script(turns=1, command=lambda _: Command("Write.", {"text": "forbidden"}))
    episode, _ = await solved(script, diary=diary)
    assert diary.calls == ["forbidden"]
    assert episode.turns[0].failure == Failure("denied", "that may not be written")
    assert episode.ending is Ending.VERIFIED


@pytest.mark.promise("team:solve:failures")
async def test_an_unknown_tool_is_a_result_that_lists_the_available_tools() -> None:
    script = Script(turns=1, next=lambda _: NextStep("j", "c", "g", "nowhere"))
    episode, model = await solved(script)
    [turn] = episode.turns
    assert turn.action is None
    assert turn.failure is not None
    assert turn.failure.message == "there is no tool 'nowhere'; available tools: diary_write, diary_look"
    assert "executor" not in roles(model)


@pytest.mark.promise("team:solve:failures")
async def test_a_failed_analysis_verdict_or_command_does_not_end_an_episode() -> None:
    episode, _ = await solved(Script(analysis=garbage, verify=garbage, command=garbage), max_turns=2)
    assert (episode.analysis, episode.answer, episode.ending) == (None, "1871", Ending.TURNS)
    assert [turn.failure for turn in episode.turns] == [Failure("garbage", "no JSON")] * 2
    assert [turn.decision for turn in episode.turns] == [None, None]
    assert sum(exchange.failure is not None for exchange in episode.exchanges) == 5


@pytest.mark.promise("team:solve:failures")
async def test_an_episode_without_a_next_step_answers_from_its_memory() -> None:
    for verify in ("separate", "merged"):
        script = Script(decide=unreachable) if verify == "merged" else Script(next=unreachable)
        episode, _ = await solved(script, verify=verify)
        assert (episode.ending, episode.answer) == (Ending.FAILED, "1871")
        assert episode.failure is None


@pytest.mark.promise("team:solve:lost-turn")
@pytest.mark.parametrize("verify", ["separate", "merged"])
async def test_an_unusable_answer_of_the_planner_costs_its_turn_and_not_the_episode(verify: str) -> None:
    sampled = Tokens(prompt=(1,), sampled=(2,), logprobs=(-1.0,))
    script, asked, book = Script(turns=3), [0], Book()

    def answer(call: Call[object]) -> object:
        if call.role == "planner":
            asked[0] += 1
            if asked[0] == 2:
                raise ModelFailure(
                    ModelFailureKind.GARBAGE, "JSON is malformed", answers=1, answer_tokens=(sampled,),
                    answer_text='{"justification": ',
                )  # fmt: skip
        return script(call)

    episode, model = await solved(answer, verify=verify, max_turns=5, book=book)
    assert (episode.ending, episode.answer) == (Ending.VERIFIED, "1871")
    lost = episode.turns[1]
    assert (lost.action, lost.failure) == (None, Failure("garbage", "JSON is malformed"))
    assert lost.result == "The answer can't be used: JSON is malformed"
    assert [turn.action is None for turn in episode.turns] == [False, True, False]
    after = [call for call in model.calls if call.role == "planner"][2]
    [answered] = [message for message in after.messages if text_of(message) == '{"justification": ']
    assert (answered.role, answered.mark) == ("assistant", sampled.mark)
    assert "JSON is malformed" in str(after.messages[-1])
    planned = [exchange for exchange in episode.exchanges if exchange.role == "planner"]
    assert planned[1].tokens == sampled
    again, _ = await solved(unasked, verify=verify, max_turns=5, book=book)
    assert again == episode


@pytest.mark.promise("team:solve:lost-turn")
async def test_a_planner_without_any_usable_answer_uses_up_its_turns() -> None:
    def cut(request: object) -> object:
        raise ModelFailure(ModelFailureKind.TOO_LONG, "cut at its token limit", answers=1)

    def refuse(request: object) -> object:
        raise ModelFailure(ModelFailureKind.TOO_LONG, "the prompt is too long")

    episode, model = await solved(Script(next=cut), max_turns=3)
    assert (episode.ending, episode.answer, len(episode.turns)) == (Ending.TURNS, "1871", 3)
    assert roles(model) == ["analyst", *["planner"] * 3, "generator"]
    assert "(empty)" in str(model.calls[2].messages)
    episode, _ = await solved(Script(next=refuse), max_turns=3)
    assert (episode.ending, len(episode.turns)) == (Ending.FAILED, 0), "no answer was received"


@pytest.mark.promise("team:solve:failures")
async def test_an_episode_without_an_answer_has_a_failure() -> None:
    episode, _ = await solved(Script(solution=garbage))
    assert (episode.ending, episode.solution, episode.answer) == (Ending.FAILED, None, "")
    assert episode.failure == Failure("garbage", "no JSON")


@pytest.mark.promise("team:solve:failures")
async def test_the_end_of_a_run_is_raised_and_completed_effects_stay_recorded() -> None:
    def stop(request: object) -> object:
        raise RunStopped(StopCause.BUDGET, "no money left")

    book = Book()
    with pytest.raises(RunStopped, match="no money left"):
        await solved(Script(verify=stop), book=book)
    assert list(book.entries) == ["analysis", "1/next", "1/command", "1/act"]
    episode, model = await solved(Script(), book=book)
    assert episode.answer == "1871"
    assert roles(model)[0] == "verifier"


@pytest.mark.promise("team:solve:fixed")
async def test_arguments_fixed_by_a_task_override_the_models_and_are_not_shown() -> None:
    asked: list[CommandRequest] = []

    def command(request: CommandRequest) -> Command:
        asked.append(request)
        return Command("Write.", {"text": "door"})

    task = Task(index=0, id="t", question="Which?", kwargs={"ink": "red", "other": 1})
    episode, _ = await solved(Script(turns=1, command=command), task=task)
    assert episode.turns[0].result == "door (red)"
    assert "ink" not in asked[0].tool.schema["properties"]


@pytest.mark.promise("team:solve:failures")
async def test_a_complete_assessment_without_stop_continues_the_episode() -> None:
    unsure = Decision("We should not stop here.", Assessment.UNVERIFIED, stop=False)
    episode, _ = await solved(Script(verify=lambda _: unsure), max_turns=2)
    assert (episode.ending, len(episode.turns)) == (Ending.TURNS, 2)


@pytest.mark.promise("team:solve:memory")
async def test_each_episode_has_its_own_memory() -> None:
    seen: list[SolutionRequest] = []

    def solution(request: SolutionRequest) -> object:
        seen.append(request)
        return SOLUTION

    for _ in range(2):
        await solved(Script(turns=2, solution=solution))
    assert [[turn.result for turn in request.memory.turns] for request in seen] == [
        ["line 1 (blue)", "line 1 (blue); line 2 (blue)"]
    ] * 2
    assert seen[0].question == TASK.question


@pytest.mark.promise("team:solve:tokens")
async def test_tokens_of_unusable_answers_are_kept_in_the_exchange() -> None:
    one, other = (Tokens(prompt=(1,), sampled=(id,), logprobs=(-1.0,), finish="length") for id in (2, 3))

    def cut(request: object) -> object:
        raise ModelFailure(ModelFailureKind.TOO_LONG, "cut", answer_tokens=(one, other))

    episode, _ = await solved(Script(next=cut))
    [asked] = [exchange for exchange in episode.exchanges if exchange.role == "planner"]
    assert (asked.tokens, asked.unusable) == (other, (one,))
    assert asked.failure == Failure("too_long", "cut")
