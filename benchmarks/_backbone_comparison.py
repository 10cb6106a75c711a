"""Countdown with the backbones of the learner next to each other: the same tasks, the same seed, at several commits."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Final, get_args

import msgspec
from msgspec import structs

from agentflow.errors import ConfigurationError
from agentflow.learner import TrainConfig
from agentflow.serving import fetch_model
from benchmarks._tuning_record import CurvePoint, TuningEntry, entry_of

__all__ = [
    "BACKBONES",
    "MODELS",
    "TASK",
    "checked_out",
    "comparison_page_of",
    "debug_curve",
    "debug_entry",
    "measure",
]

ROOT = Path(__file__).resolve().parents[1]
TASK: Final = "countdown_short"
"""Task of the record: countdown with these settings."""
BACKBONES: Final[tuple[str, ...]] = get_args(TrainConfig.model_fields["backbone"].annotation)
MODELS: Final[dict[str, tuple[str, ...]]] = {
    "tiny": (
        "held_out=100",
        "teaching.episodes=2000",
        "tune.schedule={steps: 8, tasks_per_step: 4, episodes_per_task: 8, epochs: null, save_steps: 1000}",
    ),
    "smollm2": (
        "held_out=32",
        "teaching={episodes: 64, epochs: 1, batch: 8, rate: 0.0001}",
        "tune.schedule={steps: 3, tasks_per_step: 2, episodes_per_task: 8, epochs: null, save_steps: 1000}",
        "tune.optimizer={learning_rate: 0.00005, betas: [0.9, 0.95], weight_decay: 0.0}",
    ),
}
"""Settings of countdown for each model."""
_SHARED = ("run.json", "model", "fine_tuned", "fine_tuned.json")
"""Files of a run up to the tuning."""
_PARTS = ("seconds/rollout", "seconds/step", "seconds/publish")
_REWARD = re.compile(r"^  .+: reward ([\d.]+), advantage ", re.MULTILINE)
_STEP = re.compile(r"^step \d+: .*\n", re.MULTILINE)


@contextmanager
def checked_out(commit: str, tree: Path) -> Generator[Path]:
    """Yield a folder with a commit and the present examples, which measure all commits alike."""
    git = ["git", "-C", str(ROOT), "worktree"]
    remove = [*git, "remove", "--force", str(tree)]
    # That of a killed run.
    subprocess.run(remove, check=False, capture_output=True)
    try:
        subprocess.run(
            [*git, "add", "--detach", str(tree), commit], check=True, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as error:
        problem = " ".join(error.stderr.split())
        raise ConfigurationError(f"commit {commit}: {problem}; name a commit and an empty folder") from None
    try:
        shutil.rmtree(tree / "examples")
        shutil.copytree(ROOT / "examples", tree / "examples")
        yield tree
    finally:
        subprocess.run(remove, check=True)


def measure(tree: Path, out: Path, commit: str, model: str, backbone: str, hardware: str) -> TuningEntry:
    """Tune in a checked-out tree; return the line of the record.

    :param out: folder of this commit, and of this model in it; all commits and backbones share a fine-tuned model.
    :raises ConfigurationError: if the run fails.
    """
    folder, log = out / backbone, out / f"{backbone}.log"
    _share_start(out, folder)
    command = [
        *(sys.executable, "examples/countdown/run.py", "--out", str(folder.absolute())),
        *MODELS[model],
        *([] if model == "tiny" else [f"base_model={fetch_model(model, ROOT / 'build/models' / model)}"]),
        f"python={ROOT / '.venv-vllm/bin/python'}",
        f"tune.backbone={backbone}",
    ]
    with log.open("ab") as file:
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        run = subprocess.run(
            command, cwd=tree, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    if run.returncode:
        raise ConfigurationError(f"{backbone} at {commit[:9]} failed; read {log}, then run the same again")
    if backbone == "debug":
        return debug_entry(folder, log, commit, model, hardware)
    entry = entry_of(
        [folder],
        task=TASK,
        commit=commit,
        backbone=backbone,
        hardware=hardware,
        before="fine_tuned",
        after="tuned",
        model=model,
    )
    return structs.replace(entry, seconds=(_seconds(folder / "tuned" / "metrics.jsonl"),))


def _share_start(out: Path, folder: Path) -> None:
    """Copy the fine-tuned model and its evaluation from another run of this model, if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    finished = next(
        (path.parent for path in sorted(out.parents[1].glob(f"*/{out.name}/*/figures.json"))), None
    )
    if finished is None or (folder / "run.json").exists():
        return
    for path in (finished / name for name in _SHARED):
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        elif path.exists():
            shutil.copy2(path, folder / path.name)


def debug_entry(folder: Path, log: Path, commit: str, model: str, hardware: str) -> TuningEntry:
    """Return the line of a run with backbone=debug, which trains nothing: it keeps the evaluation of its start."""
    rewards = msgspec.json.decode((folder / "fine_tuned.json").read_bytes(), type=list[float])
    start = (fmean(rewards),)
    return TuningEntry(
        task=TASK,
        commit=commit,
        backbone="debug",
        hardware=hardware,
        measure=f"solved of {len(rewards)} held-out tasks",
        seeds=(0,),
        before=start,
        after=start,
        gain=(0.0, 0.0, 0.0),
        curve=debug_curve(log.read_text()),
        model=model,
    )


def debug_curve(output: str) -> tuple[CurvePoint, ...]:
    """Return the mean reward of each step from the output of backbone=debug."""
    *steps, _ = _STEP.split(output)
    means = [fmean(map(float, _REWARD.findall(step))) for step in steps]
    return tuple(CurvePoint(number, *(round(mean, 4),) * 3) for number, mean in enumerate(means, 1))


def _seconds(metrics: Path) -> float:
    """Return the duration of all steps: rollouts, optimizer steps and updates of the engine."""
    steps = [msgspec.json.decode(line, type=dict[str, float]) for line in metrics.read_bytes().splitlines()]
    return round(sum(step[name] for step in steps for name in _PARTS if name in step), 1)


_HEAD = """# Backbones compared

Countdown, tuned with each [backbone](backbones.md) at several commits: the same tasks, the same seed, and for each model the same
fine-tuned start. This page is generated from `benchmarks/tuning.jsonl` by `python benchmarks/tuning.py --page`;
`python benchmarks/tuning.py --compare FOLDER --commit HEAD` measures a commit, with the present `examples` in its tree. `debug` trains
nothing, one episode at a time: it keeps the evaluation of its start. Seconds depend on what else the machine runs. Backbones without a record were never run.
"""


def comparison_page_of(entries: Sequence[TuningEntry]) -> str:
    """Return the page of all lines of this task, in Markdown."""
    entries = [entry for entry in entries if entry.task == TASK]
    parts = [_HEAD]
    for model, settings in MODELS.items():
        of_model = [entry for entry in entries if entry.model == model]
        parts += [f"\n## {model}\n\n", *(f"- `{setting}`\n" for setting in settings)]
        parts.append(f"\n{_results(of_model)}")
        commits = Counter(entry.commit for entry in reversed(of_model))
        for commit, _ in commits.most_common(1):
            at_commit = {entry.backbone: entry for entry in of_model if entry.commit == commit}
            parts.append(_curves(f"Mean reward of each step at `{commit[:9]}`", at_commit))
        for backbone in BACKBONES:
            own = {f"`{entry.commit[:9]}`": entry for entry in of_model if entry.backbone == backbone}
            if len(own) > 1:
                parts.append(_curves(f"Mean reward of each step of `{backbone}`", own))
    return "".join(parts)


def _results(entries: Sequence[TuningEntry]) -> str:
    lines = [
        "| backbone | commit | before | after | change, points (95%) | seconds of the tuning | hardware |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for backbone in BACKBONES:
        own = [entry for entry in entries if entry.backbone == backbone]
        lines += [_result(entry) for entry in own] or [f"| {backbone} | never run | | | | | |"]
    return "\n".join(lines) + "\n"


def _result(entry: TuningEntry) -> str:
    gain, low, high = (100 * value for value in entry.gain)
    cells = [
        entry.backbone,
        f"`{entry.commit[:9]}`",
        f"{fmean(entry.before):.1%}",
        f"{fmean(entry.after):.1%}",
        f"{gain:+.1f} ({low:+.1f} to {high:+.1f})",
        f"{fmean(entry.seconds):.0f}" if entry.seconds else "",
        entry.hardware,
    ]
    return f"| {' | '.join(cells)} |"


def _curves(title: str, entries: Mapping[str, TuningEntry]) -> str:
    """Return a table with a column for each curve."""
    curves = [{point.step: f"{point.mean:.3f}" for point in entry.curve} for entry in entries.values()]
    lines = [
        f"| step | {' | '.join(entries)} |",
        f"| ---: |{' ---: |' * len(entries)}",
        *(
            f"| {step} | {' | '.join(curve.get(step, '') for curve in curves)} |"
            for step in sorted({step for curve in curves for step in curve})
        ),
    ]
    return f"\n{title}:\n\n" + "\n".join(lines) + "\n"
