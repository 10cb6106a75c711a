"""Record of tunings: one line of `tuning.jsonl` for each task and commit, only ever appended to, and its page.

Each line holds a digest of itself and of the line before it, so a changed or removed line is noticed.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct, structs

from agentflow.errors import ConfigurationError

__all__ = [
    "CurvePoint",
    "Gain",
    "RunFigures",
    "TuningEntry",
    "append",
    "curve_of",
    "drops_of",
    "entry_of",
    "page_of",
    "read_entries",
]

Gain: TypeAlias = tuple[float, float, float]
"""A gain with the ends of its 95 % confidence interval."""


class CurvePoint(NamedTuple):
    """Mean over the seeds after a step, with the lowest and the highest of them."""

    step: int
    mean: float
    low: float
    high: float


class TuningEntry(Struct, frozen=True, kw_only=True):
    """A line: the tunings of one task at one commit, one for each seed."""

    task: str
    """Name of the task: an example, or `short` for the run that CI compares."""
    commit: str
    """Commit at which it was measured."""
    backbone: str
    """Backbone of the learner."""
    hardware: str
    """Processors or accelerators."""
    measure: str
    """Measured quantity, such as `exact matches on 330 held-out tasks`."""
    seeds: tuple[int, ...]
    """Seeds."""
    before: tuple[float, ...]
    """Figure of each seed before."""
    after: tuple[float, ...]
    """Figure of each seed after."""
    gain: Gain
    """Mean gain, the lowest end of the seeds' intervals, and the highest."""
    curve: tuple[CurvePoint, ...] = ()
    """Mean reward by step; empty if it was not kept."""
    seconds: tuple[float, ...] = ()
    """Duration of each seed."""
    previous: str = ""
    """Digest of the line before; empty in the first one."""
    model: str = "tiny"
    """Model before the fine-tuning: `tiny`, with random weights, or the name of a pretrained one."""
    digest: str = ""
    """Digest of this line without this field, the last one."""


class RunFigures(Struct, frozen=True, kw_only=True):
    """`figures.json` of a run: the fields that a record needs."""

    seed: int
    """Seed."""
    seconds: float
    """Duration."""
    tasks: int
    """Number of held-out tasks."""
    success: dict[str, float]
    """Share of solved tasks by policy."""
    gain: Gain
    """Gain with its interval."""
    curve: tuple[tuple[float, float], ...] = ()
    """Mean reward by step; empty: that of `metrics.jsonl`."""


def read_entries(path: Path) -> list[TuningEntry]:
    """Return the lines of a record.

    :raises ConfigurationError: if a line can't be read, or was changed or removed.
    """
    entries: list[TuningEntry] = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            entry = msgspec.json.decode(line, type=TuningEntry)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{path}:{number}: {error}; restore the file with git") from None
        before = entries[-1].digest if entries else ""
        if (entry.previous, entry.digest) != (before, _digest(line)):
            raise ConfigurationError(
                f"{path}:{number}: this line, or the one before it, was changed; restore the file with git and append instead"
            )
        entries.append(entry)
    return entries


def append(path: Path, entry: TuningEntry) -> TuningEntry:
    """Append a line; the lines before it are checked and stay as they are.

    :raises ConfigurationError: if an earlier line was changed, or the same task, commit and seeds are recorded.
    """
    entries = read_entries(path)
    if any(
        _same_task(entry, each) and (entry.commit, entry.seeds) == (each.commit, each.seeds)
        for each in entries
    ):
        raise ConfigurationError(
            f"{path}: {entry.task} at {entry.commit} is recorded already; measure another commit"
        )
    entry = structs.replace(entry, previous=entries[-1].digest if entries else "", digest="")
    # As it will be read: a whole number may stand for a fraction.
    entry = msgspec.json.decode(msgspec.json.encode(entry), type=TuningEntry)
    entry = structs.replace(entry, digest=_digest(msgspec.json.encode(entry)))
    with path.open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")
    return entry


def _digest(line: bytes) -> str:
    """Return the digest of a line, whatever it has in its last field. Older lines lack newer fields."""
    head, field, _ = line.rpartition(b'"digest":"')
    return sha256(head + field + b'"}').hexdigest()[:16]


def _same_task(entry: TuningEntry, other: TuningEntry) -> bool:
    return (entry.task, entry.model, entry.backbone) == (other.task, other.model, other.backbone)


def drops_of(entries: Sequence[TuningEntry]) -> list[str]:
    """Return a line for each task, model and backbone whose newest record is worse than the one before.

    It is worse if its mean lies below the earlier mean by more than the lower half of the earlier interval.
    """
    pairs: list[tuple[TuningEntry, TuningEntry]] = []
    for number, entry in enumerate(entries):
        alike = [
            each for each in entries[:number] if _same_task(entry, each) and each.measure == entry.measure
        ]
        if alike and not any(_same_task(entry, later) for later in entries[number + 1 :]):
            pairs.append((alike[-1], entry))
    return [
        f"{entry.task}, {entry.model}, {entry.backbone}: {fmean(entry.after):.1%} at {entry.commit[:9]}, "
        f"{fmean(earlier.after):.1%} at {earlier.commit[:9]}"
        for earlier, entry in pairs
        if fmean(entry.after) < fmean(earlier.after) - (earlier.gain[0] - earlier.gain[1])
    ]


def entry_of(
    folders: Sequence[Path],
    *,
    task: str,
    commit: str,
    backbone: str,
    hardware: str,
    before: str,
    after: str,
    model: str = "tiny",
) -> TuningEntry:
    """Return the line of finished runs, one folder for each seed.

    :param before: policy in `success` before the tuning.
    :param after: policy in `success` after it.
    :raises ConfigurationError: if a run has no usable figures.
    """
    runs = [_figures(folder / "figures.json", before, after) for folder in folders]
    curves = [run.curve or _curve(folder, after) for run, folder in zip(runs, folders, strict=True)]
    gains = [run.gain for run in runs]
    return TuningEntry(
        task=task,
        commit=commit,
        backbone=backbone,
        hardware=hardware,
        measure=f"solved of {runs[0].tasks} held-out tasks",
        seeds=tuple(run.seed for run in runs),
        before=tuple(run.success[before] for run in runs),
        after=tuple(run.success[after] for run in runs),
        gain=(
            fmean(gain for gain, _, _ in gains),
            min(low for _, low, _ in gains),
            max(high for *_, high in gains),
        ),
        curve=curve_of(curves),
        seconds=tuple(round(run.seconds, 1) for run in runs),
        model=model,
    )


def curve_of(curves: Sequence[Sequence[tuple[float, float]]]) -> tuple[CurvePoint, ...]:
    """Return the curve of several seeds over the steps that all of them have."""
    by_step = [dict(curve) for curve in curves]
    steps = sorted(set(by_step[0]).intersection(*by_step[1:])) if by_step else []
    points: list[CurvePoint] = []
    for step in steps:
        values = [curve[step] for curve in by_step]
        points.append(
            CurvePoint(int(step), *(round(value, 4) for value in (fmean(values), min(values), max(values))))
        )
    return tuple(points)


def _figures(path: Path, before: str, after: str) -> RunFigures:
    try:
        figures = msgspec.json.decode(path.read_bytes(), type=RunFigures)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{path}: {error}; name the output folder of a finished run") from None
    if missing := [name for name in (before, after) if name not in figures.success]:
        raise ConfigurationError(f"{path}: success has no {missing[0]}; known: {', '.join(figures.success)}")
    return figures


def _curve(folder: Path, after: str) -> tuple[tuple[float, float], ...]:
    for path in (folder / after / "metrics.jsonl", folder / "metrics.jsonl"):
        if path.exists():
            steps = [
                msgspec.json.decode(line, type=dict[str, Any]) for line in path.read_bytes().splitlines()
            ]
            return tuple((one["step"], one["reward/mean"]) for one in steps if "reward/mean" in one)
    return ()


_HEAD = """# Tuning benchmarks

Measured tunings, newest first, from `benchmarks/tuning.jsonl`. This page is generated: `python benchmarks/tuning.py --page`.

The record is only ever appended to: each line holds a digest of itself and of the line before it, and a changed line is refused.
`python benchmarks/tuning.py --record FOLDER… --task NAME` appends the runs in these folders, one for each seed, from their
`figures.json`. The gain is the mean over the seeds; its interval reaches from the lowest to the highest end of the seeds' 95%
bootstrap intervals.

`python benchmarks/tuning.py --check` makes the task `short` in a few seconds: a tiny model on one thread learns by Flow-GRPO
which of four kinds of tokens a prompt asks for. Its curve has to stay within the recorded one; CI compares it, too. It also warns of
each task, model and backbone whose newest mean lies below the one before by more than the lower half of the earlier interval.
[Backbones compared](backbone-comparison.md) has the lines of `countdown_short`.

| task | model | commit | backbone | seeds | before | after | gain, points | seconds | hardware |
| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |
"""


def page_of(entries: Sequence[TuningEntry], compared: Sequence[str] = ()) -> str:
    """Return the page of a record, in Markdown.

    :param compared: tasks whose curves have a page of their own.
    """
    newest = list(reversed(entries))
    parts = [_HEAD, *(_row(entry) for entry in newest)]
    parts.append("\n## Curves\n\nMean reward by step, and the range over the seeds.\n")
    latest = {
        (entry.task, entry.model): entry for entry in entries if entry.curve and entry.task not in compared
    }
    for entry in latest.values():
        parts.append(
            f"\n`{entry.task}`, {entry.model}, {entry.measure}:\n\n| step | mean | lowest | highest |\n| ---: | ---: | ---: | ---: |\n"
        )
        parts += [
            f"| {step} | {mean:.3f} | {low:.3f} | {high:.3f} |\n"
            for step, mean, low, high in _thinned(entry.curve)
        ]
    return "".join(parts)


def _thinned(curve: Sequence[CurvePoint], most: int = 12) -> list[CurvePoint]:
    """Return at most that many points, evenly spaced, with the first and the last."""
    if len(curve) <= most:
        return list(curve)
    return [curve[round(place * (len(curve) - 1) / (most - 1))] for place in range(most)]


def _row(entry: TuningEntry) -> str:
    gain, low, high = (100 * value for value in entry.gain)
    cells = [
        entry.task,
        entry.model,
        entry.commit[:9],
        entry.backbone,
        ", ".join(map(str, entry.seeds)),
        f"{fmean(entry.before):.1%}",
        f"{fmean(entry.after):.1%}",
        f"{gain:+.1f} ({low:+.1f} to {high:+.1f})",
        f"{fmean(entry.seconds):.0f}" if entry.seconds else "",
        entry.hardware,
    ]
    return f"| {' | '.join(cells)} |\n"
