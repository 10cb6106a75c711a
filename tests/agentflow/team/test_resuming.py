"""An interrupted episode resumes: no effect is repeated, and it ends the same."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from agentflow.engine import EngineContext, EpisodeEngine, EpisodeSettings
from agentflow.errors import RunStopped, StopCause
from agentflow.models import Call
from agentflow.sandbox import Sandbox
from agentflow.team import TeamAgent
from agentflow.testing import VirtualClock
from agentflow.trace import Action, Ending, Turn
from tests.agentflow.team._model import team, unasked
from tests.agentflow.team._solving import TASK, Book, Diary, Script, diary_sandbox, solved

T = TypeVar("T")


@pytest.mark.promise("team:solve:resume")
@pytest.mark.parametrize("verify", ["separate", "merged"])
async def test_the_page_rebuilds_the_whole_episode_without_any_call(verify: str) -> None:
    book, diary = Book(), Diary()
    first, _ = await solved(Script(turns=3), book=book, verify=verify, memory_chars=1000)
    again, model = await solved(unasked, book=book, diary=diary, verify=verify, memory_chars=1000)
    assert again == first
    assert model.calls == []
    assert diary.calls == []


@pytest.mark.promise("team:solve:resume")
@pytest.mark.parametrize("cut", range(9))
async def test_an_episode_interrupted_after_any_entry_resumes_there_and_repeats_no_action(
    cut: int,
) -> None:
    whole, _ = await solved(Script(turns=2), book=(full := Book()))
    assert len(full.entries) == 10
    book, diary = Book(), Diary()
    book.entries = dict(list(full.entries.items())[:cut])
    done_before = sum("/act" in key for key in book.entries)
    again, rest = await solved(Script(turns=2), book=book, diary=diary, clock=VirtualClock())
    assert list(book.entries) == list(full.entries)
    assert _told(again.turns) == _told(whole.turns)
    assert (again.ending, again.solution) == (whole.ending, whole.solution)
    asked = sum("/act" not in key for key in list(full.entries)[cut:])
    assert len(rest.calls) == asked
    # What was done before is done again only if something builds on its state.
    assert diary.calls == ([] if done_before == 2 else ["line 1", "line 2"])


@pytest.mark.promise("team:solve:diverged")
async def test_a_diverging_replay_is_reported_and_the_recorded_outcome_counts() -> None:
    book = Book()
    await solved(Script(turns=2), book=(full := Book()))
    keep = list(full.entries)[: list(full.entries).index("1/verify") + 1]
    book.entries = {key: full.entries[key].replace(b"line 1 (blue)", b"line 0 (blue)") for key in keep}
    again, _ = await solved(Script(turns=2), book=book)
    assert [turn.result for turn in again.turns] == ["line 0 (blue)", "line 1 (blue); line 2 (blue)"]
    assert again.diverged == (1,)


@pytest.mark.promise("team:solve:resume")
async def test_time_before_the_crash_counts_and_time_between_does_not() -> None:
    book, clock = Book(), VirtualClock(start=1_000)

    def cut(request: object) -> object:
        raise RunStopped(StopCause.INTERRUPTED, "stopped")

    def slow(call: Call[object]) -> object:
        clock.advance(10)
        return Script(verify=cut)(call)

    with pytest.raises(RunStopped):
        await solved(slow, book=book, clock=clock)
    later = VirtualClock(start=50_000)
    episode, _ = await solved(Script(turns=1), book=book, clock=later)
    assert episode.seconds == 30
    assert episode.ending is Ending.VERIFIED


class Pausing:
    """Delays every effect."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    async def __call__(self, effect: Callable[[], Awaitable[T]], /) -> T:
        self._clock.advance(1_000)
        return await effect()


@pytest.mark.promise("team:solve:time")
async def test_time_in_which_a_run_is_paused_does_not_count() -> None:
    clock = VirtualClock()

    def slow(call: Call[object]) -> object:
        clock.advance(10)
        return Script(turns=1)(call)

    episode, _ = await solved(slow, clock=clock, gate=Pausing(clock), max_seconds=60, answer_seconds=5)
    assert (episode.ending, episode.seconds) == (Ending.VERIFIED, 50)


class Forgetting:
    """Ends the session unexpectedly, once something was written."""

    def __init__(self, sandbox: Sandbox, diary: Diary) -> None:
        self._sandbox = sandbox
        self._diary = diary
        self._done = False

    async def __call__(self, effect: Callable[[], Awaitable[T]], /) -> T:
        if self._diary.calls and not self._done:
            self._done = True
            [info] = await self._sandbox.list_sessions()
            await self._sandbox.execute("session:end", {"session": info.session})
        return await effect()


@pytest.mark.promise("team:solve:session")
async def test_a_session_that_ended_unexpectedly_is_rebuilt_with_all_its_actions() -> None:
    diary = Diary()
    async with diary_sandbox(diary) as sandbox, team(Script(turns=2)) as (members, _):
        engine = EpisodeEngine(
            agent=TeamAgent(members),
            tools=await sandbox.tools("diary_write"),
            settings=EpisodeSettings(),
            context=EngineContext(gate=Forgetting(sandbox, diary)),
        )
        episode = await engine.solve(TASK, sandbox, Book().open())
    assert episode.turns[-1].result == "line 1 (blue); line 2 (blue)"
    assert diary.calls == ["line 1", "line 1", "line 2"]
    assert episode.diverged == ()


def _told(turns: tuple[Turn, ...]) -> list[tuple[Action | None, str, object]]:
    return [(turn.action, turn.result, turn.decision) for turn in turns]
