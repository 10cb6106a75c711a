"""Report of the first training: figures as JSON, a table, and a picture of the curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from agentflow.scoring import bootstrap
from examples.first_training.training import PlannerResults
from examples.library.report import Curve, draw_curves, read_curve, read_sampled_tokens

__all__ = ["Figures", "figures_of", "report_on", "table_of"]

NAMES = {
    "constant": "one answer for all",
    "guesser": "a planner that guesses",
    "teacher": "the teacher",
    "fine_tuned": "fine-tuned, its best checkpoint",
    "single": "GRPO on the first step alone",
    "flow": "Flow-GRPO",
}
"""The planners, in the order of the table."""
COLOURS = {"flow": "#4477aa", "single": "#ee6677"}
"""A palette that is safe for colour-blind readers."""


class Figures(Struct, frozen=True, kw_only=True):
    """Figures of one seed."""

    seed: int
    """The seed."""
    seconds: float
    """Seconds of this process; less than the total if the run was resumed."""
    tasks: int
    """Number of held-out tasks."""
    success: dict[str, float]
    """Fraction of exact answers by planner."""
    by_kind: dict[str, dict[str, float]]
    """The same by kind of task."""
    error_rate: dict[str, float]
    """Fraction of failed steps by planner."""
    gain: tuple[float, float, float] | None = None
    """Gain of Flow-GRPO over the fine-tuned planner, with its 95% confidence interval."""
    fewer_errors: float | None = None
    """Fraction of the errors removed."""
    over_flow: dict[str, tuple[float, float, float]] = {}
    """Gain of each variant over Flow-GRPO, with its 95% confidence interval."""
    sampled_tokens: dict[str, int] = {}
    """Tokens sampled by each training."""


def figures_of(
    judged: Mapping[str, PlannerResults],
    seed: int,
    seconds: float,
    sampled_tokens: Mapping[str, int] | None = None,
) -> Figures:
    """Return the figures of one seed."""
    gain, fewer = None, None
    if "flow" in judged and "fine_tuned" in judged:
        before, after = judged["fine_tuned"], judged["flow"]
        gain = _change(before, after)
        fewer = 1 - after.error_rate / before.error_rate if before.error_rate else 0.0
    return Figures(
        seed=seed,
        seconds=seconds,
        tasks=len(next(iter(judged.values())).outcomes),
        success={name: one.success for name, one in judged.items()},
        by_kind={name: _by_kind(one) for name, one in judged.items()},
        error_rate={name: one.error_rate for name, one in judged.items()},
        gain=gain,
        fewer_errors=fewer,
        over_flow={name: _change(judged["flow"], judged[name]) for name in judged if name not in NAMES},
        sampled_tokens=dict(sampled_tokens or {}),
    )


def _change(before: PlannerResults, after: PlannerResults) -> tuple[float, float, float]:
    """Return the gain and its interval, paired: the same tasks before and after."""
    changes = [
        float(new.right) - float(old.right) for old, new in zip(before.outcomes, after.outcomes, strict=True)
    ]
    interval = bootstrap(changes)
    return after.success - before.success, interval.low, interval.high


def report_on(folder: Path, judged: Mapping[str, PlannerResults], seed: int, seconds: float) -> str:
    """Write `figures.json` and `curves.svg` into the folder; return the table."""
    metrics = {name: folder / name / "metrics.jsonl" for name in judged}
    sampled = {name: read_sampled_tokens(path) for name, path in metrics.items() if path.exists()}
    figures = figures_of(judged, seed, seconds, sampled)
    (folder / "figures.json").write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    curves = [
        Curve(NAMES[name], COLOURS[name], read_curve(folder / name / "metrics.jsonl")) for name in COLOURS
    ]
    (folder / "curves.svg").write_text(
        draw_curves([each for each in curves if each.points]), encoding="utf-8"
    )
    return table_of([figures])


def table_of(seeds: Sequence[Figures]) -> str:
    """Return a Markdown table of the planners for all seeds."""
    heads = [f"seed {one.seed}" for one in seeds]
    lines = [
        f"Exact matches on {seeds[0].tasks} held-out tasks, and in brackets the share of steps that failed.",
        "",
        _row("planner", heads),
        _row("---", ["---:"] * len(heads)),
    ]
    others = dict.fromkeys(name for one in seeds for name in one.success if name not in NAMES)
    for name, called in {**NAMES, **{name: name for name in others}}.items():
        if any(name in one.success for one in seeds):
            cells = [
                f"{one.success[name]:.1%} ({one.error_rate[name]:.1%})" if name in one.success else ""
                for one in seeds
            ]
            lines.append(_row(called, cells))
    if all(one.gain is not None for one in seeds):
        gains = [_points(one.gain or (0.0, 0.0, 0.0)) for one in seeds]
        lines.append(_row("gain over fine-tuned, points", gains))
        lines.append(_row("errors that are gone", [f"{one.fewer_errors or 0:.0%}" for one in seeds]))
    for name in others:
        cells = [_points(one.over_flow[name]) if name in one.over_flow else "" for one in seeds]
        lines.append(_row(f"{name} over Flow-GRPO, points", cells))
    for name in ("flow", *others):
        if any(name in one.sampled_tokens for one in seeds):
            counts = [f"{one.sampled_tokens.get(name, 0):,}" for one in seeds]
            lines.append(_row(f"tokens sampled by {NAMES.get(name, name)}", counts))
    lines.append(_row("seconds", [f"{one.seconds:.0f}" for one in seeds]))
    return "\n".join(lines)


def _by_kind(judged: PlannerResults) -> dict[str, float]:
    kinds = dict.fromkeys(one.kind for one in judged.outcomes)
    found = {kind: [one.right for one in judged.outcomes if one.kind == kind] for kind in kinds}
    return {kind: sum(rights) / len(rights) for kind, rights in found.items()}


def _points(gain_and_interval: tuple[float, float, float]) -> str:
    gain, low, high = gain_and_interval
    return f"{100 * gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"
