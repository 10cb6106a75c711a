"""Writing questions about a tree: its documents, a gate for each group of them with calls that are kept on the journal page, and the pairs on their paths."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, TypeAlias, TypeVar

import anyio.to_thread
from anyio.lowlevel import RunVar
from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.engine import BranchSandboxes, ExecutorPort
from agentflow.errors import RunStopped
from agentflow.journal import Page
from agentflow.questions import (
    KIND_TURNS,
    CorpusSearch,
    Draft,
    GateRoles,
    GateSettings,
    JudgedDraft,
    ProposalRequest,
    QuestionGate,
    RepeatedCalls,
    RuleSettings,
    ShownDocument,
    asks_twice,
    divided,
    documents_of,
    value_of,
)
from agentflow.runs import RoleReplies, image_file
from agentflow.sandbox import Sandbox, Tool
from agentflow.synthesis._attempts import Attempt, AttemptPort, Difficulty, Triage, attempt_question
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._seed_result import (
    CitedSpan,
    Pair,
    PairAttempts,
    ReasoningStep,
    RejectedDraft,
    SeedResult,
    Trajectory,
    TriagedPair,
    UsedDocument,
)
from agentflow.synthesis._selection import Selection, join_paths, select, trimmed_path
from agentflow.trace import Action, ActionOutcome, Failure, Node, Observation, Reply, Tree, Usage, Verdict

MAX_RESULT_CHARS = 12_000
"""Characters of the results that a reader is shown."""
MAX_RESULTS = 10
"""Number of documents of the results that a reader is shown."""


def search_tool(tools: Sequence[Tool]) -> str | None:
    """Return the first tool that has no state, changes nothing, and takes a query."""
    return next((tool.name for tool in tools if _searches(tool)), None)


def _searches(tool: Tool) -> bool:
    return (
        not tool.stateful and tool.hints.read_only is True and tool.input_schema.get("required") == ["query"]
    )


@dataclass(frozen=True)
class PageSearch:
    """Search for one seed, whose results are kept on its page. Implements `CorpusSearch`."""

    sandbox: Sandbox
    executor: ExecutorPort
    tool: str
    page: Page

    async def search(self, key: str, queries: Sequence[str]) -> tuple[ShownDocument, ...]:
        """Return the documents that match the queries; empty if all searches failed."""
        actions = [Action(self.tool, {"query": query}) for query in queries]
        outcomes = await together(
            partial(
                self.page.once,
                f"{key}/{number}",
                ActionOutcome,
                partial(self.executor.act, self.sandbox, action),
            )
            for number, action in enumerate(actions)
        )
        nodes = [
            Node(
                id=f"{key}/{number}",
                parent="",
                depth=1,
                position=number,
                intent="",
                action=action,
                outcome=outcome,
                verdict=Verdict.NEW,
            )
            for number, (action, outcome) in enumerate(zip(actions, outcomes, strict=True))
            if outcome.failure is None
        ]
        groups = divided(documents_of(nodes), characters=MAX_RESULT_CHARS, most=MAX_RESULTS)
        return groups[0] if groups else ()


@dataclass(frozen=True)
class TreeCalls:
    """Calls of a tree, made again in fresh sandboxes: a question rests on results that anybody can get again.

    Implements `RepeatedCalls`; new outcomes are kept on the page of the tree.
    """

    sandboxes: BranchSandboxes
    executor: ExecutorPort
    tree: Tree
    page: Page

    async def fault(self, node: str) -> str:
        """Return why the call of a node does not give its result again; empty if it does, or must not be repeated."""
        nodes = (self.tree.by_id[id] for id in trimmed_path(self.tree, [node]))
        # The calls that it rests on come first.
        actions = [made.action for made in nodes if made.action is not None]
        tools, is_repeatable = self.sandboxes.tools, self.sandboxes.is_repeatable
        if any(tools[action.tool].hints.open_world and not is_repeatable(action) for action in actions):
            return ""
        outcome = await self.page.once(f"again/{node}", ActionOutcome, partial(self._make, actions))
        if outcome.failure is not None:
            return f"the call that it rests on fails when it is made again: {outcome.failure.message}"
        if outcome.observation != self.tree.by_id[node].observation:
            return "the call that it rests on gives another result when it is made again"
        return ""

    async def _make(self, actions: Sequence[Action]) -> ActionOutcome:
        """Make calls one after the other; return the outcome of the last one."""
        outcome = ActionOutcome(Observation())
        base = self.sandboxes.base
        async with self.sandboxes.reserve(1):
            sandbox = await base.fork() if self.sandboxes.stateful else base
            try:
                for action in actions:
                    outcome = await self.executor.act(sandbox, action)
            finally:
                if sandbox is not base:
                    await sandbox.close()
        return outcome


T = TypeVar("T")

GROWTH_KEYS = ("plan/", "act/", "node/", "level/", "diverged/")
"""Beginnings of the keys of growing."""
_ROLES = {
    "plan": "planner", "node": "verifier", "recall": "learner",
    **dict.fromkeys(("hidden", "hidden2", "evidence", "others"), "reader"),
    **dict.fromkeys(("propose", "repair", "fuzz", "look", "instruct", "task"), "generator"),
}  # fmt: skip
"""Roles by the first part of the keys of their model calls."""
_AGENT_CALLS = ("/agent", "/solution")
"""Ends of the keys of model calls in attempts."""


def replies_on(page: Page) -> RoleReplies:
    """Return the replies on the page of a seed of all models whose answers are needed: the learner may say anything."""
    replies = RoleReplies()
    for key in tuple(page.keys()):
        role = _ROLES.get(key.partition("/")[0], "agent")
        if role != "learner" and (reply := _reply(page, key)) is not None and reply.usage is not None:
            replies.add(role, reply.failure)
    return replies


def _reply(page: Page, key: str) -> "_Recorded | None":
    """Return the reply of a model under a key; `None`: another effect."""
    first = key.partition("/")[0]
    try:
        if first == "attempt" and key.endswith(_AGENT_CALLS):
            timed = page.recall(key, _TimedRecord)
            return None if timed is None else timed.value
        return page.recall(key, _Recorded) if first in _ROLES else None
    except RunStopped:
        # Tasks record effects of other types, too.
        return None


def keys_to_keep(replies: RoleReplies) -> tuple[str, ...]:
    """Return the beginnings of the keys that stay when a seed is worked on again: those of a tree that was well grown."""
    return () if {"planner", "verifier"} & replies.failed.keys() else GROWTH_KEYS


class JournalledCalls:
    """Makes calls whose results are kept on a page: after a crash, none is repeated."""

    def __init__(self, page: Page) -> None:
        self.page = page
        """The page."""
        self.usage: dict[str, Usage] = {}
        """Usage of models by role."""

    async def reply(
        self, key: str, kind: type[Reply[T]], call: Callable[[], Awaitable[Reply[T]]]
    ) -> Reply[T]:
        """Return the reply to a model call."""
        reply = await self.page.once(key, kind, call)
        self.count(_ROLES[key.partition("/")[0]], reply.usage)
        return reply

    def count(self, role: str, usage: Usage) -> None:
        """Count the usage of a role."""
        self.usage[role] = self.usage.get(role, Usage()) + usage

    def failures(self) -> dict[str, int]:
        """Count the failed model calls on the page, by kind; those of growing, too."""
        kinds: Counter[str] = Counter()
        for key in tuple(self.page.keys()):
            if not key.startswith("attempt/"):
                reply = _reply(self.page, key)
                if reply is not None and reply.failure is not None:
                    kinds[reply.failure.kind] += 1
        return dict(sorted(kinds.items()))


class _Recorded(Struct, frozen=True):
    """Reply of any type."""

    failure: Failure | None = None
    usage: Usage | None = None
    """`None`: another effect."""


class _TimedRecord(Struct, frozen=True):
    """Reply in an attempt."""

    value: _Recorded


MIN_CHARACTERS: Final = 1_000
"""Characters of documents below which they are not divided further for a small model."""
DraftSource: TypeAlias = Callable[[Sequence[ShownDocument]], Sequence[Draft]]
"""Returns drafts about documents."""
_THREAD: Final[RunVar[anyio.CapacityLimiter]] = RunVar("agentflow.synthesis.questions")
"""The thread in which trees are divided: several would share the interpreter's lock and finish no earlier."""


async def write_questions(
    tree: Tree,
    config: SynthesisConfig,
    roles: GateRoles,
    page: Page,
    *,
    search: CorpusSearch | None = None,
    repeated: RepeatedCalls | None = None,
    agent: AttemptPort | None = None,
    drafts: DraftSource | None = None,
) -> SeedResult:
    """Select paths of a tree and write questions over its documents; calls recorded on the page are not repeated.

    See docs/synthesis.md for an example.

    :param search: finds documents with other answers.
    :param repeated: makes calls again whose results a question needs.
    :param agent: tries the questions, if the settings ask for attempts.
    :param drafts: returns the drafts about documents to check, instead of having some written.
    :raises RunStopped: if the run can't continue; the page has the results so far.
    :raises ConfigurationError: if a user's strategy can't be used.
    """
    selection = select(tree, config)
    calls = JournalledCalls(page)
    if not selection.chosen:
        return SeedResult(tree=tree, left_out=selection.left_out, model_failures=calls.failures())
    thread = _THREAD.get(None)
    if thread is None:
        _THREAD.set(thread := anyio.CapacityLimiter(1))
    # In a thread, so that the calls of other trees continue.
    divide = partial(groups_of, tree, config, divides=drafts is None)
    documents, groups = await anyio.to_thread.run_sync(divide, limiter=thread)
    settings = gate_settings(config)

    def gate_of(group: Sequence[ShownDocument], name: str) -> QuestionGate:
        return QuestionGate(group, roles, calls, settings, search=search, repeated=repeated, group=name)

    judged = await _judge(tree, config, gate_of, groups, drafts)
    passed = [(group, draft) for group, draft in judged if draft.passed][: config.max_questions]
    measured = await together(
        partial(_measure, calls, agent, config, draft, key) for key, (_, draft) in enumerate(passed, 1)
    )
    pairs, joined = _on_paths(tree, selection, passed, config)
    kept = [
        (replace(pair, difficulty=difficulty), attempts, triage)
        for pair, (attempts, difficulty, triage) in zip(pairs, measured, strict=True)
    ]
    return SeedResult(
        tree=tree,
        trajectories=(*(Trajectory.of(tree, path, score) for path, score in selection.chosen), *joined),
        left_out=selection.left_out,
        documents=len(documents),
        copies=sum(len(document.copies) for document in documents),
        pairs=tuple(pair for pair, _, triage in kept if triage is None),
        triaged=tuple(TriagedPair(pair, triage) for pair, _, triage in kept if triage is not None),
        attempts=tuple(PairAttempts(pair.id, made) for pair, made, triage in kept if triage is None and made),
        rejected=tuple(_rejection(draft) for _, draft in judged if not draft.passed),
        usage=calls.usage,
        model_failures=calls.failures(),
    )


def gate_settings(config: SynthesisConfig) -> GateSettings:
    """Return the settings of the gate."""
    return GateSettings(
        rules=RuleSettings(
            max_words=config.max_question_words,
            min_steps=config.min_reasoning_steps,
            min_documents=config.min_documents,
            with_values=any(asks_twice(example.question) for example in config.examples),
        ),
        drafts=config.drafts,
        keep=min(config.drafts, config.max_questions),
        recall_samples=config.closed_book_samples,
        drop_known=config.known == "drop",
        evidence_samples=config.evidence_samples,
        repairs=config.repair,
        fuzz=config.fuzz,
    )


def groups_of(
    tree: Tree, config: SynthesisConfig, *, divides: bool
) -> tuple[tuple[ShownDocument, ...], list[tuple[ShownDocument, ...]]]:
    """Return the documents of a tree, and the groups of them that have enough for a question; undivided, all are one."""
    documents = documents_of(tree.nodes)
    if not divides:
        everything = 2 * sum(document.size for document in documents)
        return documents, list(divided(documents, characters=everything, most=max(1, len(documents))))
    groups = divided(documents, characters=config.max_evidence_chars, most=config.max_documents)
    wanted = [group for group in groups if len(group) >= config.min_documents]
    return documents, wanted[: config.max_groups]


async def _judge(
    tree: Tree,
    config: SynthesisConfig,
    gate_of: Callable[[Sequence[ShownDocument], str], QuestionGate],
    groups: Sequence[tuple[ShownDocument, ...]],
    drafts: DraftSource | None,
) -> list[tuple[Sequence[ShownDocument], JudgedDraft]]:
    """Have drafts written over each group of documents, or check given ones over it; return all, with their documents."""
    if drafts is None:
        writing = [
            partial(_write, tree, config, gate_of, group, str(number), config.drafts)
            for number, group in enumerate(groups, 1)
        ]
    else:
        writing = [partial(_check, gate_of, group, drafts) for group in groups]
    return [judged for written in await together(writing) for judged in written]


async def _write(
    tree: Tree,
    config: SynthesisConfig,
    gate_of: Callable[[Sequence[ShownDocument], str], QuestionGate],
    group: tuple[ShownDocument, ...],
    name: str,
    count: int,
) -> list[tuple[Sequence[ShownDocument], JudgedDraft]]:
    """Write questions over a group of documents; return all drafts with what their writer was shown.

    If the documents do not fit into the context of the model, fewer questions are written over each half of them.
    """
    gate = gate_of(group, name)
    settings = gate_settings(config)
    request = ProposalRequest(
        documents=group,
        count=count,
        keep=min(count, settings.keep),
        kinds=KIND_TURNS[tree.seed.index % len(KIND_TURNS)],
        min_documents=settings.rules.min_documents,
        min_steps=settings.rules.min_steps,
        max_words=settings.rules.max_words,
        seed=tree.seed.content,
        kwargs=tree.seed.kwargs,
        seed_description=config.seed_description,
        tips=config.synthesis_tips,
        examples=config.examples,
    )
    judged = await gate.write(request)
    half = sum(document.size for document in group) // 2
    if not gate.too_long or half < MIN_CHARACTERS:
        return [(group, draft) for draft in judged]
    halves = divided(group, characters=half, most=config.max_documents)
    wanted = [documents for documents in halves if len(documents) >= config.min_documents][:2]
    written = await together(
        partial(_write, tree, config, gate_of, documents, f"{name}.{number}", max(1, count // 2))
        for number, documents in enumerate(wanted, 1)
    )
    return [draft for part in written for draft in part]


async def _check(
    gate_of: Callable[[Sequence[ShownDocument], str], QuestionGate],
    group: tuple[ShownDocument, ...],
    drafts: DraftSource,
) -> list[tuple[Sequence[ShownDocument], JudgedDraft]]:
    """Check given drafts over a group of documents."""
    unchecked = [JudgedDraft(draft=draft, number=number) for number, draft in enumerate(drafts(group), 1)]
    return [(group, draft) for draft in await gate_of(group, "1").judge(unchecked)]


async def _measure(
    calls: JournalledCalls,
    agent: AttemptPort | None,
    config: SynthesisConfig,
    judged: JudgedDraft,
    number: int,
) -> tuple[tuple[Attempt, ...], Difficulty | None, Triage | None]:
    """Have the agent try an accepted question."""
    settings = config.difficulty
    if agent is None or not settings.attempts:
        return (), None, None
    page = calls.page.section(f"attempt/{number}")
    draft = judged.draft
    attempts, usage = await attempt_question(agent, draft.question, value_of(draft), page, settings.attempts)
    calls.count("agent", usage)
    if not attempts:
        return (), None, None
    difficulty = Difficulty.of(attempts)
    return attempts, difficulty, difficulty.triage(settings.window)


def _on_paths(
    tree: Tree,
    selection: Selection,
    passed: Sequence[tuple[Sequence[ShownDocument], JudgedDraft]],
    config: SynthesisConfig,
) -> tuple[list[Pair], list[Trajectory]]:
    """Return the pairs, each on the first selected path with its nodes, and the paths of those that span branches."""
    nodes_by_path = {path.id: frozenset(node.id for node in path.nodes) for path, _ in selection.chosen}
    joined: dict[str, Trajectory] = {}
    numbers: Counter[str] = Counter()
    pairs: list[Pair] = []
    for documents, judged in passed:
        steps = tuple(_steps(tree, documents, judged))
        support = _support(tree, steps)
        path_id = next((id for id, nodes in nodes_by_path.items() if nodes.issuperset(support)), None)
        if path_id is None:
            path, score = join_paths(tree, support, config.max_depth)
            path_id = path.id
            joined.setdefault(path_id, Trajectory.of(tree, path, score, joined=True))
        pairs.append(_pair(tree, documents, judged, steps, support, path_id, numbers[path_id], config))
        numbers[path_id] += 1
    return pairs, list(joined.values())


def _pair(
    tree: Tree,
    documents: Sequence[ShownDocument],
    judged: JudgedDraft,
    steps: tuple[ReasoningStep, ...],
    support: tuple[str, ...],
    path: str,
    number: int,
    config: SynthesisConfig,
) -> Pair:
    draft = judged.draft
    used = [document for document in documents if document.number in draft.documents]
    return Pair(
        question=draft.question,
        answer=draft.answer,
        value=value_of(draft),
        unit=draft.unit,
        kind=draft.kind,
        asker=draft.asker,
        documents=tuple(UsedDocument.of(document, _licence_of(document, config)) for document in used),
        rivals=tuple(rival.answer for rival in draft.rivals),
        support=support,
        path=trimmed_path(tree, support),
        trajectory_id=path,
        number=number,
        reasoning_steps=steps,
        votes=judged.votes,
        hops=judged.necessary or len(used),
        naturalness=judged.naturalness,
        known=judged.known,
        disputed=judged.disputed,
        engine=config.model_for("generator").name,
        proposal=judged.number,
        tries=judged.attempt,
    )


def _licence_of(document: ShownDocument, config: SynthesisConfig) -> str:
    """Return the licence of a document by the settings; empty if it is not known."""
    return next((licence for name, licence in config.licences.items() if fnmatchcase(document.id, name)), "")


def _steps(tree: Tree, documents: Sequence[ShownDocument], judged: JudgedDraft) -> Iterator[ReasoningStep]:
    """Yield the steps of a draft, with the places of their quotes in observations."""
    passages = {passage.number: passage for document in documents for passage in document.passages}
    for step in judged.draft.steps:
        passage = passages.get(step.passage) if step.quote else None
        cited: list[CitedSpan] = []
        for node, start, end in () if passage is None else passage.places_of(step.quote):
            text = tree.by_id[node].observation.text
            cited.append(CitedSpan(node, text[start:end], start, end))
        if passage is not None and passage.image is not None and not cited:
            blob = passage.image
            cited.append(CitedSpan(passage.node, step.quote, 0, 0, blob.hash, step.region, image_file(blob)))
        yield ReasoningStep(step.statement, tuple(cited), step.computes)


def _support(tree: Tree, steps: Sequence[ReasoningStep]) -> tuple[str, ...]:
    """Return the nodes that steps cite, in path order."""
    cited = {span.node_id for step in steps for span in step.citations}
    return tuple(node.id for node in tree.nodes if node.id in cited)


def _rejection(judged: JudgedDraft) -> RejectedDraft:
    draft = judged.draft
    return RejectedDraft(
        kind=draft.kind,
        number=judged.number,
        tries=judged.attempt,
        question=draft.question,
        answer=draft.answer,
        findings=judged.findings,
        votes=judged.votes,
    )
