"""Episodes that branch before decisions: shared beginnings, states of real sandboxes, searches, resuming."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeVar, cast

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from agentflow.engine import (
    BranchingEngine,
    BranchSandboxes,
    EpisodeAgent,
    EpisodeSettings,
    Guide,
    Leaf,
    PathNode,
)
from agentflow.errors import CannotFork, ConfigurationError, ErrorKind, RunStopped, StopCause
from agentflow.models import Call, Completion, Model, ToolCall
from agentflow.rollouts import BranchingSettings
from agentflow.sandbox import Backend, Sandbox, Session
from agentflow.team import ToolAgent
from agentflow.trace import (
    BranchPoint,
    Ending,
    Failure,
    Isolation,
    MemoryBlobStore,
    Task,
    Tokens,
    Turn,
    Usage,
)
from tests._pages import page_over
from tests.agentflow.team._solving import Diary

T = TypeVar("T")

TASK = Task(index=0, id="task_1", question="What is in the notebook?")
Say = Callable[[Sequence[str], int], "tuple[str, str] | str"]
"""Answers with the results so far and the number of times it was asked with them: a tool and its program, or the answer."""


class Chooser:
    """A model that may answer differently each time, with the tokens that it sampled."""

    name = "chooser"
    vision = False

    def __init__(self, say: Say) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._say = say

    async def complete(self, call: Call[T]) -> Completion[T]:
        seen = tuple(
            part.text
            for message in call.messages
            for reply in message.parts
            for part in getattr(reply, "parts", ())
        )
        number = self.asked.count(seen)
        self.asked.append(seen)
        said = self._say(seen, number) if call.may_call else "out of tokens"
        text, calls = (said, ()) if isinstance(said, str) else ("", (_call(*said),))
        sampled = tuple(repr(said).encode())
        # The second answer to a conversation is less likely than the first.
        tokens = Tokens(prompt=(1,), sampled=sampled, logprobs=(-0.1 * (1 + number),) * len(sampled))
        usage = Usage(1, 10, len(sampled))
        return Completion(
            value=cast("T", text), text=text, calls=calls, usage=usage, tokens=tokens, model=self.name
        )


def _call(tool: str, program: str) -> ToolCall:
    name = {"bash_run": "command", "code_run": "code", "diary_write": "text"}[tool]
    return ToolCall("call", tool, {name: program})


@asynccontextmanager
async def branching(
    model: Model | Callable[[str], Model],
    settings: BranchingSettings,
    *,
    limits: EpisodeSettings | None = None,
    guide: Guide | None = None,
    backends: Sequence[str | Backend] = ("bash", "code"),
) -> AsyncGenerator[BranchingEngine]:
    """The engine with a tool-calling agent.

    :param model: its model, or a function that returns the model of a path.
    """

    @asynccontextmanager
    async def agents(path: str) -> AsyncGenerator[EpisodeAgent]:
        yield ToolAgent(model(path) if callable(model) else model, MemoryBlobStore())

    async with Sandbox(backends=list(backends)) as base:
        tools = await base.tools()
        yield BranchingEngine(
            agents=agents,
            roles=("agent",),
            tools=tools,
            settings=limits or EpisodeSettings(max_turns=9),
            sandboxes=BranchSandboxes(base, tools),
            search=settings.make_search,
            merge_duplicates=settings.merge_duplicates,
            guide=guide,
        )


def answers(leaves: Sequence[Leaf]) -> list[str]:
    return ["" if leaf.episode is None else leaf.episode.answer for leaf in leaves]


def point(leaf: Leaf, index: int) -> BranchPoint:
    assert leaf.episode is not None and leaf.episode.branches is not UNSET
    return leaf.episode.branches[index]


def write_letters(seen: Sequence[str], number: int) -> tuple[str, str] | str:
    """Open a notebook, add a different letter in each branch, twice, and answer with the notebook."""
    if not seen:
        return "bash_run", "notes=0; echo $notes"
    if len(seen) < 3:
        return "bash_run", f"notes=${{notes}}{'abcdefgh'[number]}; echo $notes"
    return seen[-1].strip()


def draw_number(seen: Sequence[str], number: int) -> tuple[str, str] | str:
    """Draw a number in the shell, add a different letter in each branch, and answer with it."""
    if not seen:
        return "bash_run", "notes=$RANDOM$RANDOM$RANDOM; echo $notes"
    return write_letters(["0", *seen], number)


@pytest.mark.promise("branching:forks")
async def test_branches_continue_from_the_live_state_of_their_shell() -> None:
    settings = BranchingSettings(width=3, leaves=3)
    async with branching(Chooser(draw_number), settings) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    number = answers(leaves)[0].rstrip("a")
    assert answers(leaves) == [f"{number}{letter}" for letter in "abc"]
    # No replay draws the same number again.
    assert [point(leaf, 1).isolation for leaf in leaves] == [
        Isolation.SHARED,
        Isolation.FORK,
        Isolation.FORK,
    ]


@pytest.mark.promise("branching:forks")
async def test_branches_keep_open_connections_to_databases_in_their_interpreter() -> None:
    opened = """import secrets, sqlite3
connection = sqlite3.connect(":memory:")
cursor = connection.execute("create table notes (text)")
connection.execute("begin")
done = connection.execute("insert into notes values (?)", (secrets.token_hex(8),))"""
    added = """done = connection.execute("insert into notes values ('{}')")
print(*(text for text, in connection.execute("select text from notes")), connection.in_transaction)"""

    def say(seen: Sequence[str], number: int) -> tuple[str, str] | str:
        if not seen:
            return "code_run", opened
        return ("code_run", added.format("ab"[number])) if len(seen) == 1 else seen[-1].strip()

    async with branching(Chooser(say), BranchingSettings(width=2, leaves=2)) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    [first, second] = [answer.split() for answer in answers(leaves)]
    assert first[0] == second[0] and len(first[0]) == 16
    assert (first[1:], second[1:]) == (["a", "True"], ["b", "True"])


@pytest.mark.promise("branching:every")
async def test_each_decision_is_made_several_times_until_there_are_enough_paths() -> None:
    model = Chooser(write_letters)
    async with branching(model, BranchingSettings(width=2, leaves=4)) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    assert answers(leaves) == ["0aa", "0ab", "0ba", "0bb"]
    # The first decision is always the same, so it is run once.
    assert [leaf.path for leaf in leaves] == [(0, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 0), (0, 1, 1, 0)]
    assert [(point(leaf, 0).drawn, point(leaf, 0).share) for leaf in leaves] == [(2, 4)] * 4
    assert [leaf.episode.drawn for leaf in leaves if leaf.episode] == [1, 1, 1, 1]
    # Independent episodes ask 16 times.
    assert len(model.asked) == 2 + 2 + 4 + 4
    ends = [[turn.result for turn in leaf.episode.turns] for leaf in leaves if leaf.episode]
    assert ends[3] == ["0", "0b", "0bb"]


@pytest.mark.promise("branching:every")
async def test_equal_continuations_may_be_run_each_for_itself() -> None:
    settings = BranchingSettings(width=2, leaves=2, merge_duplicates=False)
    async with branching(Chooser(lambda seen, number: "42"), settings) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    assert answers(leaves) == ["42", "42"]


@pytest.mark.promise("branching:every")
async def test_a_function_chooses_the_decisions_that_are_made_several_times() -> None:
    settings = BranchingSettings(at=f"{__name__}:has_two_turns", width=3, leaves=9)
    async with branching(Chooser(write_letters), settings) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    assert answers(leaves) == ["0aa", "0ab", "0ac"]


def has_two_turns(node: PathNode) -> bool:
    return len(node.turns) == 2


@pytest.mark.promise("branching:every")
async def test_a_branch_that_crashes_is_recorded_and_the_others_answer() -> None:
    def say(seen: Sequence[str], number: int) -> tuple[str, str] | str:
        if len(seen) == 2 and seen[-1].strip() == "0b":
            raise ZeroDivisionError("no such letter")
        return write_letters(seen, number)

    journal: dict[str, bytes] = {}
    model = Chooser(say)
    async with branching(model, BranchingSettings(width=2, leaves=2)) as engine:
        leaves = await engine.solve(TASK, page_over(journal))
        asked = len(model.asked)
        again = await engine.solve(TASK, page_over(journal))
    assert answers(leaves) == answers(again) == ["0aa", ""]
    assert leaves[1].failure == again[1].failure == Failure("crashed", "ZeroDivisionError: no such letter")
    assert len(model.asked) == asked


@pytest.mark.promise("branching:every")
async def test_after_a_stop_the_other_branches_go_on_and_the_stop_is_raised() -> None:
    def say(seen: Sequence[str], number: int) -> tuple[str, str] | str:
        if len(seen) == 2 and seen[-1].strip() == "0a":
            raise RunStopped(StopCause.MODEL, "no money is left")
        return write_letters(seen, number)

    journal: dict[str, bytes] = {}
    async with branching(Chooser(say), BranchingSettings(width=2, leaves=2)) as engine:
        with pytest.raises(RunStopped, match=r"^no money is left"):
            await engine.solve(TASK, page_over(journal))
    assert [key for key in journal if key.startswith("0-1-0/")] == ["0-1-0/3/agent", "0-1-0/3/act/0"]


class LockedDiary(Diary):
    """A diary that can't be copied."""

    async def fork(self, session: Session, forked: Session) -> None:
        raise CannotFork("the diary is locked")


@pytest.mark.promise("branching:forks")
async def test_branches_whose_state_cannot_be_copied_are_not_tried() -> None:
    def say(seen: Sequence[str], number: int) -> tuple[str, str] | str:
        if not seen:
            return "diary_write", "line 0"
        return ("diary_write", f"line {number}") if len(seen) < 2 else seen[-1]

    journal: dict[str, bytes] = {}
    settings = BranchingSettings(width=2, leaves=2)
    async with branching(Chooser(say), settings, backends=[LockedDiary()]) as engine:
        leaves = await engine.solve(TASK, page_over(journal))
        again = await engine.solve(TASK, page_over(journal))
    assert again == leaves
    assert [leaf.path for leaf in leaves] == [(0, 0, 0), (0, 0, 1), (0, 1)]
    assert answers(leaves) == ["line 0 (blue); line 0 (blue)", "", ""]
    reason = "not tried: its state can't be copied: session_fork: the diary is locked"
    assert {leaf.failure for leaf in leaves[1:]} == {Failure(ErrorKind.CANNOT_FORK, reason)}


@pytest.mark.promise("branching:uncertain")
async def test_a_decision_that_cannot_be_made_again_later_goes_on_once() -> None:
    def say(seen: Sequence[str], number: int) -> tuple[str, str] | str:
        return ("diary_write", f"line {number}") if len(seen) < 2 else seen[-1]

    settings = BranchingSettings(at="uncertain", width=2, leaves=2)
    async with branching(Chooser(say), settings, backends=[LockedDiary()]) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    assert len({leaf.path for leaf in leaves}) == len(leaves)
    assert len([leaf for leaf in leaves if leaf.failure is None]) == 2


@pytest.mark.promise("branching:every")
async def test_branches_begin_in_the_initial_state_of_the_task() -> None:
    async def prepare(sandbox: Sandbox) -> None:
        await sandbox.execute("bash_run", {"command": "notes=7"})

    def say(seen: Sequence[str], number: int) -> tuple[str, str] | str:
        return ("bash_run", f"echo ${{notes}}{number}") if not seen else seen[-1].strip()

    async with branching(Chooser(say), BranchingSettings(width=3, leaves=3)) as engine:
        leaves = await engine.solve(TASK, page_over({}), prepare=prepare)
    assert answers(leaves) == ["70", "71", "72"]


@pytest.mark.promise("branching:every")
async def test_a_path_that_reaches_a_limit_answers_and_does_not_branch() -> None:
    limits = EpisodeSettings(max_turns=9, max_tokens=90)
    model = Chooser(write_letters)
    async with branching(model, BranchingSettings(width=2, leaves=4), limits=limits) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    assert {leaf.episode.ending for leaf in leaves if leaf.episode} == {Ending.TOKENS}
    assert len(leaves) < 4


def letter_by_path(path: str) -> Chooser:
    """Return the model of a path: it writes the letter of the path's last choice."""
    position = 0 if path == "root" else int(path.split("-")[-1])
    return Chooser(lambda seen, number: write_letters(seen, position))


@pytest.mark.promise("branching:resume")
@pytest.mark.parametrize("at", ["every", "uncertain"])
async def test_a_task_resumes_from_any_point_with_the_same_paths_and_records(at: str) -> None:
    journal: dict[str, bytes] = {}
    async with branching(letter_by_path, BranchingSettings(at=at, width=2, leaves=4)) as engine:
        leaves = await engine.solve(TASK, page_over(journal))
        entries = list(journal.items())
        for cut in range(0, len(entries), 5):
            resumed = dict(entries[:cut])
            again = await engine.solve(TASK, page_over(resumed))
            assert [leaf.path for leaf in again] == [leaf.path for leaf in leaves]
            assert answers(again) == answers(leaves)
            assert resumed.keys() == journal.keys()
    assert len(leaves) >= 3


@pytest.mark.promise("branching:uncertain")
async def test_the_least_certain_decisions_are_made_again() -> None:
    def say(seen: Sequence[str], number: int) -> tuple[str, str] | str:
        return ("bash_run", f"echo {len(seen)}{number}") if len(seen) < 3 else "".join(seen)

    class Doubtful(Chooser):
        """Doubts its second step."""

        async def complete(self, call: Call[T]) -> Completion[T]:
            done = await super().complete(call)
            assert done.tokens is not None
            doubt = -2.0 if len(self.asked[-1]) == 1 else -0.1
            return replace(done, tokens=replace(done.tokens, logprobs=(doubt,) * len(done.tokens.sampled)))

    async with branching(Doubtful(say), BranchingSettings(at="uncertain", width=2, leaves=3)) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    # Two paths answered first; then the second step of the first path was made again.
    assert [leaf.path for leaf in leaves] == [(0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0)]
    assert [point(leaf, 1).turns for leaf in leaves] == [1, 1, 1]


@pytest.mark.promise("branching:uncertain")
async def test_uncertain_decisions_need_log_probabilities() -> None:
    class Silent(Chooser):
        """Reports no tokens."""

        async def complete(self, call: Call[T]) -> Completion[T]:
            return replace(await super().complete(call), tokens=None)

    settings = BranchingSettings(at="uncertain", width=2, leaves=4)
    async with branching(Silent(write_letters), settings) as engine:
        with pytest.raises(ConfigurationError, match=r"^branching\.at: uncertain needs log-probabilities"):
            await engine.solve(TASK, page_over({}))


async def likes_b(task: Task, turns: Sequence[Turn], answer: str | None) -> float:
    """Return the share of the letter b."""
    letters = "".join(turn.result for turn in turns)[1:]
    return letters.count("b") / len(letters) if letters else 0.0


@pytest.mark.promise("branching:guided")
@pytest.mark.parametrize(
    ("search", "expected"),
    [("best_first", ["0ba", "0bb"]), ("beam", ["0bb"]), ("mcts", ["0ba", "0bb"])],
)
async def test_guided_searches_continue_the_paths_with_the_best_values(
    search: Literal["best_first", "beam", "mcts"], expected: Sequence[str]
) -> None:
    model = Chooser(write_letters)
    async with branching(
        model, BranchingSettings(search=search, guide="tests:likes_b", width=2, leaves=2), guide=likes_b
    ) as engine:
        leaves = await engine.solve(TASK, page_over({}))
    assert [answer for answer in answers(leaves) if answer] == expected
    # Paths that were given up are there, without an answer.
    assert {leaf.episode.ending for leaf in leaves if leaf.episode} == {Ending.ANSWERED, Ending.PRUNED}
    assert leaves[-1].value == 0.6
    # Fewer questions than for all eight paths.
    assert len(model.asked) <= 12
