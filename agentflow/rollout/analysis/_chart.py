"""Bar chart of finished rollouts: scores with confidence intervals, and average turns."""

from collections.abc import Sequence
from html import escape

from agentflow.rollout.analysis._runs import AnalysedRun

_ROW = 26
_TOP = 46
_LABELS = 360
_SCALE = 420
_RIGHT = 170
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Palette for all kinds of colour vision."""


def draw(runs: Sequence[AnalysedRun]) -> str:
    """Return an SVG chart of the scores, with one colour per benchmark. See docs/analyse.md."""
    shown = [run for run in runs if run.summary.score is not None]
    names = list(dict.fromkeys(run.summary.benchmark for run in shown))
    width, height = _LABELS + _SCALE + _RIGHT, _TOP + _ROW * len(shown) + 24
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(8, 20, "Mean score with 95 % confidence interval", weight="bold"),
        *_scale(height),
    ]
    for place, run in enumerate(shown):
        lines += _bar(run, _TOP + _ROW * place, _COLOURS[names.index(run.summary.benchmark) % len(_COLOURS)])
    return "\n".join([*lines, "</svg>", ""])


def _scale(height: int) -> list[str]:
    lines: list[str] = []
    for step in range(0, 101, 20):
        x = _LABELS + _SCALE * step / 100
        lines.append(f'<line x1="{x:g}" x2="{x:g}" y1="{_TOP - 6}" y2="{height - 20}" stroke="#dddddd"/>')
        lines.append(_text(x, height - 6, f"{step} %", anchor="middle"))
    return lines


def _bar(run: AnalysedRun, y: int, colour: str) -> list[str]:
    said = run.summary
    score = said.score or 0.0
    label = f"{said.benchmark} · {run.model} · {run.setting} · {said.max_turns} turns"
    lines = [
        _text(_LABELS - 8, y + 15, label, anchor="end"),
        f'<rect x="{_LABELS}" y="{y + 3}" width="{_SCALE * score:.1f}" height="{_ROW - 9}" fill="{colour}"/>',
        _text(_LABELS + _SCALE + 10, y + 15, f"{score:.1%}, {said.turns.mean:.1f} turns on average"),
    ]
    if said.interval is not None:
        low, high = (_LABELS + _SCALE * end for end in (said.interval.low, said.interval.high))
        middle = y + 3 + (_ROW - 9) / 2
        lines.append(
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="black" stroke-width="1.5"/>'
        )
    return lines


def _text(x: float, y: float, said: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">{escape(said)}</text>'
