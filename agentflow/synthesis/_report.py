"""What a run made, what it dropped and why, and what it cost."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from agentflow.synthesis._checks import Check
from agentflow.synthesis._config import Role, SynthesisConfig
from agentflow.synthesis._seed_result import Pair, SeedResult
from agentflow.trajectory import Seed, Tree, Usage, Verdict

__all__ = ["FailedSeed", "Report", "ReportBuilder"]

_NAMED_FAILURES = 20
_ROLES: tuple[Role, ...] = ("planner", "verifier", "generator")


class FailedSeed(Struct, frozen=True):
    """A seed that could not be worked on."""

    source_id: str
    """Which."""
    why: str
    """What went wrong."""


class Report(Struct, frozen=True, kw_only=True):
    """The quality report of a run. It follows from the results alone, so it is the same after any crash."""

    engines: dict[str, str]
    """The model of each role."""
    seeds: int
    """Seeds that were worked on to the end."""
    failed_seeds: int
    """Those of them that could not be worked on."""
    failures_of_seeds: tuple[FailedSeed, ...]
    """The first of them, and why."""
    trees: int
    """Trees that grew."""
    nodes: int
    """Actions that were done."""
    verdicts: dict[str, int]
    """Nodes by what they told."""
    duplicates: int
    """Proposed actions that were refused because the tree had them."""
    stalled: int
    """Nodes that got fewer children than asked for."""
    trajectories: int
    """Selected paths."""
    left_out: dict[str, int]
    """Paths that were not, by why."""
    drafts: int
    """Questions that were written."""
    rejected: dict[str, int]
    """Findings that rejected drafts, by check; a draft may have several."""
    pairs: int
    """Pairs in the file."""
    near_duplicates: int
    """Pairs that were dropped because an earlier seed had asked the same."""
    grounding: dict[str, int]
    """Pairs in the file by where the answer comes from."""
    grounded_share: float
    """Drafts whose citations and answer were found in the observations, of all drafts."""
    hops: dict[str, int]
    """Pairs in the file by how many observations they need."""
    tries: dict[str, int]
    """Pairs in the file by how many drafts they took."""
    too_easy: int
    """Drafts that were answered without the path."""
    not_asked_back: int
    """Pairs in the file of which it is not known whether they are too easy."""
    usage: dict[str, Usage]
    """What the roles consumed."""
    cost: dict[str, float]
    """What that costs, of roles whose model has prices."""
    model_failures: dict[str, int]
    """Model calls that failed for good, by kind."""
    tool_failures: dict[str, int]
    """Tool calls that failed, by kind."""
    dropped_tools: dict[str, str]
    """Tools that were asked for and could not be used, with why."""
    why_empty: str = ""
    """Why there is no pair, if there is none."""


class ReportBuilder:
    """Counts a run, result by result. What it holds does not grow with the seeds."""

    def __init__(self, config: SynthesisConfig, dropped_tools: Mapping[str, str]) -> None:
        """Begin with nothing but the tools that were left out before."""
        self._config = config
        self._dropped_tools = dict(dropped_tools)
        self._counts: Counter[str] = Counter()
        self._by: dict[str, Counter[str]] = {}
        self._usage: dict[str, Usage] = {}
        self._failed: list[FailedSeed] = []
        self._examples: dict[str, str] = {}

    def add(self, seed: Seed, result: SeedResult) -> None:
        """Count a seed's result."""
        self._counts["seeds"] += 1
        if result.failure:
            self._counts["failed_seeds"] += 1
            if len(self._failed) < _NAMED_FAILURES:
                self._failed.append(FailedSeed(seed.id, result.failure))
        if result.tree is not None:
            self._add_tree(result.tree)
        self._counts["trajectories"] += len(result.trajectories)
        self._counts["drafts"] += len(result.rejected) + len(result.pairs)
        self._group("left_out").update(result.left_out)
        self._group("model_failures").update(result.model_failures)
        self._spend(result.usage)
        for draft in result.rejected:
            checks = {finding.check for finding in draft.findings}
            self._group("rejected").update(checks)
            self._counts["ungrounded"] += bool(checks & {Check.CITATIONS, Check.GROUNDING})
            for finding in draft.findings:
                self._examples.setdefault(finding.check, finding.reason)

    def keep(self, pair: Pair) -> None:
        """Count a pair that is in the file."""
        self._counts["pairs"] += 1
        self._counts["not_asked_back"] += pair.answerable is None
        self._group("grounding")[pair.grounding] += 1
        self._group("hops")[str(pair.hops)] += 1
        self._group("tries")[str(pair.tries)] += 1

    def drop(self) -> None:
        """Count a pair that was asked before."""
        self._counts["near_duplicates"] += 1

    def report(self) -> Report:
        """The report of all that was counted."""
        counts = self._counts
        drafts = counts["drafts"]
        return Report(
            engines={role: self._config.model_for(role).name for role in _ROLES},
            seeds=counts["seeds"],
            failed_seeds=counts["failed_seeds"],
            failures_of_seeds=tuple(self._failed),
            trees=counts["trees"],
            nodes=counts["nodes"],
            verdicts=self._sorted("verdicts"),
            duplicates=counts["duplicates"],
            stalled=counts["stalled"],
            trajectories=counts["trajectories"],
            left_out=self._sorted("left_out"),
            drafts=drafts,
            rejected=self._sorted("rejected"),
            pairs=counts["pairs"],
            near_duplicates=counts["near_duplicates"],
            grounding=self._sorted("grounding"),
            grounded_share=round((drafts - counts["ungrounded"]) / drafts, 4) if drafts else 0.0,
            hops=self._sorted("hops"),
            tries=self._sorted("tries"),
            too_easy=self._group("rejected")[Check.TOO_EASY],
            not_asked_back=counts["not_asked_back"],
            usage=dict(sorted(self._usage.items())),
            cost=self._cost(),
            model_failures=self._sorted("model_failures"),
            tool_failures=self._sorted("tool_failures"),
            dropped_tools=self._dropped_tools,
            why_empty="" if counts["pairs"] else self._why_empty(),
        )

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
        return self._by.setdefault(name, Counter())

    def _sorted(self, name: str) -> dict[str, int]:
        return {str(key): count for key, count in sorted(self._group(name).items())}

    def _cost(self) -> dict[str, float]:
        priced = {role: self._config.model_for(role).prices for role in _ROLES}
        return {
            role: round(prices.cost(self._usage.get(role, Usage())), 6)
            for role, prices in priced.items()
            if prices is not None
        }

    def _why_empty(self) -> str:
        """The first stage that let nothing through, in one line."""
        counts, verdicts = self._counts, self._group("verdicts")
        new = verdicts[Verdict.NEW]
        failed = sum(self._group("tool_failures").values())
        stages: Iterable[tuple[bool, str]] = (
            (not counts["seeds"], "no seed was worked on to the end"),
            (counts["failed_seeds"] == counts["seeds"], f"every seed failed: {self._first_failure()}"),
            (not counts["nodes"], f"no tree grew: {self._example('stalled')}"),
            (
                not new and failed == counts["nodes"],
                f"all {failed} tool calls failed, so there is no evidence: {self._example('tool')}",
            ),
            (not new, f"none of {counts['nodes']} observations told anything new ({_listed(verdicts)})"),
            (not counts["trajectories"], f"no path was selected ({_listed(self._group('left_out'))})"),
            (
                not counts["drafts"],
                f"no draft was written: model calls failed ({_listed(self._group('model_failures'))})",
            ),
            (bool(counts["near_duplicates"]), "every pair repeats an earlier one"),
        )
        for stage, why in stages:
            if stage:
                return why
        check, count = max(self._group("rejected").items(), key=lambda entry: (entry[1], entry[0]))
        return f"all {counts['drafts']} drafts were rejected, {count} by the check {check}: {self._example(check)}"

    def _first_failure(self) -> str:
        return self._failed[0].why if self._failed else ""

    def _example(self, name: str) -> str:
        return " ".join(self._examples.get(name, "no reason is known").split())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
