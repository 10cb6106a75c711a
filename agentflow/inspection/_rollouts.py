"""Rollout runs: the turns of each try from the entries of a task's page."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from agentflow.engine import StateCopy, TimedResult
from agentflow.inspection._reader import (
    JournalRun,
    call_of,
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
from agentflow.models import Prices
from agentflow.rollouts import TaskResult, episode_tree, task_of
from agentflow.team import AgentAnswer
from agentflow.trace import (
    ActionOutcome,
    Command,
    DecidedStep,
    Decision,
    Exchange,
    Failure,
    Isolation,
    NextStep,
    Observation,
    Reply,
    Text,
    TokenCall,
    TokenTree,
    Tree,
    Turn,
    Usage,
    Verdict,
    Voice,
    calls_of_answer,
)

_TURN: Final = re.compile(r"try(\d+)/(?:(\d+(?:-\d+)*)/)?(\d+)/(.+)")
_BRANCH: Final = re.compile(
    r"try(\d+)/(root|\d+(?:-\d+)*)/(\d+/.+|analysis|solution|(?:summary|compaction)/.+|end|verdict|(?:copy|value|crashed|diverged)/.+)"
)
MAX_PATHS: Final = 1_000
"""Distance of node paths that must not be those of continuations."""
_ROLES: Final = {
    "analysis": "analyst", "next": "planner", "decide": "planner", "command": "executor", "command/again": "executor",
    "verify": "verifier", "agent": "agent", "agent/again": "agent",
}  # fmt: skip


class _RecordedTries(NamedTuple):
    """Tries of a task as far as they are recorded."""

    nodes: dict[str, NodeDetail]
    """Turns by their node paths: the tries are branches at the root, their turns follow each other."""
    observations: dict[str, Observation]
    """Whole observations of turns with a result."""
    others: list[CallSummary]
    """Calls that belong to no turn: analysis, summaries, the answer."""

    def children(self, node_path: str) -> list[str]:
        """Return the node paths of the next turns, or at the root of the first turns of each try."""
        below = [path for path in self.nodes if path.rpartition("-")[0] == node_path and path != node_path]
        return sorted(below, key=lambda path: int(path.rpartition("-")[2]))


class _EndScore(Struct, frozen=True):
    score: float


class _EndSolution(Struct, frozen=True):
    answer: str = ""


class _EndEpisode(Struct, frozen=True):
    solution: _EndSolution | None = None


class _TaskEnd(Struct, frozen=True):
    """Figures of a result; its long parts are skipped."""

    failure: Failure | None = None
    scored: _EndScore | None = None
    episode: _EndEpisode | None = None
    paths: tuple["_TaskEnd", ...] = ()
    chosen: int = 0

    @property
    def answer(self) -> str:
        episode = self.paths[self.chosen].episode if self.paths else self.episode
        return "" if episode is None or episode.solution is None else episode.solution.answer


class EpisodeRun(JournalRun[TaskResult]):
    """A rollout. The tries of a task are branches at the root, their turns follow each other."""

    kind = RunKind.ROLLOUT
    result_type = TaskResult

    def node_path_of(self, key: str) -> str | None:
        """Return the node path of the turn that an entry belongs to."""
        match = _TURN.fullmatch(key)
        if match is None:
            return None
        return (
            _node_path(int(match[1]), int(match[3]))
            if match[2] is None
            else _branch_path(int(match[1]), match[2])
        )

    def _summaries(self, stored_seeds: Sequence[StoredSeed]) -> list[SeedSummary]:
        done = [stored.seed.index for stored in stored_seeds if stored.done]
        ends = {
            number: msgspec.json.decode(body, type=_TaskEnd)
            for number, body in self._journal.results(self._run, done).items()
        }
        summaries: list[SeedSummary] = []
        for stored in stored_seeds:
            seed, end = stored.seed, ends.get(stored.seed.index)
            task, sample = task_of(seed)
            keys = self._journal.keys_below(self._run, seed.index, "try") if stored.claims else []
            scored = None if end is None else end.scored
            summaries.append(
                SeedSummary(
                    id=seed.id,
                    index=seed.index,
                    text=short(task.question),
                    state=seed_state(stored),
                    nodes=len({acts[0] for key in keys if (acts := re.match(r"\d+/.*?/(?=act)", key))}),
                    score=None if scored is None else 0.0 if end and end.failure else scored.score,
                    answer="" if end is None else short(end.answer),
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
        nodes = self._tries(stored).nodes
        node_paths = sorted(
            nodes, key=lambda node_path: (node_path.count("-"), int(node_path.partition("-")[0]))
        )
        marks = {"": ".", Verdict.NEW.value: "n", Verdict.ERROR.value: "x", Verdict.REPEATS.value: "r"}
        return TreeSkeleton(
            seed=seed,
            state=seed_state(stored),
            spots=("", *node_paths),
            marks="n" + "".join(marks[nodes[node_path].verdict] for node_path in node_paths),
            cursor=cursor,
        )

    def children(self, seed: str, node_path: str) -> list[NodeSummary]:
        """Return the next turn, or at the root the first turn of each try."""
        tries = self._tries(self.stored(seed))
        if node_path and node_path not in tries.nodes:
            raise KeyError(node_path)
        return self.nodes(seed, tries.children(node_path))

    def node(self, seed: str, node_path: str) -> NodeDetail:
        """Return a turn with everything that is known about it."""
        return self._details(self.stored(seed), [node_path])[node_path]

    def _details(self, stored: StoredSeed, node_paths: Sequence[str]) -> dict[str, NodeDetail]:
        tries = self._tries(stored)
        root = NodeDetail(
            spot="",
            id="",
            parts=parts_of(_question(stored)),
            verdict=Verdict.NEW.value,
            children=len(tries.children("")),
            calls=tuple(tries.others),
        )
        return {
            node_path: tries.nodes[node_path] if node_path else root
            for node_path in node_paths
            if not node_path or node_path in tries.nodes
        }

    def _observation(self, stored: StoredSeed, node_path: str) -> Observation:
        if not node_path:
            return _question(stored)
        tries = self._tries(stored)
        if node_path not in tries.nodes:
            raise KeyError(node_path)
        return tries.observations.get(node_path, Observation(()))

    def call(self, seed: str, key: str) -> CallDetail:
        """Return a model call with its prompt."""
        tries = self._tries(self.stored(seed))
        for call in chain(tries.others, *(node.calls for node in tries.nodes.values())):
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

    def _seed_records(self, stored: StoredSeed) -> Iterator[SeedRecord]:
        result = self.result_of(stored)
        if result is None:
            task, _ = task_of(stored.seed)
            yield SeedRecord(tree=empty_tree(stored.seed.id, task.id, short(task.question)), is_episode=True)
            return
        for sample in result.samples:
            episode, kwargs = sample.episode, sample.task.kwargs
            facts: dict[str, Any] = {
                "sample": sample.sample,
                "agent": "" if episode is None else episode.agent,
                "ending": None if episode is None else episode.ending.value,
                **({"kwargs": kwargs} if kwargs else {}),
            }
            yield episode_record(
                episode_tree(sample),
                answer=sample.answer,
                score=None if sample.scored is None else sample.score,
                references=sample.task.references,
                exchanges=() if episode is None else episode.exchanges,
                facts=facts,
            )

    def tokens(self, seed: str) -> list[SeedTokens]:
        """Return the rows of exact tokens of all roles."""
        stored = self.stored(seed)
        tree = TokenTree()
        for key, body in self._journal.entries(self._run, stored.seed.index, "try").items():
            branch = _BRANCH.fullmatch(key)
            role = _role(key.partition("/")[2] if branch is None else branch[3])
            if role:
                reply = msgspec.json.decode(body, type=TimedResult[Reply[Any]]).value
                if reply.tokens is not None:
                    voice = Voice(role=role, episode=f"{seed}/{key.partition('/')[0]}")
                    tree.add(TokenCall(id=key, voice=voice, tokens=reply.tokens))
        return token_rows(tree)

    def _tries(self, stored: StoredSeed) -> _RecordedTries:
        """Read the tries of a task. The last one of a finished task is that of its result."""
        entries = self._journal.entries(self._run, stored.seed.index, "try")
        result = self.result_of(stored)
        tries = _RecordedTries({}, {}, [])
        sections = _sections(entries)
        branching = {attempt for attempt, _ in sections}
        models = self.models if branching else None
        prices = {} if models is None else models.priced()
        for (attempt, path), bodies in sections.items():
            _add_section(tries, attempt, path, bodies)
        for path_result in () if result is None else result.samples:
            if result is not None and result.tries in branching:
                _add_end(tries, result.tries, path_result, prices)
        for node_path, node in tries.nodes.items():
            children = len(tries.children(node_path))
            if result is not None and not (node.verdict or children):
                node = replace(
                    node, verdict=Verdict.REPEATS.value, intent="the same as an earlier one: run once"
                )
            tries.nodes[node_path] = replace(node, children=children)
        linear = [key for key in entries if _order(key)[0] not in branching]
        for attempt, keys in groupby(sorted(linear, key=_order), key=lambda key: _order(key)[0]):
            nodes: list[tuple[NodeDetail, Observation | None]] = []
            for number, turn_keys in groupby(keys, key=lambda key: key.split("/")[1]):
                bodies = {key.partition("/")[2]: entries[key] for key in turn_keys}
                if number.isdecimal():
                    nodes += _turn_nodes(f"try{attempt}", number, bodies)
                else:
                    tries.others.extend(_calls(f"try{attempt}", bodies))
            if result is not None and result.episode is not None and result.tries == attempt:
                nodes += [(_EMPTY, None)] * (len(result.turns) - len(nodes))
                nodes = [
                    (_completed(node, turn), observation)
                    for (node, observation), turn in zip(nodes, result.turns, strict=False)
                ]
            for number, (node, observation) in enumerate(nodes, 1):
                node_path = _node_path(attempt, number)
                tries.nodes[node_path] = replace(node, spot=node_path, children=int(number < len(nodes)))
                if observation is not None:
                    tries.observations[node_path] = observation
        return tries


_EMPTY: Final = NodeDetail(spot="", id="")
_ANSWER: Final = "answer"
"""Name that the page shows for the answer of a path, in place of a tool."""
_ANSWER_CHARS: Final = 40
"""Characters of an answer beside its score and cost."""


def _sections(entries: Mapping[str, bytes]) -> dict[tuple[int, str], dict[str, bytes]]:
    """Return the entries of branching tries by try and path, in the order of the paths; the root has none of its own."""
    sections: dict[tuple[int, str], dict[str, bytes]] = {}
    for key, body in entries.items():
        if branch := _BRANCH.fullmatch(key):
            sections.setdefault((int(branch[1]), branch[2]), {})[branch[3]] = body
    return dict(sorted(sections.items(), key=lambda item: (item[0][0], _positions(item[0][1]))))


def _positions(path: str) -> list[int]:
    return [] if path == "root" else [int(position) for position in path.split("-")]


def _branch_path(attempt: int, path: str) -> str:
    """Return the node path of a path of a branching try; later tries come after all paths of the first one."""
    first, *others = _positions(path)
    return "-".join(map(str, (first + (attempt - 1) * MAX_PATHS, *others)))


def _add_section(tries: _RecordedTries, attempt: int, path: str, bodies: Mapping[str, bytes]) -> None:
    """Add what a path did after its last decision: a turn, or one for each tool call of the same answer."""
    prefix = f"try{attempt}/{path}"
    turns = {key: body for key, body in bodies.items() if key.partition("/")[0].isdecimal()}
    tries.others.extend(_calls(prefix, {key: body for key, body in bodies.items() if key not in turns}))
    if path == "root":
        return
    node_path = _branch_path(attempt, path)
    copied = bodies.get(f"copy/{path}")
    copy = None if copied is None else msgspec.json.decode(copied, type=StateCopy)
    nodes = [
        pair
        for number in sorted({key.partition("/")[0] for key in turns}, key=int)
        for pair in _turn_nodes(
            prefix, number, {key: body for key, body in turns.items() if key.startswith(f"{number}/")}
        )
    ] or [(replace(_EMPTY, tool=_ANSWER, calls=tuple(_calls(prefix, turns))), None)]
    for number, (node, observation) in enumerate(nodes):
        own = node_path if not number else f"{node_path}-{MAX_PATHS + number}"
        node = replace(node, spot=own)
        if copy is not None and copy.isolation is not Isolation.SHARED:
            node = replace(node, isolation=copy.isolation.value)
        if copy is not None and copy.reason:
            node = replace(node, reason="; ".join(text for text in (copy.reason, node.reason) if text))
        tries.nodes[own] = node
        if observation is not None:
            tries.observations[own] = observation


def _add_end(tries: _RecordedTries, attempt: int, result: TaskResult, prices: Mapping[str, Prices]) -> None:
    """Add the answer of a path, what it cost, and its score.

    :param prices: prices by role.
    """
    episode = result.episode
    if episode is None or not episode.path:
        return
    node_path = _branch_path(attempt, "-".join(map(str, episode.path)))
    node = tries.nodes.get(node_path, _EMPTY)
    if node.tool != _ANSWER:
        node_path, node = f"{node_path}-0", replace(_EMPTY, tool=_ANSWER)
    usage = sum((exchange.usage for exchange in episode.exchanges), Usage())
    cost = sum(
        prices[exchange.role].cost(exchange.usage)
        for exchange in episode.exchanges
        if exchange.role in prices
    )
    calls = sum(turn.action is not None for turn in episode.turns)
    answer = "given up by the search" if result.is_pruned else result.answer
    known = [
        answer if len(answer) <= _ANSWER_CHARS else f"{answer[:_ANSWER_CHARS]}…",
        "" if result.scored is None or result.is_pruned else f"score {result.score:g}",
        "" if result.value is UNSET else f"value {result.value:.2f}",
        f"{usage.completion_tokens:,} tokens sampled",
        f"{calls} tool calls" if calls != 1 else "1 tool call",
        f"cost {cost:.4f}" if prices else "",
        "" if result.drawn == 1 else f"stands for {result.drawn} answers",
    ]
    is_wrong = result.failure is not None or (result.scored is not None and not result.score)
    tries.nodes[node_path] = replace(
        node,
        spot=node_path,
        intent="; ".join(text for text in known if text),
        parts=parts_of(Observation((Text(answer),))),
        verdict=(Verdict.ERROR if is_wrong else Verdict.NEW).value,
        failure=result.failure,
    )


def _question(stored: StoredSeed) -> Observation:
    task, _ = task_of(stored.seed)
    return Observation((Text(task.question), *task.images))


def _completed(node: NodeDetail, turn: Turn) -> NodeDetail:
    """Add what the result of an episode has of a turn."""
    action = turn.action
    failed = turn.failure is not None or bool(node.trouble)
    return replace(
        node,
        intent=turn.step.sub_goal or turn.step.justification,
        tool=turn.step.tool_name if action is None else action.tool,
        arguments=node.arguments if action is None else action.arguments,
        verdict=(Verdict.ERROR if failed else Verdict.NEW).value,
        failure=turn.failure,
        **_judged(turn.decision),
    )


def _judged(decision: Decision | None) -> dict[str, str]:
    if decision is None:
        return {"reason": "", "judge": ""}
    return {"reason": f"{decision.assessment.value}: {decision.analysis}", "judge": "model"}


def _calls(prefix: str, bodies: Mapping[str, bytes]) -> Iterator[CallSummary]:
    for key, body in bodies.items():
        if role := _role(key):
            timed = msgspec.json.decode(body, type=TimedResult[Reply[Any]])
            yield call_of(f"{prefix}/{key}", role, timed.value, timed.seconds)


def _turn_nodes(
    prefix: str, number: str, bodies: Mapping[str, bytes]
) -> Iterator[tuple[NodeDetail, Observation | None]]:
    """Yield the node of a turn of the team, or one for each call of a tool that a single agent requested in one answer."""
    body = bodies.get(f"{number}/agent/again") or bodies.get(f"{number}/agent")
    if body is not None:
        reply = msgspec.json.decode(body, type=TimedResult[Reply[AgentAnswer]]).value
        answer = reply.value or AgentAnswer("")
        calls = tuple(_calls(prefix, bodies))
        if reply.is_unusable:
            yield _observed(replace(_lost(_EMPTY, reply.failure), calls=calls), None)
        for index, tool_call in enumerate(answer.calls):
            node = NodeDetail(
                spot="",
                id="",
                intent=answer.text,
                tool=tool_call.name,
                arguments=tool_call.arguments or {},
                calls=() if index else calls,
            )
            yield _observed(node, bodies.get(f"{number}/act/{index}"))
    elif any(not key.startswith(f"{number}/act/") for key in bodies):
        node, decision = _EMPTY, None
        for key, body in bodies.items():
            what = key.partition("/")[2]
            if what in ("next", "decide"):
                node = _chosen(node, body, is_decided=what == "decide")
            elif what.startswith("command"):
                reply = msgspec.json.decode(body, type=TimedResult[Reply[Command]]).value
                arguments = node.arguments if reply.value is None else reply.value.arguments
                node = replace(node, failure=reply.failure, arguments=arguments)
            elif what == "verify":
                decision = msgspec.json.decode(body, type=TimedResult[Reply[Decision]]).value.value
        node = replace(node, calls=tuple(_calls(prefix, bodies)), **_judged(decision))
        yield _observed(node, bodies.get(f"{number}/act"))


def _chosen(node: NodeDetail, body: bytes, *, is_decided: bool) -> NodeDetail:
    """Return a turn with the step that its planner chose."""
    if is_decided:
        reply = msgspec.json.decode(body, type=TimedResult[Reply[DecidedStep]]).value
        step = None if reply.value is None else reply.value.next
    else:
        reply = msgspec.json.decode(body, type=TimedResult[Reply[NextStep]]).value
        step = reply.value
    if step is None:
        return _lost(node, reply.failure)
    return replace(node, intent=step.sub_goal or step.justification, tool=step.tool_name)


def _lost(node: NodeDetail, failure: Failure | None) -> NodeDetail:
    """Return a turn without a step, with the reason as its result."""
    if failure is None:
        return node
    return replace(node, failure=failure, parts=parts_of(Observation((Text(failure.message),))))


def _observed(node: NodeDetail, body: bytes | None) -> tuple[NodeDetail, Observation | None]:
    """Return a turn with the result of its action, and the whole observation.

    :param body: entry of the action; `None`: it is not done.
    """
    planners = (call for call in node.calls if call.role in ("planner", "agent"))
    node = replace(node, reasoning="\n\n".join(call.reasoning for call in planners if call.reasoning))
    if body is None:
        return replace(node, verdict=Verdict.ERROR.value if node.failure is not None else ""), None
    outcome = msgspec.json.decode(body, type=TimedResult[ActionOutcome]).value
    failed = outcome.failure is not None or bool(outcome.trouble)
    node = replace(
        node,
        parts=parts_of(outcome.observation),
        verdict=(Verdict.ERROR if failed else Verdict.NEW).value,
        failure=outcome.failure,
        trouble=outcome.trouble,
    )
    return node, outcome.observation


def _role(key: str) -> str:
    """Return the role that made the call of an entry of a try; empty if it is no call."""
    if key.startswith("compaction/"):
        return "agent"
    if key.startswith(("solution", "summary/")):
        return "generator"
    first, _, rest = key.partition("/")
    return _ROLES.get(rest if first.isdecimal() else key, "")


def _order(key: str) -> tuple[int, float, int, str]:
    """Order entries by try, turn, and the order of calls in a turn."""
    attempt, _, rest = key.removeprefix("try").partition("/")
    number, _, what = rest.partition("/")
    turn = float(number) if number.isdecimal() else -1.0 if number == "analysis" else 1e9
    steps = ("next", "decide", "agent", "command", "act", "verify")
    return int(attempt), turn, next((i for i, step in enumerate(steps) if what.startswith(step)), 9), what


def _node_path(attempt: int, turn: int) -> str:
    return "-".join([str(attempt - 1), *["0"] * (turn - 1)])


def episode_record(
    tree: Tree,
    *,
    answer: str,
    score: float | None,
    references: tuple[str, ...],
    exchanges: Iterable[Exchange],
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
    calls = (calls_of_answer(call.key, call, Voice(role=call.role)) for call in exchanges)
    return SeedRecord(
        tree=tree,
        is_episode=True,
        answers=(record,),
        calls=tuple(chain.from_iterable(calls)),
        reward=score,
        facts=facts,
    )
