"""The record of tunings, its page, and the short run."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from agentflow.errors import ConfigurationError
from benchmarks import tuning
from benchmarks._tuning_record import CurvePoint, append, entry_of, page_of, read_entries


def write_run(folder: Path, seed: int, **more: object) -> Path:
    """Write the figures and the curve of a finished run."""
    gain = [0.2 + seed / 100, 0.1, 0.3 + seed / 100]
    figures = {
        "seed": seed,
        "seconds": 7.04,
        "tasks": 40,
        "success": {"fine_tuned": 0.5, "flow": 0.7},
        "gain": gain,
    }
    (folder / "flow").mkdir(parents=True)
    (folder / "figures.json").write_text(json.dumps({**figures, **more}))
    steps = [{"step": step, "reward/mean": 0.1 * (step + seed)} for step in (1, 2)]
    lines = [*steps, {"step": 2, "validation/reward": 1.0}]
    (folder / "flow" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


NAMES = {"task": "countdown", "commit": "c0ffee", "backbone": "local", "hardware": "2 cores"}
POLICIES = {"before": "fine_tuned", "after": "flow"}


@pytest.mark.promise("tuning_benchmarks:record")
def test_runs_of_several_seeds_become_one_line(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(seed), seed) for seed in (0, 1)]
    record = tmp_path / "record.jsonl"
    entry = append(record, entry_of(folders, **NAMES, **POLICIES))
    assert read_entries(record) == [entry]
    assert (entry.seeds, entry.before, entry.after, entry.seconds) == (
        (0, 1),
        (0.5, 0.5),
        (0.7, 0.7),
        (7.0, 7.0),
    )
    assert entry.gain == (pytest.approx(0.205), 0.1, 0.31)
    assert entry.curve == (CurvePoint(1, 0.15, 0.1, 0.2), CurvePoint(2, 0.25, 0.2, 0.3))
    assert (
        "| countdown | c0ffee | local | 0, 1 | 50.0% | 70.0% | +20.5 (+10.0 to +31.0) | 7 | 2 cores |"
        in page_of([entry])
    )


@pytest.mark.promise("tuning_benchmarks:record")
def test_earlier_lines_can_not_be_changed_removed_or_repeated(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    entry = entry_of([write_run(tmp_path / "0", 0)], **NAMES, **POLICIES)
    for commit in ("a", "b", "c"):
        append(record, structs.replace(entry, commit=commit))
    whole = record.read_bytes()
    lines = whole.splitlines(keepends=True)
    with pytest.raises(ConfigurationError, match="is recorded already"):
        append(record, structs.replace(entry, commit="b"))
    assert record.read_bytes() == whole
    for number, broken in (
        (2, [lines[0], lines[1].replace(b"0.7", b"0.9"), lines[2]]),
        (3, [*lines[:2], lines[2].replace(b"local", b"verl!")]),
        (2, [lines[0], lines[2]]),
        (1, lines[1:]),
        (2, [lines[0], b"{}\n"]),
    ):
        record.write_bytes(b"".join(broken))
        with pytest.raises(ConfigurationError, match=rf"record.jsonl:{number}: .*restore the file") as raised:
            append(record, structs.replace(entry, commit="d"))
        assert "\n" not in str(raised.value)
        assert record.read_bytes() == b"".join(broken)


@pytest.mark.promise("tuning_benchmarks:record")
def test_a_run_without_usable_figures_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="name the output folder of a finished run"):
        entry_of([tmp_path], **NAMES, **POLICIES)
    folder = write_run(tmp_path / "0", 0, success={"flow": 1.0})
    with pytest.raises(ConfigurationError, match="success has no fine_tuned; known: flow"):
        entry_of([folder], **NAMES, **POLICIES)


@pytest.mark.promise("tuning_benchmarks:page")
def test_the_page_is_that_of_the_record() -> None:
    assert tuning.PAGE.read_text() == page_of(read_entries(tuning.RECORD)), (
        "run: python benchmarks/tuning.py --page"
    )


@pytest.mark.promise("tuning_benchmarks:page")
def test_the_command_appends_runs_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "RECORD", tmp_path / "record.jsonl")
    monkeypatch.setattr(tuning, "PAGE", tmp_path / "page.md")
    folder = str(write_run(tmp_path / "0", 0, curve=[[1, 0.5], [3, 0.75]]))
    assert tuning.main(["--record", folder, "--task", "countdown", "--commit", "c0ffee"]) == 0
    [entry] = read_entries(tmp_path / "record.jsonl")
    assert entry.curve == (CurvePoint(1, 0.5, 0.5, 0.5), CurvePoint(3, 0.75, 0.75, 0.75))
    assert "| 3 | 0.750 | 0.750 | 0.750 |" in (tmp_path / "page.md").read_text()


@pytest.mark.promise("tuning_benchmarks:short")
def test_the_short_training_stays_within_its_recorded_curve(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuning.main(["--check"]) == 0
    curve = msgspec.json.decode(capsys.readouterr().out.splitlines()[-1])["curve"]
    recorded = next(
        entry.curve for entry in reversed(read_entries(tuning.RECORD)) if entry.task == tuning.SHORT
    )
    flat = [(float(step), curve[0]) for step in range(len(curve))]
    assert len(tuning.leaves(flat, recorded)) >= 10
    assert tuning.leaves([(99.0, 0.5)], recorded)
