"""The checks of questions, measured with 360 labelled drafts: 120 good ones of nine kinds, and 240 spoilt in 20 ways.

Run `python benchmarks/gate.py [--check] [--drafts N] [--seed N] [--seeds N]`: prints precision, recall and the share of each
kind of bad drafts that is caught, with a reader that makes no errors and one whose answers are wrong in a tenth of the
calls, and as the last line one JSON object. With `--check` it exits with 1 if a floor is missed.

Labels are confirmed by brute force over everything that is true. The reader answers from the text of its prompts alone.
Five of the mutators were not used to develop the checks.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agentflow.actors import Supervisor
from agentflow.journal import Page
from agentflow.synthesis._journalled_calls import JournalledCalls
from agentflow.synthesis._question_checks import CheckSettings, QuestionChecker
from agentflow.synthesis._question_draft import CheckedQuestion
from agentflow.team import Reader
from agentflow.text import word_set
from benchmarks._gate_drafts import GOOD, KINDS, good_cases
from benchmarks._gate_labels import meaning, needed_by
from benchmarks._gate_mutators import HELD_OUT, MUTATORS, bad_cases
from benchmarks._gate_reader import ScriptedModel
from benchmarks._gate_scenes import Case, Scene, content

ERRORS = (0.0, 0.1)
"""Rates of wrong answers of the reader."""
FLOORS = {0.0: (0.98, 0.95, 0.90), 0.1: (0.95, 0.85, 0.75)}
"""Precision, recall, and share caught of each bad kind, by the rate of errors."""
SEEDS = 3
"""Sets of drafts."""
FULL = 360
"""Drafts of a set."""
FOUND = 3
"""Pages that a search returns."""


@dataclass
class Tally:
    """Results of the drafts with one rate of errors."""

    accepted: Counter[str] = field(default_factory=Counter[str])
    """Good drafts that passed, by kind."""
    good: Counter[str] = field(default_factory=Counter[str])
    passed: Counter[str] = field(default_factory=Counter[str])
    """Bad drafts that passed, by mutator."""
    bad: Counter[str] = field(default_factory=Counter[str])
    by_check: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    """Checks that caught the drafts of each mutator."""
    agreed: Counter[str] = field(default_factory=Counter[str])
    """Samples in favour of good drafts, by check."""
    samples: Counter[str] = field(default_factory=Counter[str])
    hops: int = 0
    """Accepted drafts that need exactly the facts that brute force finds."""
    calls: int = 0
    """Model calls for good drafts."""
    all_calls: int = 0
    errors: list[str] = field(default_factory=list[str])
    """Drafts that were judged wrongly, in one line each."""

    def add(self, case: Case, checked: CheckedQuestion, calls: int) -> None:
        """Count a draft."""
        self.all_calls += calls
        reasons = "; ".join(f"{one.check}: {one.reason}" for one in checked.findings)
        if not case.variant:
            self.good[case.kind] += 1
            self.accepted[case.kind] += checked.accepted
            self.calls += calls
            self.hops += checked.accepted and counts_hops(case, checked)
            for vote in checked.votes:
                self.samples[vote.check] += vote.samples
                self.agreed[vote.check] += vote.agreed
            if not checked.accepted:
                self.errors.append(f"rejected {case.kind}: {case.draft.question} [{reasons}]")
            return
        self.bad[case.kind] += 1
        if checked.accepted:
            self.passed[case.kind] += 1
            self.errors.append(f"accepted {case.kind} ({case.variant}): {case.draft.question}")
        else:
            self.by_check[case.kind][checked.findings[0].check] += 1

    @property
    def precision(self) -> float:
        """Good ones among the accepted drafts."""
        kept = self.accepted.total()
        return kept / max(kept + self.passed.total(), 1)

    @property
    def recall(self) -> float:
        """Accepted ones among the good drafts."""
        return self.accepted.total() / max(self.good.total(), 1)

    @property
    def caught(self) -> dict[str, float]:
        """Share of the bad drafts of each kind that was rejected."""
        return {kind: 1 - self.passed[kind] / self.bad[kind] for kind in MUTATORS if self.bad[kind]}


def counts_hops(case: Case, checked: CheckedQuestion) -> bool:
    """Return whether the checks found the facts that brute force finds to be needed."""
    store, truth = case.scene.known.store, case.scene.truth
    found = {content(store.by_id[fact]) for fact in checked.needed}
    return frozenset(found) == needed_by(meaning(case.draft.question, truth), truth)


class SceneSearch:
    """Search in all pages, including those that the tree did not observe."""

    def __init__(self, scene: Scene) -> None:
        """Search in the pages of a scene."""
        seen = [node.observation.text[:2_000] for node in scene.known.nodes]
        self._pages = [*seen, *scene.outside]

    async def search(self, key: str, question: str) -> str:
        """Return the pages with most words of the question."""
        del key
        asked = word_set(question)
        ranked = sorted(
            self._pages, key=lambda page: -len(asked & word_set(page)) / len(word_set(page)) ** 0.5
        )
        return "\n\n".join(ranked[:FOUND])


async def judge(
    cases: Iterable[Case], model: ScriptedModel
) -> AsyncIterator[tuple[Case, CheckedQuestion, int]]:
    """Yield drafts with what the checks of the pipeline say, and the number of calls, with a model behind the real prompts."""
    reader = Reader(model, _no_blob, workers=4)
    async with Supervisor([reader.pool.spec], name="gate"):
        for case in cases:
            model.memory = case.scene.memory
            before = model.calls
            calls = JournalledCalls(Page())
            search = SceneSearch(case.scene)
            checker = QuestionChecker(case.scene.known, CheckSettings(), reader, calls, search=search)
            checked = await checker.check(case.draft, "draft")
            yield case, checked, model.calls - before


async def _no_blob(hash: str) -> bytes:
    raise KeyError(hash)


def drafts(seed: int, count: int, kinds: Sequence[str] = ()) -> list[Case]:
    """Return labelled drafts: a third of them is good."""
    each = max(count * 2 // 3 // len(MUTATORS), 1)
    chosen = [kind for kind in MUTATORS if kind not in HELD_OUT] if kinds == ["developed"] else kinds
    return [
        *good_cases(seed, GOOD * count // FULL),
        *(case for kind in chosen or MUTATORS for case in bad_cases(kind, seed, each)),
    ]


def show(error: float, tally: Tally) -> None:
    """Print the table of one rate of errors."""
    print(
        f"reader error {error:.1f}: precision {tally.precision:.3f}, recall {tally.recall:.3f}, "
        f"{tally.hops} of {tally.accepted.total()} accepted ones with the hops of brute force, "
        f"{tally.calls / max(tally.good.total(), 1):.1f} calls per good draft, "
        f"{tally.all_calls / max(tally.good.total() + tally.bad.total(), 1):.1f} per draft"
    )
    kept = ", ".join(f"{kind} {tally.accepted[kind]}/{tally.good[kind]}" for kind in KINDS)
    print(f"  accepted: {kept}")
    agreement = (
        f"{check} {tally.agreed[check] / count:.3f}" for check, count in tally.samples.items() if count
    )
    print(f"  samples in favour of good drafts: {', '.join(agreement)}")
    for kind, share in tally.caught.items():
        how = ", ".join(f"{check} {count}" for check, count in tally.by_check[kind].most_common())
        print(f"  {kind:<22}{'held out' if kind in HELD_OUT else '':<10}{share:7.3f}   {how}")


def figures(tallies: dict[float, Tally]) -> dict[str, float]:
    """Return the figures by name."""
    found: dict[str, float] = {}
    for error, tally in tallies.items():
        found[f"precision {error}"] = tally.precision
        found[f"recall {error}"] = tally.recall
        found[f"least_caught {error}"] = min(tally.caught.values(), default=1.0)
        found[f"right_hops {error}"] = tally.hops / max(tally.accepted.total(), 1)
        found[f"calls_per_good_draft {error}"] = tally.calls / max(tally.good.total(), 1)
    return found


def missed(found: dict[str, float]) -> list[str]:
    """Return the floors that are missed."""
    lines: list[str] = []
    for error, floors in FLOORS.items():
        for name, floor in zip(("precision", "recall", "least_caught"), floors, strict=True):
            figure = found[f"{name} {error}"]
            if figure < floor:
                lines.append(f"{name} {error}: {figure:.3f}, at least {floor}")
    return lines


async def measure(options: argparse.Namespace) -> dict[float, Tally]:
    """Judge all drafts with each rate of errors."""
    tallies = {error: Tally() for error in ERRORS}
    for seed in range(options.seed, options.seed + options.seeds):
        cases = drafts(seed, options.drafts, options.kinds)
        for error, tally in tallies.items():
            async for case, checked, calls in judge(cases, ScriptedModel(error, seed)):
                tally.add(case, checked, calls)
    return tallies


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a floor is missed")
    parser.add_argument("--drafts", type=int, default=FULL, help="drafts of a set, at least 60")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first set")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of sets")
    parser.add_argument(
        "--kinds", nargs="*", default=(), help="only these bad kinds; `developed`: all but the held-out"
    )
    parser.add_argument("--errors", action="store_true", help="print the drafts that were judged wrongly")
    options = parser.parse_args(arguments)
    tallies = anyio.run(measure, options)
    for error, tally in tallies.items():
        show(error, tally)
        for line in tally.errors if options.errors else ():
            print(f"    {line}")
    found = figures(tallies)
    lines = missed(found)
    for line in lines:
        print(f"missed: {line}")
    print(json.dumps({name: round(figure, 4) for name, figure in found.items()}))
    return 1 if lines and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
