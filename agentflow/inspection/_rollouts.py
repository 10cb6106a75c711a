"""Rollout runs: the turns of each try from the entries of a task's page."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from agentflow.inspection._reader import (
    JournalRun,
    call_of,
    exact_calls,
    parts_of,
    seed_state,
    short,
    token_rows,
)
from agentflow.inspection._types import (
    AnswerRecord,
    CallDetail,
    CallSummary,
    NodeDetail,
    NodeSummary,
    RunKind,
    SeedAnswer,
    SeedRecord,
    SeedResults,
    SeedSummary,
    SeedTokens,
    TreeSkeleton,
    empty_tree,
)
from agentflow.journal import StoredSeed
from agentflow.rollouts import TaskResult, episode_tree, task_of
from agentflow.team import AgentAnswer, TimedResult
from agentflow.trace import (
    ActionOutcome,
    Command,
    DecidedStep,
    Decision,
    Exchange,
    Failure,
    NextStep,
    Observation,
    Reply,
    Text,
    TokenCall,
    Tokens,
    TokenTree,
    Tree,
    Turn,
    Verdict,
    Voice,
)

_TURN: Final = re.compile(r"try(\d+)/(\d+)/(.+)")
_ROLES: Final = {
    "analysis": "analyst", "next": "planner", "decide": "planner", "command": "executor", "command/again": "executor",
    "verify": "verifier", "agent": "agent",
}  # fmt: skip


class _Turn(Struct):
    """Turn of a try as far as it is recorded."""

    number: int
    intent: str = ""
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    outcome: ActionOutcome | None = None
    outcome_key: str = ""
    decision: Decision | None = None
    calls: list[CallSummary] = field(default_factory=list[CallSummary])
    refused: Failure | None = None
    turn: Turn | None = None

    @property
    def failure(self) -> Failure | None:
        """Reason for a failed call."""
        if self.turn is not None:
            return self.turn.failure
        return self.refused if self.outcome is None else self.outcome.failure

    @property
    def verdict(self) -> str:
        """`new`, or `error` after a failed call; empty: it is not done."""
        trouble = self.outcome is not None and bool(self.outcome.trouble)
        if self.failure is not None or trouble:
            return Verdict.ERROR.value
        return Verdict.NEW.value if self.outcome is not None or self.turn is not None else ""


class _TaskPage(Struct):
    """Recorded tries of a task."""

    tries: dict[int, list[_Turn]]
    other: list[CallSummary]
    """Calls that belong to no turn: analysis, summaries, the answer."""


class _KnownScore(Struct, frozen=True):
    score: float


class _KnownSolution(Struct, frozen=True):
    answer: str = ""


class _KnownEpisode(Struct, frozen=True):
    solution: _KnownSolution | None = None


class _TaskEnd(Struct, frozen=True):
    """Figures of a result; its long parts are skipped."""

    failure: Failure | None = None
    scored: _KnownScore | None = None
    episode: _KnownEpisode | None = None


class EpisodeRun(JournalRun[TaskResult]):
    """A rollout. The tries of a task are branches at the root, their turns follow each other."""

    kind = RunKind.ROLLOUT
    result_type = TaskResult

    def spot_of(self, key: str) -> str | None:
        """Return the spot of the turn that an entry belongs to."""
        found = _TURN.fullmatch(key)
        return None if found is None else _spot(int(found[1]), int(found[2]))

    def _summaries(self, found: Sequence[StoredSeed]) -> list[SeedSummary]:
        done = [each.seed.index for each in found if each.done]
        ends = {
            number: msgspec.json.decode(body, type=_TaskEnd)
            for number, body in self._journal.harvests(self._run, done).items()
        }
        summaries: list[SeedSummary] = []
        for each in found:
            seed, end = each.seed, ends.get(each.seed.index)
            task, sample = task_of(seed)
            keys = self._journal.keys_below(self._run, seed.index, "try") if each.claims else []
            solution = end.episode.solution if end is not None and end.episode is not None else None
            scored = None if end is None else end.scored
            summaries.append(
                SeedSummary(
                    id=seed.id,
                    index=seed.index,
                    text=short(task.question),
                    state=seed_state(each),
                    nodes=len({acts[0] for key in keys if (acts := re.match(r"\d+/\d+/(?=.*act)", key))}),
                    score=None if scored is None else 0.0 if end and end.failure else scored.score,
                    answer="" if solution is None else short(solution.answer),
                    failure="" if end is None or end.failure is None else short(end.failure.message),
                    task=task.id,
                    sample=sample,
                )
            )
        return summaries

    def skeleton(self, seed: str) -> TreeSkeleton:
        """Return the tries of a task and their turns."""
        stored = self.stored(seed)
        cursor = self._journal.news(self._run, "").cursor
        turns = self._turns(stored)
        spots = sorted(turns, key=lambda spot: (spot.count("-"), int(spot.partition("-")[0])))
        marks = {"": ".", Verdict.NEW.value: "n", Verdict.ERROR.value: "x"}
        return TreeSkeleton(
            seed=seed,
            state=seed_state(stored),
            spots=("", *spots),
            marks="n" + "".join(marks[turns[spot].verdict] for spot in spots),
            cursor=cursor,
        )

    def children(self, seed: str, spot: str) -> list[NodeSummary]:
        """Return the next turn, or at the root the first turn of each try."""
        turns = self._turns(self.stored(seed))
        if spot and spot not in turns:
            raise KeyError(spot)
        return self.nodes(seed, _children(turns, spot))

    def node(self, seed: str, spot: str) -> NodeDetail:
        """Return a turn with everything that is known about it."""
        return self._details(self.stored(seed), [spot])[spot]

    def _details(self, stored: StoredSeed, spots: Sequence[str]) -> dict[str, NodeDetail]:
        page = self._page(stored)
        turns = _by_spot(page)
        found: dict[str, NodeDetail] = {}
        for spot in spots:
            detail = NodeDetail(spot=spot, id="", children=len(_children(turns, spot)))
            if not spot:
                parts = parts_of(self._observation(stored, spot))
                found[spot] = replace(detail, parts=parts, verdict=Verdict.NEW.value, calls=tuple(page.other))
            elif (turn := turns.get(spot)) is not None:
                decision, outcome = turn.decision, turn.outcome
                asked = (call for call in turn.calls if call.role in ("planner", "agent"))
                found[spot] = replace(
                    detail,
                    intent=turn.intent,
                    reasoning="\n\n".join(call.reasoning for call in asked if call.reasoning),
                    tool=turn.tool,
                    arguments=turn.arguments,
                    parts=() if outcome is None else parts_of(outcome.observation),
                    verdict=turn.verdict,
                    reason="" if decision is None else f"{decision.assessment.value}: {decision.analysis}",
                    judge="" if decision is None else "model",
                    failure=turn.failure,
                    trouble="" if outcome is None else outcome.trouble,
                    calls=tuple(turn.calls),
                )
        return found

    def _observation(self, stored: StoredSeed, spot: str) -> Observation:
        if not spot:
            task, _ = task_of(stored.seed)
            return Observation((Text(task.question), *task.images))
        outcome = self._turns(stored)[spot].outcome
        return Observation(()) if outcome is None else outcome.observation

    def call(self, seed: str, key: str) -> CallDetail:
        """Return a model call with its prompt."""
        page = self._page(self.stored(seed))
        calls = [
            *page.other,
            *(call for turns in page.tries.values() for turn in turns for call in turn.calls),
        ]
        for call in calls:
            if call.key == key:
                return self.with_prompt(call)
        raise KeyError(key)

    def results(self, seed: str) -> SeedResults:
        """Return the answer with its score."""
        stored = self.stored(seed)
        task, _ = task_of(stored.seed)
        shown = SeedResults(seed=seed, text=task.question, state=seed_state(stored))
        result = self.result_of(stored)
        if result is None:
            return shown
        answer = SeedAnswer(
            id=task.id,
            question=task.question,
            answer=result.answer,
            references=task.references,
            score=None if result.scored is None else result.score,
            reason="" if result.scored is None else result.scored.reason,
        )
        episode = result.episode
        if episode is None:
            return replace(shown, answers=(answer,), failure=result.failure)
        return replace(
            shown,
            answers=(answer,),
            ending=episode.ending.value,
            failure=result.failure,
            usage=episode.usage,
            seconds=episode.seconds,
        )

    def _record(self, stored: StoredSeed) -> SeedRecord:
        result = self.result_of(stored)
        if result is None:
            task, _ = task_of(stored.seed)
            return SeedRecord(tree=empty_tree(stored.seed.id, task.id, short(task.question)), is_episode=True)
        episode, kwargs = result.episode, result.task.kwargs
        facts: dict[str, Any] = {
            "sample": result.sample,
            "agent": "" if episode is None else episode.agent,
            "ending": None if episode is None else episode.ending.value,
            **({"kwargs": kwargs} if kwargs else {}),
        }
        return episode_record(
            episode_tree(result),
            answer=result.answer,
            score=None if result.scored is None else result.score,
            references=result.task.references,
            exchanges=() if episode is None else episode.exchanges,
            facts=facts,
        )

    def tokens(self, seed: str) -> list[SeedTokens]:
        """Return the rows of exact tokens of all roles."""
        stored = self.stored(seed)
        tree = TokenTree()
        for key, body in self._journal.entries(self._run, stored.seed.index, "try").items():
            role = _role(key.partition("/")[2])
            if role:
                reply = msgspec.json.decode(body, type=TimedResult[Reply[Any]]).value
                if reply.tokens is not None:
                    voice = Voice(role=role, episode=f"{seed}/{key.partition('/')[0]}")
                    tree.add(TokenCall(id=key, voice=voice, tokens=reply.tokens))
        return token_rows(tree)

    def _turns(self, stored: StoredSeed) -> dict[str, _Turn]:
        return _by_spot(self._page(stored))

    def _page(self, stored: StoredSeed) -> _TaskPage:
        """Read the page of a task. The last try of a finished one is that of its result."""
        entries = self._journal.entries(self._run, stored.seed.index, "try")
        page = _TaskPage({}, [])
        for attempt, keys in groupby(sorted(entries, key=_order), key=lambda key: _order(key)[0]):
            own = {key.partition("/")[2]: entries[key] for key in keys}
            turns, other = _read_try(f"try{attempt}", own)
            page.tries[attempt] = turns
            page.other += other
        result = self.result_of(stored)
        if result is not None and result.episode is not None and result.tries in page.tries:
            _complete(page.tries[result.tries], result.turns)
        return page


def _complete(turns: list[_Turn], known: Sequence[Turn]) -> None:
    """Add what the result of an episode knows about its turns."""
    del turns[len(known) :]
    turns += [_Turn(number) for number in range(len(turns) + 1, len(known) + 1)]
    for turn, whole in zip(turns, known, strict=True):
        turn.turn, turn.decision = whole, whole.decision
        turn.intent = whole.step.sub_goal or whole.step.justification
        turn.tool = whole.step.tool_name if whole.action is None else whole.action.tool
        turn.arguments = turn.arguments if whole.action is None else whole.action.arguments


def _read_try(name: str, entries: Mapping[str, bytes]) -> tuple[list[_Turn], list[CallSummary]]:
    """Return the turns of one try, and its other calls."""
    turns: list[_Turn] = []
    other: list[CallSummary] = []
    for key, body in entries.items():
        number, _, what = key.partition("/")
        role = _role(key)
        if not number.isdecimal():
            if role:
                timed = msgspec.json.decode(body, type=TimedResult[Reply[Any]])
                other.append(call_of(f"{name}/{key}", role, timed.value, timed.seconds))
            continue
        if what == "agent":
            _add_agent_turns(turns, f"{name}/{key}", body)
            continue
        if what.startswith("act/"):
            _add_outcome(turns, int(number), int(what.removeprefix("act/")), body)
            continue
        turn = _turn_of(turns, int(number))
        if what.startswith("act"):
            turn.outcome = msgspec.json.decode(body, type=TimedResult[ActionOutcome]).value
        elif role:
            timed = msgspec.json.decode(body, type=TimedResult[Reply[Any]])
            turn.calls.append(call_of(f"{name}/{key}", role, timed.value, timed.seconds))
            _use(turn, what, body)
    return turns, other


def _turn_of(turns: list[_Turn], number: int) -> _Turn:
    for turn in turns:
        if turn.number == number:
            return turn
    turns.append(_Turn(number))
    return turns[-1]


def _use(turn: _Turn, what: str, body: bytes) -> None:
    """Take what a reply decides about a turn of the team."""
    if what == "next":
        step = msgspec.json.decode(body, type=TimedResult[Reply[NextStep]]).value.value
    elif what == "decide":
        decided = msgspec.json.decode(body, type=TimedResult[Reply[DecidedStep]]).value.value
        step = None if decided is None else decided.next
    else:
        step = None
    if step is not None:
        turn.intent, turn.tool = step.sub_goal or step.justification, step.tool_name
    if what.startswith("command"):
        reply = msgspec.json.decode(body, type=TimedResult[Reply[Command]]).value
        turn.refused = reply.failure
        turn.arguments = turn.arguments if reply.value is None else reply.value.arguments
    if what == "verify":
        turn.decision = msgspec.json.decode(body, type=TimedResult[Reply[Decision]]).value.value


def _add_agent_turns(turns: list[_Turn], key: str, body: bytes) -> None:
    """Add a turn for each call of a tool that a single agent requested in one answer."""
    timed = msgspec.json.decode(body, type=TimedResult[Reply[AgentAnswer]])
    call = call_of(key, "agent", timed.value, timed.seconds)
    answer = timed.value.value
    for index, tool_call in enumerate(() if answer is None else answer.calls):
        turns.append(
            _Turn(
                int(key.split("/")[1]),
                intent="" if answer is None else answer.text,
                tool=tool_call.name,
                arguments=tool_call.arguments or {},
                outcome_key=f"{key.split('/')[1]}/{index}",
                calls=[call] if index == 0 else [],
            )
        )


def _add_outcome(turns: list[_Turn], number: int, index: int, body: bytes) -> None:
    for turn in turns:
        if turn.outcome_key == f"{number}/{index}":
            turn.outcome = msgspec.json.decode(body, type=TimedResult[ActionOutcome]).value


def _role(key: str) -> str:
    """Return the role that made the call of an entry of a try; empty if it is no call."""
    if key == "solution":
        return "generator"
    if key.startswith("summary/"):
        return "generator"
    first, _, rest = key.partition("/")
    return _ROLES.get(rest if first.isdecimal() else key, "")


def _order(key: str) -> tuple[int, float, int, str]:
    """Order entries by try, turn, and the order of calls in a turn."""
    attempt, _, rest = key.removeprefix("try").partition("/")
    number, _, what = rest.partition("/")
    place = float(number) if number.isdecimal() else -1.0 if number == "analysis" else 1e9
    steps = ("next", "decide", "agent", "command", "act", "verify")
    return int(attempt), place, next((i for i, step in enumerate(steps) if what.startswith(step)), 9), what


def _by_spot(page: _TaskPage) -> dict[str, _Turn]:
    return {
        _spot(attempt, place): turn
        for attempt, turns in page.tries.items()
        for place, turn in enumerate(turns, 1)
    }


def _spot(attempt: int, turn: int) -> str:
    return "-".join([str(attempt - 1), *["0"] * (turn - 1)])


def _children(turns: Mapping[str, _Turn], spot: str) -> list[str]:
    if spot:
        return [f"{spot}-0"] if f"{spot}-0" in turns else []
    return sorted((each for each in turns if "-" not in each), key=int)


class ExchangeLine(Struct):
    """Model call in a line of `trajectories.jsonl`, as far as its tokens need it."""

    key: str
    role: str
    tokens: Tokens | None = None
    unusable: tuple[Tokens, ...] = ()


def episode_record(
    tree: Tree,
    *,
    answer: str,
    score: float | None,
    references: tuple[str, ...],
    exchanges: Iterable[ExchangeLine | Exchange],
    facts: dict[str, Any],
) -> SeedRecord:
    """Return an episode of a task with its answer."""
    record = AnswerRecord(
        id=tree.id,
        question=tree.seed.content,
        answer=answer,
        nodes=tuple(node.id for node in tree.nodes),
        score=score,
        right=bool(answer) and score is not None and score >= 1.0,
        references=references,
    )
    calls = (exact_calls(call.key, Voice(role=call.role), call) for call in exchanges)
    return SeedRecord(
        tree=tree,
        is_episode=True,
        answers=(record,),
        calls=tuple(chain.from_iterable(calls)),
        reward=score,
        facts=facts,
    )
