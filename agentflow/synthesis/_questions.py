"""Writing questions about a tree: facts, skeletons, words, checks."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.facts import (
    Fact,
    FactSpan,
    FactStore,
    Operator,
    Program,
    RejectedWording,
    Skeleton,
    Wording,
    claims_of,
    closed_sets,
    describe_program,
    enumerate_skeletons,
    evaluate,
    obfuscate,
    select_questions,
    show_value,
)
from agentflow.journal import Page
from agentflow.models import OFFLINE
from agentflow.runs import image_file
from agentflow.synthesis._attempts import Attempt, AttemptPort, Difficulty, Triage, attempt_question
from agentflow.synthesis._config import SynthesisConfig
from agentflow.synthesis._journalled_calls import JournalledCalls
from agentflow.synthesis._question_checks import CheckSettings, FactsOfTree, QuestionChecker, SearchPort
from agentflow.synthesis._question_draft import CheckedQuestion, QuestionDraft
from agentflow.synthesis._roles import QuestionRoles
from agentflow.synthesis._seed_result import (
    CitedSpan,
    Pair,
    PairAttempts,
    ReasoningStep,
    RejectedDraft,
    SeedResult,
    Trajectory,
    TriagedPair,
)
from agentflow.synthesis._selection import EvidencePath, Score, Selection, join_paths, select
from agentflow.synthesis._tree_facts import extract_facts
from agentflow.synthesis._wording_requests import set_names, wording_request
from agentflow.synthesis._worker_thread import in_worker_thread
from agentflow.trajectory import Node, Reply, Tree, digest

_REFERENCE = re.compile(r"\((\d+)\)")
_MAX_SHOWN = 6
"""Maximum number of values of a step that are listed."""


def reasoning_of(
    program: Program, store: FactStore, nodes: Sequence[Node], support: Sequence[str], least: int
) -> tuple[ReasoningStep, ...]:
    """Return the steps of a program with their results; a closing step is added if there are fewer than `least`.

    :param support: nodes to cite where several state a fact.
    """
    names = {one.id: one.description for one in store.sets.values()}
    lines = describe_program(program, names)
    cited = _Citations(nodes, support)
    shown: list[str] = []
    used: set[str] = set()
    steps: list[ReasoningStep] = []
    for number, line in enumerate(lines, start=1):
        part = program[:number]
        answers = evaluate(part, store).answers
        shown.append(_values([show_value(answer.value) for answer in answers]))
        words = _REFERENCE.sub(lambda match: shown[int(match[1]) - 1], line.partition(") ")[2])
        stated = [id for answer in answers for id in answer.facts]
        # A step that only computes rests on the facts of earlier ones.
        facts = [id for id in stated if id not in used] or stated
        used.update(facts)
        spans = [cited.fact(store.by_id[id]) for id in dict.fromkeys(facts)]
        if number == len(lines) or not spans:
            spans += [
                cited.span(store.sets[id].spans, store.sets[id].description)
                for id in closed_sets(program[number - 1 : number])
            ]
        steps.append(ReasoningStep(f"{words[0].upper()}{words[1:]}: {shown[-1]}.", tuple(spans)))
    if len(steps) < least:
        steps.append(ReasoningStep(f"So the answer is {shown[-1]}.", steps[-1].citations))
    return tuple(steps)


def _values(values: Sequence[str]) -> str:
    if len(values) > _MAX_SHOWN:
        return f"{', '.join(values[:_MAX_SHOWN])} and {len(values) - _MAX_SHOWN} others"
    return ", ".join(values)


class _Citations:
    """Citations of facts, on the nodes of a support if they state them."""

    def __init__(self, nodes: Sequence[Node], support: Sequence[str]) -> None:
        self._texts = {node.id: node.observation.text for node in nodes}
        self._files = {blob.hash: image_file(blob) for node in nodes for blob in node.observation.blobs}
        self._support = support

    def fact(self, fact: Fact) -> CitedSpan:
        """Return the citation of a fact."""
        return self.span(fact.spans, f"the {fact.relation} of {fact.subject}: {show_value(fact.value)}")

    def span(self, spans: Sequence[FactSpan], words: str) -> CitedSpan:
        """Return the citation of the first span on a node of the support, or of the first one.

        :param words: quote for a region of an image.
        """
        span = next((span for span in spans if span.node in self._support), spans[0])
        if span.region is not None:
            return CitedSpan(span.node, words, 0, 0, span.image, span.region, self._files.get(span.image, ""))
        return CitedSpan(span.node, self._texts[span.node][span.start : span.end], span.start, span.end)


_SECOND_QUESTION = re.compile(r"\band (?:what|when|how (?:many|much|\w+))\b.*\?", re.IGNORECASE)
MAX_SHARED = 0.5
"""Largest share of the facts of a question that another one of its tree may need, too."""
ROUNDS = 3
"""Times that rejected questions of a tree are replaced by others."""


async def write_questions(
    tree: Tree,
    config: SynthesisConfig,
    roles: QuestionRoles,
    page: Page,
    *,
    search: SearchPort | None = None,
    agent: AttemptPort | None = None,
) -> SeedResult:
    """Select paths of a tree and write questions about its facts; calls recorded on the page are not repeated.

    See docs/synthesis.md for an example.

    :param search: finds texts with alternative answers.
    :param agent: tries the questions, if the settings ask for attempts.
    :raises RunStopped: if the run can't continue; the page has the results so far.
    :raises ConfigurationError: if a user's strategy can't be used.
    """
    selection = select(tree, config)
    if not selection.chosen:
        return SeedResult(
            tree=tree, left_out=selection.left_out, model_failures=JournalledCalls(page).failures()
        )
    calls = JournalledCalls(page)
    known, faults = await extract_facts(tree, config.seed_description, roles, calls)
    checker, skeletons = await in_worker_thread(partial(_prepare, known, config, roles, calls, search))
    writer = _QuestionWriter(tree, known, config, roles, checker, calls, agent)
    written, rejected = await _write_all(writer, skeletons, config.max_questions)
    pairs, joined = await in_worker_thread(partial(_place, tree, known, selection, written, config))
    kept = list(zip(pairs, written, strict=True))
    return SeedResult(
        tree=tree,
        trajectories=(*(_trajectory(tree, path, score) for path, score in selection.chosen), *joined),
        left_out=selection.left_out,
        facts=len(known.store.facts),
        claims=claims_of(known.store.facts),
        extraction_faults=faults,
        skeletons=dict(sorted(Counter(str(skeleton.kind) for skeleton in skeletons).items())),
        pairs=tuple(pair for pair, one in kept if one.triage is None),
        triaged=tuple(TriagedPair(pair, one.triage) for pair, one in kept if one.triage is not None),
        attempts=tuple(
            PairAttempts(pair.id, one.attempts) for pair, one in kept if one.triage is None and one.attempts
        ),
        rejected=rejected,
        usage=calls.usage,
        model_failures=calls.failures(),
    )


def _prepare(
    known: FactsOfTree,
    config: SynthesisConfig,
    roles: QuestionRoles,
    calls: JournalledCalls,
    search: SearchPort | None,
) -> tuple[QuestionChecker, list[Skeleton]]:
    """Return the checker of a tree, and the skeletons whose facts pass its checks, the best first."""
    checker = QuestionChecker(known, check_settings(config), roles, calls, look=roles.look, search=search)
    return checker, [
        skeleton
        for skeleton in enumerate_skeletons(
            known.store,
            known.seed_names,
            min_nodes=config.min_observations,
            records=_asks_for_records(config),
        )
        if not checker.check_facts(draft_of(skeleton, ""))
    ]


def _asks_for_records(config: SynthesisConfig) -> bool:
    """Return true if an example asks for a thing and its value: `…, and what was that rate?`

    The offline engine has no words for such questions.
    """
    wanted = any(_SECOND_QUESTION.search(example.question) for example in config.examples)
    return wanted and config.model_for("generator").name != OFFLINE


def check_settings(config: SynthesisConfig) -> CheckSettings:
    """Return the settings of the checks."""
    return CheckSettings(
        max_words=config.max_question_words,
        min_hops=config.min_hops,
        min_observations=config.min_observations,
        closed_book_samples=config.closed_book_samples if config.check_answerability else 0,
        evidence_samples=config.evidence_samples,
        evidence_chars=config.max_evidence_chars,
        require_seed=config.require_seed,
    )


class _Written(Struct, frozen=True):
    """Result of writing the question of a skeleton."""

    skeleton: Skeleton
    draft: QuestionDraft | None = None
    """The accepted draft; `None` if all were rejected."""
    checked: CheckedQuestion = CheckedQuestion()
    tries: int = 0
    rejected: tuple[RejectedDraft, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    difficulty: Difficulty | None = None
    triage: Triage | None = None


async def _write_all(
    writer: "_QuestionWriter", skeletons: Sequence[Skeleton], limit: int
) -> tuple[list[_Written], tuple[RejectedDraft, ...]]:
    """Write the questions of the best skeletons; replace rejected ones by others."""
    remaining = list(skeletons)
    kept: list[_Written] = []
    rejected: list[RejectedDraft] = []
    for _ in range(ROUNDS):
        taken = [one.skeleton for one in kept]
        chosen = select_questions(remaining, limit, shared=MAX_SHARED, taken=taken)
        if not chosen:
            break
        for written in await together(partial(writer.write, skeleton) for skeleton in chosen):
            rejected += written.rejected
            if written.draft is not None:
                kept.append(written)
        remaining = [skeleton for skeleton in remaining if skeleton not in chosen]
    return kept, tuple(rejected)


class _QuestionWriter:
    """Writes the questions of a tree."""

    def __init__(
        self,
        tree: Tree,
        known: FactsOfTree,
        config: SynthesisConfig,
        roles: QuestionRoles,
        checker: QuestionChecker,
        calls: JournalledCalls,
        agent: AttemptPort | None,
    ) -> None:
        self._tree = tree
        self._known = known
        self._config = config
        self._roles = roles
        self._checker = checker
        self._calls = calls
        self._agent = agent

    async def write(self, skeleton: Skeleton) -> _Written:
        """Write the question of a skeleton, and measure its difficulty; one that is always solved is raised by a level once."""
        store = self._known.store
        first = await self._measure(
            await self._write(obfuscate(skeleton, self._config.question_level, store))
        )
        if first.triage is not Triage.ALWAYS_SOLVED:
            return first
        harder = obfuscate(skeleton, first.skeleton.level + 1, store)
        if harder.level <= first.skeleton.level:
            return first
        second = await self._measure(await self._write(harder))
        rejected = (*first.rejected, *second.rejected)
        return replace(first if second.draft is None else second, rejected=rejected)

    async def _measure(self, written: _Written) -> _Written:
        """Have the agent try an accepted question."""
        settings = self._config.difficulty
        if written.draft is None or self._agent is None or not settings.attempts:
            return written
        page = self._calls.page.section(f"attempt/{written.skeleton.id}/{written.tries}")
        attempts, usage = await attempt_question(
            self._agent, written.draft.question, written.draft.answer, page, settings.attempts
        )
        self._calls.count("agent", usage)
        if not attempts:
            return written
        difficulty = Difficulty.of(attempts)
        triage = difficulty.triage(settings.window)
        return replace(written, attempts=attempts, difficulty=difficulty, triage=triage)

    async def _write(self, skeleton: Skeleton) -> _Written:
        """Write up to `max_drafts` drafts until one is accepted, or until its fault is not in the words."""
        refused: list[RejectedWording] = []
        rejected: list[RejectedDraft] = []
        for number in range(1, self._config.max_drafts + 1):
            request = wording_request(skeleton, self._known, self._tree, self._config, refused)
            key = f"{skeleton.id}/{number}"
            wording = await self._calls.ask(
                f"word/{key}", Reply[Wording], "generator", partial(self._roles.word, request)
            )
            if wording is None:
                continue
            draft = draft_of(skeleton, wording.question)
            checked = await self._checker.check(draft, key)
            if checked.accepted:
                return _Written(skeleton, draft, checked, number, tuple(rejected))
            rejected.append(_rejection(skeleton, number, draft, checked))
            if not checked.reworded:
                break
            reasons = tuple(finding.reason for finding in checked.findings)
            refused.append(RejectedWording(draft.question, reasons))
        return _Written(skeleton, rejected=tuple(rejected))


def draft_of(skeleton: Skeleton, question: str) -> QuestionDraft:
    """Return the draft with these words."""
    return QuestionDraft(
        question=" ".join(question.split()),
        kind=skeleton.kind,
        program=skeleton.program,
        answer=skeleton.answer,
        facts=skeleton.facts,
        given=skeleton.given,
        hidden=skeleton.hidden,
        level=skeleton.level,
    )


def _rejection(
    skeleton: Skeleton, number: int, draft: QuestionDraft, checked: CheckedQuestion
) -> RejectedDraft:
    return RejectedDraft(
        skeleton_id=skeleton.id,
        kind=skeleton.kind,
        number=number,
        question=draft.question,
        answer=show_value(draft.answer),
        findings=checked.findings,
        votes=checked.votes,
    )


def _place(
    tree: Tree, known: FactsOfTree, selection: Selection, written: Sequence[_Written], config: SynthesisConfig
) -> tuple[tuple[Pair, ...], list[Trajectory]]:
    """Return the pairs, each on the first selected path with its nodes, and the paths of those that span branches."""
    own = {path.id: frozenset(node.id for node in path.nodes) for path, _ in selection.chosen}
    joined: dict[str, Trajectory] = {}
    numbers: Counter[str] = Counter()
    pairs: list[Pair] = []
    for one in written:
        support = one.checked.support
        path_id = next((id for id, nodes in own.items() if nodes.issuperset(support)), None)
        if path_id is None:
            path, score = join_paths(tree, support, config.max_depth)
            path_id = path.id
            joined.setdefault(path_id, replace(_trajectory(tree, path, score), joined=True))
        pairs.append(_pair(known, one, path_id, numbers[path_id], config))
        numbers[path_id] += 1
    return tuple(pairs), list(joined.values())


def _pair(known: FactsOfTree, written: _Written, path: str, number: int, config: SynthesisConfig) -> Pair:
    assert written.draft is not None  # only accepted drafts become pairs
    draft, checked, store = written.draft, written.checked, known.store
    return Pair(
        question=draft.question,
        answer=show_value(draft.answer),
        value=draft.answer,
        kind=draft.kind,
        level=draft.level,
        program=describe_program(draft.program, set_names(store)),
        facts=tuple(store.by_id[id] for id in checked.needed),
        asks=asked_fact(draft.program, store),
        support=checked.support,
        trajectory_id=path,
        number=number,
        reasoning_steps=reasoning_of(
            draft.program, store, known.nodes, checked.support, config.min_reasoning_steps
        ),
        votes=checked.votes,
        engine=config.model_for("generator").name,
        tries=written.tries,
        difficulty=written.difficulty,
    )


def asked_fact(program: Program, store: FactStore) -> str:
    """Return the same text for all questions that ask for the same fact, or compute the same from the same facts."""
    last = program[-1]
    facts = [store.by_id[id] for id in evaluate(program, store).answers[0].facts]
    if last.operator in (Operator.FOLLOW, Operator.FIND):
        return digest([last.operator, *(f"{fact.subject}: {fact.relation}" for fact in facts[-1:])])
    return digest([last.operator, sorted(f"{fact.subject}: {fact.relation}" for fact in facts)])


def _trajectory(tree: Tree, path: EvidencePath, score: Score) -> Trajectory:
    return Trajectory(id=path.id, nodes=(tree.nodes[0].id, *(node.id for node in path.nodes)), score=score)
