"""Report of an example: figures as JSON, a table of seeds, and a picture of the curves."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from agentflow.scoring import bootstrap
from examples.library.training import Played

__all__ = [
    "Curve",
    "ExampleFigures",
    "draw_curves",
    "draw_seeds",
    "example_figures",
    "example_table",
    "read_curve",
    "read_sampled_tokens",
    "write_report",
]

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 300, 60, 40
_COLOURS = ("#4477aa", "#cc6677", "#228833")


class Curve(NamedTuple):
    """A curve of the picture."""

    label: str
    """Its name."""
    colour: str
    """Its colour."""
    points: Sequence[tuple[float, float]]
    """Steps and rewards."""


class ExampleFigures(Struct, frozen=True, kw_only=True):
    """Figures of one seed."""

    example: str
    """Name of the example."""
    seed: int
    """The seed."""
    seconds: float
    """Seconds of this process; less than the total if the run was resumed."""
    tasks: int
    """Number of held-out tasks."""
    success: dict[str, float]
    """Mean reward on them: `teacher`, `fine_tuned`, `tuned`."""
    gain: tuple[float, float, float]
    """Gain of tuning, with its 95% confidence interval over the same tasks."""
    curve: list[tuple[int, float]]
    """Mean reward of each training step."""


def example_figures(name: str, played: Played, seed: int, seconds: float, folder: Path) -> ExampleFigures:
    """Return the figures of one seed.

    :param folder: output folder of the run.
    """
    changes = [after - before for before, after in zip(played.fine_tuned, played.tuned, strict=True)]
    interval = bootstrap(changes)
    return ExampleFigures(
        example=name,
        seed=seed,
        seconds=seconds,
        tasks=len(changes),
        success={key: fmean(rewards) for key, rewards in played._asdict().items()},
        gain=(fmean(changes), interval.low, interval.high),
        curve=[(int(step), value) for step, value in read_curve(folder / "tuned" / "metrics.jsonl")],
    )


def write_report(folder: Path, figures: ExampleFigures) -> str:
    """Write `figures.json` and `curve.svg` into the folder; return the table."""
    (folder / "figures.json").write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    (folder / "curve.svg").write_text(draw_seeds([figures]), encoding="utf-8")
    return example_table([figures])


def example_table(seeds: Sequence[ExampleFigures]) -> str:
    """Return a Markdown table of the seeds."""
    lines = [
        f"| {seeds[0].example}, {seeds[0].tasks} held-out tasks | {' | '.join(f'seed {one.seed}' for one in seeds)} |",
        f"| --- |{' ---: |' * len(seeds)}",
    ]
    labels = {"teacher": "the teacher", "fine_tuned": "fine-tuned", "tuned": "tuned"}
    for key, label in labels.items():
        lines.append(f"| {label} | {' | '.join(f'{one.success[key]:.1%}' for one in seeds)} |")
    gains = [
        f"{100 * gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        for gain, low, high in (one.gain for one in seeds)
    ]
    lines.append(f"| gain, points | {' | '.join(gains)} |")
    lines.append(f"| seconds | {' | '.join(f'{one.seconds:.0f}' for one in seeds)} |")
    return "\n".join(lines)


def read_curve(path: Path) -> list[tuple[float, float]]:
    """Return the mean reward of each step of a training; empty if there is none."""
    if not path.exists():
        return []
    steps = [msgspec.json.decode(line, type=dict[str, Any]) for line in path.read_bytes().splitlines()]
    return [(float(one["step"]), float(one["reward/mean"])) for one in steps if "reward/mean" in one]


def read_sampled_tokens(path: Path) -> int:
    """Return the number of tokens that the policy sampled in the episodes of a training."""
    steps = [msgspec.json.decode(line, type=dict[str, Any]) for line in path.read_bytes().splitlines()]
    return round(
        sum(one.get("episodes/sampled_tokens", 0.0) * one.get("episodes/distinct", 0.0) for one in steps)
    )


def draw_seeds(seeds: Sequence[ExampleFigures]) -> str:
    """Return the curves of the seeds as SVG."""
    return draw_curves(
        [
            Curve(f"{one.example}, seed {one.seed}", _COLOURS[number % len(_COLOURS)], one.curve)
            for number, one in enumerate(seeds)
        ]
    )


def draw_curves(curves: Sequence[Curve]) -> str:
    """Return the rewards by training step as SVG."""
    last = max((x for curve in curves for x, _ in curve.points), default=1.0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / last * (_WIDTH - _LEFT - 20), _TOP + (1 - y) * (_HEIGHT - _TOP - 40)

    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="8" y="18" font-weight="bold">Share of right answers in training, by step (to {last:g})</text>',
    ]
    for tenth in range(0, 11, 2):
        x, y = place(0, tenth / 10)
        lines.append(f'<line x1="{x:g}" x2="{_WIDTH - 20}" y1="{y:g}" y2="{y:g}" stroke="#dddddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:g}" text-anchor="end">{tenth * 10} %</text>')
    for number, curve in enumerate(curves):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve.points))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="2"/>')
        lines.append(
            f'<text x="{_LEFT + 200 * number}" y="{_HEIGHT - 12}" fill="{curve.colour}">{escape(curve.label)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])
