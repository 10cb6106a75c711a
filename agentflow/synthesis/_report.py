"""Progress of a synthesis, and its quality report."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from agentflow.questions import GateCheck
from agentflow.runs import RunProgress, RunStatus, cost_by_role, counts_text, prices_as_of
from agentflow.synthesis._config import Role, SynthesisConfig
from agentflow.synthesis._seed_result import Pair, SeedResult, Surplus, Trajectory
from agentflow.trace import Node, Seed, Tree, Usage, Verdict

_PREVIEWS = 2


class PairPreview(Struct, frozen=True):
    """A pair or a task that was accepted just now."""

    question: str
    """The question, or the instruction of a task."""
    answer: str
    """The answer; empty if a state solves the task."""


class SynthesisStatus(RunStatus, frozen=True, kw_only=True):
    """Progress of a synthesis at one moment."""

    nodes: dict[str, int]
    """Number of nodes by verdict, of the trees that this process grew or resumed."""
    questions: int
    """Number of pairs that this process accepted."""
    rejected: int
    """Number of drafts that it rejected."""
    tasks: int = 0
    """Number of tasks that it accepted."""
    latest: tuple[PairPreview, ...] = ()
    """The last pairs or tasks that it accepted, the newest first."""


class SynthesisProgress(RunProgress):
    """Counters of an active synthesis."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.questions = 0
        """Number of accepted pairs."""
        self.tasks = 0
        """Number of accepted tasks."""
        self.rejected = 0
        """Number of rejected drafts."""
        self._nodes: Counter[str] = Counter()
        self._latest: deque[PairPreview] = deque(maxlen=_PREVIEWS)

    def count_node(self, seed: Seed, node: Node, recalled: bool) -> None:
        """Count a node, and its failure unless that was counted when it happened."""
        if node.parent is not None:
            self._nodes[node.verdict.value] += 1
        if node.failure is not None and not recalled:
            self.failures[f"tool {node.failure.kind}"] += 1

    def preview(self, question: str, answer: str) -> None:
        """Remember an accepted pair or task for a while."""
        self._latest.appendleft(PairPreview(question, answer))

    def status(self) -> SynthesisStatus:
        """Return the current progress."""
        return SynthesisStatus(
            **self._status_fields(),
            nodes=dict(sorted(self._nodes.items())),
            questions=self.questions,
            rejected=self.rejected,
            tasks=self.tasks,
            latest=tuple(self._latest),
        )


_NAMED_FAILURES = 20


_ROLES: tuple[Role, ...] = ("planner", "verifier", "generator", "reader", "learner", "agent")


_ORDER = tuple(GateCheck)


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


class FailedSeed(Struct, frozen=True):
    """Seed whose work failed."""

    source_id: str
    """Id of the seed."""
    why: str
    """Reason."""


class Report(Struct, frozen=True, kw_only=True):
    """Quality report of a run, computed from the results in the journal: a crash does not change it."""

    engines: dict[str, str]
    """Model name by role."""
    seeds: int
    """Finished seeds."""
    failed_seeds: int
    """Finished seeds whose work failed."""
    failures_of_seeds: tuple[FailedSeed, ...]
    """The first failed seeds with their reasons."""
    trees: int
    """Grown trees."""
    nodes: int
    """Executed actions."""
    verdicts: dict[str, int]
    """Nodes by verdict."""
    duplicates: int
    """Proposed actions rejected as duplicates."""
    stalled: int
    """Nodes with fewer children than requested."""
    trajectories: int
    """Paths in the file: the selected ones, and joined ones."""
    selected_paths: int
    """Paths selected from trees."""
    joined_paths: int
    """Paths that join several branches, each for a question with documents of all of them."""
    left_out: dict[str, int]
    """Paths not selected, by reason."""
    drafts: int
    """Drafts written."""
    rejected: dict[str, int]
    """Findings about rejected drafts, by check; a draft may have several."""
    rejection_examples: dict[str, str]
    """The first reason of each check."""
    pairs: int
    """Pairs in the file."""
    near_duplicates: int
    """Pairs and tasks that an earlier seed has already."""
    documents: int
    """Documents that the trees show."""
    copies: int
    """Documents that are copies or translations of these."""
    passing: dict[str, float]
    """Share of drafts that passed each check, of those that reached it, in the order of the checks."""
    repaired: int
    """Pairs in the file that were written anew after a check."""
    kinds: dict[str, int]
    """Pairs in the file by kind."""
    hops: dict[str, int]
    """Pairs in the file by number of documents that proved necessary."""
    naturalness: float
    """Mean likelihood that an expert would ask a pair of the file, from 1 to 5, as readers see it; 0 without readers."""
    known: dict[str, int]
    """Pairs in the file by share of right answers from memory; empty if nobody was asked."""
    disputed: int
    """Pairs in the file of which a model is certain of another answer."""
    path_calls: int
    """Calls on the paths of the pairs in the file."""
    trimmed_calls: int
    """Calls among them that no answer needs: exports leave them out."""
    votes: dict[str, int]
    """Samples of models about the pairs in the file, by check."""
    agreement: dict[str, float]
    """Share of samples in favour of the pairs in the file, by check."""
    pass_rates: dict[str, int]
    """Pairs in the file by share of right attempts; empty without attempts."""
    triaged: dict[str, int]
    """Pairs that passed every check and whose measured difficulty does not fit, by reason."""
    calls_per_pair: float
    """Model calls of the run per pair or task in the file; 0 without any."""
    tokens_per_pair: float
    """Tokens of the run per pair or task in the file; 0 without any."""
    check_calls_per_pair: float
    """Model calls after exploration per pair in the file, without those from memory and attempts; 0 without any."""
    check_tokens_per_pair: float
    """Tokens of these calls; 0 without any."""
    usage: dict[str, Usage]
    """Model usage by role."""
    cost: dict[str, float]
    """Cost by role, of models with prices."""
    cost_per_pair: float
    """Cost of the run per pair or task in the file; 0 without any, and without prices."""
    prices_as_of: str
    """Date of the built-in prices, if they were used for the cost; else empty."""
    model_failures: dict[str, int]
    """Model calls that failed for good, by kind."""
    tool_failures: dict[str, int]
    """Tool calls that failed, by kind."""
    dropped_tools: dict[str, str]
    """Reasons of requested tools that could not be used, by name."""
    why_empty: str = ""
    """Reason that there is neither a pair nor a task; empty if there are some."""
    surplus: dict[str, int] = field(default_factory=dict[str, int])
    """Pairs, and tasks, that passed every check and are not in their file, by reason."""
    tasks: int = 0
    """Tasks in the file."""
    rejected_tasks: dict[str, int] = field(default_factory=dict[str, int])
    """Problems of rejected tasks; a task may have several."""

    def _repr_html_(self) -> str:
        from agentflow.synthesis._display import report_card  # it shows reports, and knows this class

        return report_card(self)


class ReportBuilder:
    """Builds a report result by result. Its memory does not grow with the number of seeds."""

    def __init__(self, config: SynthesisConfig, dropped_tools: Mapping[str, str]) -> None:
        self._config = config
        self._dropped_tools = dict(dropped_tools)
        # Counts have the names of the report's fields.
        self._counts: Counter[str] = Counter()
        self._groups: dict[str, Counter[str]] = {}
        self._usage: dict[str, Usage] = {}
        self._failed: list[FailedSeed] = []
        self._examples: dict[str, str] = {}
        self._naturalness = 0.0

    def add(self, seed: Seed, result: SeedResult) -> None:
        """Count the result of a seed."""
        self._counts["seeds"] += 1
        if result.failure:
            self._counts["failed_seeds"] += 1
            if len(self._failed) < _NAMED_FAILURES:
                self._failed.append(FailedSeed(seed.id, result.failure))
        if result.tree is not None:
            self._add_tree(result.tree)
        self._group("triaged").update(triaged.reason for triaged in (*result.triaged, *result.triaged_tasks))
        rates = (task.difficulty for task in result.tasks if task.difficulty is not None)
        self._group("pass_rates").update(f"{rate['correct']}/{rate['attempts']}" for rate in rates)
        joined = sum(path.joined for path in result.trajectories)
        self._counts["trajectories"] += len(result.trajectories)
        self._counts["joined_paths"] += joined
        self._counts["selected_paths"] += len(result.trajectories) - joined
        self._counts["drafts"] += len(result.rejected) + len(result.pairs) + len(result.triaged)
        self._counts["documents"] += result.documents
        self._counts["copies"] += result.copies
        self._group("left_out").update(result.left_out)
        self._group("model_failures").update(result.model_failures)
        self._spend(result.usage)
        for task in result.rejected_tasks:
            self._group("rejected_tasks").update({finding.problem for finding in task.findings})
            for finding in task.findings:
                self._examples.setdefault(finding.problem, finding.reason)
        for draft in result.rejected:
            checks = {finding.check for finding in draft.findings}
            self._group("rejected").update(checks)
            self._group("ended")[min(checks, key=_ORDER.index)] += 1
            for finding in draft.findings:
                self._examples.setdefault(finding.check, finding.reason)

    def keep(self, pair: Pair, path: Trajectory) -> None:
        """Count a pair in the file, with its path."""
        self._counts["path_calls"] += len(path.nodes) - 1
        self._counts["trimmed_calls"] += len(path.nodes) - len(pair.path)
        self._counts["pairs"] += 1
        self._group("kinds")[pair.kind] += 1
        for vote in pair.votes:
            self._group("votes")[vote.check] += vote.samples
            self._group("agreed")[vote.check] += vote.agreed
        if pair.difficulty is not None:
            self._group("pass_rates")[f"{pair.difficulty.correct}/{pair.difficulty.attempts}"] += 1
        self._group("hops")[str(pair.hops)] += 1
        self._counts["repaired"] += pair.tries > 1
        self._counts["disputed"] += pair.disputed
        self._naturalness += pair.naturalness
        if pair.known is not None:
            self._group("known")[f"{pair.known:.2g}"] += 1

    def keep_task(self, *, as_pair: bool) -> None:
        """Count a task in the file, and the pair that it is written as."""
        self._counts["tasks"] += 1
        self._counts["pairs"] += as_pair

    def drop(self, reason: Surplus) -> None:
        """Count a pair or task that passed every check and is not in its file."""
        self._group("surplus")[reason] += 1
        self._counts["near_duplicates"] += reason is Surplus.DUPLICATE

    def report(self) -> Report:
        """Return the report."""
        kept = self._counts["pairs"] or self._counts["tasks"]
        models = {role: self._config.model_for(role) for role in _ROLES}
        cost = cost_by_role(models, self._usage)
        usage = self._usage.values()
        checks = [used for role, used in self._usage.items() if role in ("generator", "reader")]
        agreed, votes = self._group("agreed"), self._group("votes")

        def per_kept(total: float, digits: int) -> float:
            return round(total / kept, digits) if kept else 0.0

        fields: dict[str, Any] = {
            entry.name: self._counts[entry.name] if entry.type is int else self._sorted(entry.name)
            for entry in msgspec.structs.fields(Report)
            if entry.type in (int, dict[str, int])
        }
        return Report(
            **fields,
            engines={role: model.name for role, model in models.items()},
            failures_of_seeds=tuple(self._failed),
            rejection_examples={check: self._example(check) for check in self._sorted("rejected")},
            passing=self._passing(),
            naturalness=round(self._naturalness / self._counts["pairs"], 2) if self._counts["pairs"] else 0.0,
            agreement={
                str(check): round(agreed[check] / samples, 4)
                for check, samples in sorted(votes.items())
                if samples
            },
            calls_per_pair=per_kept(sum(used.calls for used in usage), 2),
            tokens_per_pair=per_kept(sum(map(_tokens, usage)), 1),
            check_calls_per_pair=per_kept(sum(used.calls for used in checks), 2),
            check_tokens_per_pair=per_kept(sum(map(_tokens, checks)), 1),
            usage=dict(sorted(self._usage.items())),
            cost=cost,
            cost_per_pair=per_kept(sum(cost.values()), 6),
            prices_as_of=prices_as_of(model for role, model in models.items() if role in self._usage),
            dropped_tools=self._dropped_tools,
            why_empty="" if kept else self._why_empty(),
        )

    def _passing(self) -> dict[str, float]:
        """Return the share of drafts that passed each check, of those that reached it."""
        reached, shares = self._counts["drafts"], dict[str, float]()
        for check in _ORDER:
            ended = self._group("ended")[check]
            if ended and reached:
                shares[check] = round(1 - ended / reached, 4)
            reached -= ended
        return shares

    def _add_tree(self, tree: Tree) -> None:
        actions = [node for node in tree.nodes if node.action is not None]
        self._counts["trees"] += 1
        self._counts["nodes"] += len(actions)
        self._counts["duplicates"] += tree.duplicates
        self._counts["stalled"] += len(tree.stalled)
        self._group("verdicts").update(node.verdict for node in actions)
        failures = [node.failure for node in actions if node.failure is not None]
        self._group("tool_failures").update(failure.kind for failure in failures)
        for failure in failures:
            self._examples.setdefault("tool", f"{failure.kind}: {failure.message}")
        for why in tree.stalled.values():
            self._examples.setdefault("stalled", why)
        self._spend(tree.usage)

    def _spend(self, usage: Mapping[str, Usage]) -> None:
        for role, used in usage.items():
            self._usage[role] = self._usage.get(role, Usage()) + used

    def _group(self, name: str) -> Counter[str]:
        return self._groups.setdefault(name, Counter())

    def _sorted(self, name: str) -> dict[str, int]:
        return {str(key): count for key, count in sorted(self._group(name).items())}

    def _why_empty(self) -> str:
        """Return one line about the first stage that produced nothing."""
        counts = self._counts
        new = self._group("verdicts")[Verdict.NEW]
        failed = sum(self._group("tool_failures").values())
        stages: Iterable[tuple[bool, str]] = (
            (not counts["seeds"], "no seed was finished"),
            (counts["failed_seeds"] == counts["seeds"], f"every seed failed: {self._first_failure()}"),
            (not counts["nodes"], f"no tree grew: {self._example('stalled')}"),
            (
                not new and failed == counts["nodes"],
                f"all {failed} tool calls failed, so there is no evidence: {self._example('tool')}",
            ),
            (
                not new,
                f"none of {counts['nodes']} observations contained anything new ({counts_text(self._sorted('verdicts'))})",
            ),
            (self._config.task_kind is not None, self._no_task()),
            (not counts["selected_paths"], self._no_path()),
            (
                counts["documents"] < self._config.min_documents,
                f"the trees show {counts['documents']} documents, and a question needs {self._config.min_documents}",
            ),
            (
                not counts["drafts"],
                f"no draft was written: model calls failed ({counts_text(self._sorted('model_failures'))})",
            ),
            (
                bool(self._group("surplus")),
                f"no pair that passed every check is needed ({counts_text(self._sorted('surplus'))})",
            ),
            (bool(self._group("triaged")), self._all_triaged()),
        )
        for stage, why in stages:
            if stage:
                return why
        check, count = max(self._group("rejected").items(), key=lambda entry: (entry[1], entry[0]))
        return f"all {counts['drafts']} drafts were rejected, {count} by the check {check}: {self._example(check)}"

    def _no_path(self) -> str:
        needed = f"a path needs {self._config.min_depth} observations with something new"
        left_out = counts_text(self._sorted("left_out"))
        return f"no path was selected ({left_out}): {needed}; lower min_depth, or raise max_depth"

    def _all_triaged(self) -> str:
        reasons = counts_text(self._sorted("triaged"))
        return f"the difficulty of every accepted pair or task is outside the window ({reasons}); see triage.jsonl"

    def _no_task(self) -> str:
        if self._group("surplus"):
            return "every task repeats an earlier one"
        if self._group("triaged"):
            return self._all_triaged()
        rejected = self._group("rejected_tasks")
        if not rejected:
            return f"no state differs in a way that makes a task of the kind {self._config.task_kind}"
        problem, count = max(rejected.items(), key=lambda entry: (entry[1], entry[0]))
        return f"every task was rejected, {count} as {problem}: {self._example(problem)}"

    def _first_failure(self) -> str:
        return self._failed[0].why if self._failed else ""

    def _example(self, name: str) -> str:
        return " ".join(self._examples.get(name, "no reason is known").split())
