"""`report.html`: one file about a finished run that needs no server and no script."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import islice
from pathlib import Path
from typing import Final

from agentflow._private_files import replace_file
from agentflow._terminal import printable
from agentflow.inspection import (
    NodeSummary,
    RunReader,
    RunSummary,
    SeedAnswer,
    SeedResults,
    SeedSummary,
    StepFigures,
    WorkState,
    open_runs,
    without_paths,
)
from agentflow.learner import ROUNDS, questions_of_round, read_rounds, steps_of_pairs

REPORT_PAGE: Final = "report.html"
"""Name of the file in the output directory."""
_SEEDS: Final = 200
_SHOWN_ANSWERS: Final = 12
_SHOWN_TREES: Final = 3
_SHOWN_NODES: Final = 60
_CHARS: Final = 600
_LINE_CHARS: Final = 160
_CHARTS: Final = 24
_WIDTH: Final = 320
_HEIGHT: Final = 120

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #2563eb; --bad: #b91c1c; --dim: #666; }
@media (prefers-color-scheme: dark) { :root { --accent: #7aa7ff; --bad: #ff8f8f; --dim: #aaa; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; } td, th { text-align: start; padding: .15rem .9rem .15rem 0; vertical-align: top; }
td.n, th.n { text-align: end; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } .dim { color: var(--dim); } .bad { color: var(--bad); }
article, details { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .9rem; margin: .6rem 0; }
article p { margin: .2rem 0; white-space: pre-wrap; } summary { cursor: pointer; }
ol.tree { list-style: none; margin: .5rem 0 0; padding: 0; font: 13px/1.6 ui-monospace, monospace; }
ol.tree ol { list-style: none; margin: 0; padding: 0 0 0 1.1rem; border-inline-start: 1px solid var(--line); }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); }
figure { margin: 0; background: var(--soft); border-radius: .5rem; padding: .5rem; } svg { width: 100%; height: auto; }
polyline { fill: none; stroke: var(--accent); stroke-width: 2; } circle { fill: var(--accent); }
"""
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def write_report(folder: Path, journal: str = "", name: str = "") -> Path:
    """Write `report.html` into the output directory of a run and return its path. See docs/view.md.

    It has the numbers of the run, its failures, the figures of a training as charts, and some results and trees.

    :param journal: URL of its journal, if that is not in the directory.
    :param name: name of the run in that journal.
    :raises AgentFlowError: if the run can't be read.
    :raises OSError: if the file can't be written.
    """
    with open_runs(journal or folder) as runs:
        chosen = [run for run in runs.runs() if name in ("", run.name)]
        sections = [section for run in chosen for section in _run_sections(runs.run(run.id))]
        title = ", ".join(run.name for run in chosen)
    sections = [*_round_sections(folder), *sections]
    page = _PAGE.format(title=_text(title), style=_STYLE, body="\n".join(sections))
    file = folder / REPORT_PAGE
    replace_file(file, page.encode(errors="replace"))
    return file


def _run_sections(run: RunReader) -> list[str]:
    summary = run.summary().shared()
    seeds = run.seeds(limit=_SEEDS)
    sections = [
        _heading(summary),
        _section("Numbers", _numbers(summary)),
        _section("Failures", _failures(summary, seeds)),
        _section("Training", _charts(run.metrics())),
        _section("Results", _answers(run, seeds)),
        _section("Trees", _trees(run, seeds)),
    ]
    return [section for section in sections if section]


def _round_sections(folder: Path) -> list[str]:
    """Return the rounds of a synthesis and a training, and the steps that used each of their pairs."""
    if not (folder / ROUNDS).exists() or not (result := read_rounds(folder)).rounds:
        return []
    used = steps_of_pairs(folder, result.rounds[-1].steps)
    head = ("round", "grown by", "seeds", "pairs", "in the window", "steps", "held-out", "gain", "95 %")
    rows = [
        (
            str(finished.number),
            f"version {finished.version}",
            str(finished.seeds),
            str(finished.pairs),
            str(len(finished.chosen)),
            str(finished.steps),
            f"{finished.held_out:.1%}",
            f"{100 * finished.gain[0]:+.1f}",
            f"{100 * finished.gain[1]:+.1f} to {100 * finished.gain[2]:+.1f}",
        )
        for finished in result.rounds
    ]
    baseline = f"<p>Version 0 at {result.held_out_pairs} held-out pairs: {result.baseline:.1%}.</p>"
    sections = [_section("Rounds", baseline + _table(head, rows))]
    for finished in result.rounds:
        questions = questions_of_round(folder, finished.number)
        pairs = [
            (
                id,
                _line(questions[id]),
                f"{rate:.0%}",
                "yes" if id in finished.chosen else "no",
                ", ".join(map(str, used.get(id, ()))),
            )
            for id, rate in islice(finished.rates.items(), _SEEDS)
        ]
        table = _table(("pair", "question", "mean reward", "in the window", "steps that used it"), pairs)
        sections.append(f"<details><summary>Pairs of round {finished.number}</summary>{table}</details>")
    return sections


def _heading(summary: RunSummary) -> str:
    parts = [summary.kind.value, summary.state.value]
    if summary.started is not None:
        parts.append(f"begun {datetime.fromtimestamp(summary.started, UTC):%Y-%m-%d %H:%M} UTC")
    parts += [f"{role}: {model}" for role, model in summary.models.items()]
    return f"<header><h1>{_text(summary.name)}</h1><p class=dim>{_text(' · '.join(parts))}</p></header>"


def _numbers(summary: RunSummary) -> str:
    counts = summary.seeds
    rows = [("seeds", str(counts.total)), ("finished", str(counts.done))]
    rows += [("training steps", str(summary.steps))] if summary.steps else []
    rows += [("cost", f"{summary.cost:.4f}")] if summary.cost is not None else []
    usage = [
        (role, str(used.calls), str(used.prompt_tokens), str(used.completion_tokens))
        for role, used in summary.usage.items()
    ]
    columns = ("role", "calls", "prompt tokens", "completion tokens")
    return _table((), rows) + (_table(columns, usage) if usage else "")


def _failures(summary: RunSummary, seeds: Sequence[SeedSummary]) -> str:
    rows = [(kind, str(number)) for kind, number in sorted(summary.failures.items()) if number]
    failed = [(seed.id, without_paths(seed.failure)) for seed in seeds if seed.failure]
    kinds = _table(("failure", "number"), rows) if rows else ""
    return kinds + (_table(("seed", "reason"), failed[:_SHOWN_ANSWERS]) if failed else "")


def _charts(steps: Sequence[StepFigures]) -> str:
    names = list(dict.fromkeys(name for step in steps for name in step.figures))
    charts: list[str] = []
    for name in names[:_CHARTS]:
        points = [(step.step, value) for step in steps if (value := step.figures.get(name)) is not None]
        if points:
            charts.append(_chart(name, points))
    return f"<div class=charts>{''.join(charts)}</div>" if charts else ""


def _chart(name: str, points: Sequence[tuple[int, float]]) -> str:
    low, high = min(value for _, value in points), max(value for _, value in points)
    first, last = points[0][0], points[-1][0]

    def point(step: int, value: float) -> tuple[float, float]:
        x = 8 + (_WIDTH - 16) * ((step - first) / (last - first) if last > first else 0.5)
        y = 8 + (_HEIGHT - 16) * ((high - value) / (high - low) if high > low else 0.5)
        return round(x, 1), round(y, 1)

    # More points than pixels would only make the file larger.
    shown = points[:: max(1, len(points) // _WIDTH)]
    positions = [point(step, value) for step, value in shown]
    line = " ".join(f"{x},{y}" for x, y in positions)
    dots = f'<circle cx="{positions[-1][0]}" cy="{positions[-1][1]}" r="3"/>'
    caption = f"{_text(name)}: {points[-1][1]:.4g} <span class=dim>({low:.4g} to {high:.4g}, steps {first} to {last})</span>"
    return (
        f'<figure><figcaption>{caption}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(name)} by step"><polyline points="{line}"/>{dots}</svg></figure>'
    )


def _answers(run: RunReader, seeds: Sequence[SeedSummary]) -> str:
    shown: list[str] = []
    for seed in seeds:
        if seed.state is not WorkState.DONE or len(shown) >= _SHOWN_ANSWERS:
            continue
        results = run.results(seed.id)
        shown += [_answer(results, answer) for answer in islice(results.answers, 2)]
    return "".join(shown[:_SHOWN_ANSWERS])


def _answer(results: SeedResults, answer: SeedAnswer) -> str:
    facts = [f"seed {results.seed}"]
    facts += [f"score {answer.score:.3g}"] if answer.score is not None else []
    facts += [f"kind {answer.kind}"] if answer.kind else []
    facts += [f"{answer.hops} documents"] if answer.hops is not None else []
    lines = [
        f"<p><b>{_text(_short(answer.question))}</b></p>",
        f"<p>{_text(_short(answer.answer)) or '<span class=dim>no answer</span>'}</p>",
    ]
    if answer.references:
        lines.append(f"<p class=dim>reference: {_text(_short(' | '.join(answer.references)))}</p>")
    if answer.steps:
        steps = "".join(f"<li>{_text(_short(step))}</li>" for step in answer.steps)
        lines.append(f"<details><summary>Reasoning</summary><ol>{steps}</ol></details>")
    return f"<article>{''.join(lines)}<p class=dim>{_text(', '.join(facts))}</p></article>"


def _trees(run: RunReader, seeds: Sequence[SeedSummary]) -> str:
    shown: list[str] = []
    for seed in seeds:
        if not seed.nodes or len(shown) >= _SHOWN_TREES:
            continue
        skeleton = run.skeleton(seed.id)
        node_paths = [node_path for node_path in skeleton.spots if node_path][:_SHOWN_NODES]
        if not node_paths:
            continue
        rest = len(skeleton.spots) - 1 - len(node_paths)
        more = f"<p class=dim>and {rest} more nodes</p>" if rest > 0 else ""
        title = f"{seed.id}: {seed.text}"
        outline = _outline(run.nodes(seed.id, node_paths))
        opened = "" if shown else " open"
        shown.append(f"<details{opened}><summary>{_text(_line(title))}</summary>{outline}{more}</details>")
    return "".join(shown)


def _outline(nodes: Iterable[NodeSummary]) -> str:
    """Return nodes as nested lists; a parent precedes its children."""
    below: dict[str, list[NodeSummary]] = {}
    for node in nodes:
        below.setdefault(node.spot.rpartition("-")[0], []).append(node)

    def listed(node_path: str) -> str:
        items = "".join(f"<li>{_node(node)}{listed(node.spot)}</li>" for node in below.get(node_path, ()))
        return f"<ol>{items}</ol>" if items else ""

    return listed("").replace("<ol>", "<ol class=tree>", 1)


def _node(node: NodeSummary) -> str:
    mark = " ".join(part for part in (node.verdict, node.failure) if part)
    kind = "bad" if node.failure else "dim"
    return (
        f"{_text(node.spot)} <b>{_text(node.tool)}</b> {_text(_line(node.arguments))} "
        f"<span class={kind}>{_text(mark)}</span> <span class=dim>{_text(_line(node.line))}</span>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2><div class=scroll>{body}</div></section>" if body else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{_text(name)}</th>' for name in columns)}</tr>" if columns else ""
    lines = [
        "<tr>"
        + "".join(f"<td{' class=n' if cell.isdecimal() else ''}>{_text(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    ]
    return f"<table>{head}{''.join(lines)}</table>"


def _short(text: str) -> str:
    return text if len(text) <= _CHARS else f"{text[: _CHARS - 1]}…"


def _line(text: str) -> str:
    line = " ".join(text[: 2 * _LINE_CHARS].split())
    return line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS - 1]}…"


def _text(text: str) -> str:
    """Return a text that the page shows and nothing else: no markup, no control characters."""
    return escape(printable(text))
