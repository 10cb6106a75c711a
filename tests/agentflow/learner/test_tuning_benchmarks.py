"""The record of tunings, its page, and the short run."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from agentflow.errors import ConfigurationError
from benchmarks import tuning
from benchmarks._backbone_comparison import TASK, checked_out, comparison_page_of, debug_curve, debug_entry
from benchmarks._tuning_record import CurvePoint, append, drops_of, entry_of, page_of, read_entries


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
        "| countdown | tiny | c0ffee | local | 0, 1 | 50.0% | 70.0% | +20.5 (+10.0 to +31.0) | 7 | 2 cores |"
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


@pytest.mark.promise("tuning_benchmarks:drop")
def test_a_drop_against_the_record_before_of_the_same_model_and_backbone_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    entry = entry_of([write_run(tmp_path / "0", 0)], **NAMES, **POLICIES)
    assert (entry.after, entry.gain) == ((0.7,), (0.2, 0.1, 0.3))
    others = [
        {"model": "smollm2"},
        {"backbone": "verl"},
        {"measure": "solved of 9 held-out tasks", "task": "other"},
    ]
    for number, change in enumerate([{}, *others]):
        append(record, structs.replace(entry, commit=f"{number}", **change))
    append(record, structs.replace(entry, commit="b", after=(0.61,)))
    assert drops_of(read_entries(record)) == []
    append(record, structs.replace(entry, commit="c", after=(0.5,)))
    append(record, structs.replace(entry, commit="d", after=(0.5,), task="other"))
    drop = "countdown, tiny, local: 50.0% at c, 61.0% at b"
    assert drops_of(read_entries(record)) == [drop]
    monkeypatch.setattr(tuning, "RECORD", record)
    monkeypatch.setattr(tuning, "compare", lambda: True)
    assert tuning.main(["--check"]) == 0
    assert f"warning: a drop: {drop}\n" == capsys.readouterr().err


@pytest.mark.promise("tuning_benchmarks:record")
def test_a_run_without_usable_figures_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="name the output folder of a finished run"):
        entry_of([tmp_path], **NAMES, **POLICIES)
    folder = write_run(tmp_path / "0", 0, success={"flow": 1.0})
    with pytest.raises(ConfigurationError, match="success has no fine_tuned; known: flow"):
        entry_of([folder], **NAMES, **POLICIES)


@pytest.mark.promise("tuning_benchmarks:page")
def test_the_pages_are_those_of_the_record() -> None:
    entries = read_entries(tuning.RECORD)
    for path, page in (
        (tuning.PAGE, page_of(entries, [TASK])),
        (tuning.COMPARISON, comparison_page_of(entries)),
    ):
        assert path.read_text() == page, "run: python benchmarks/tuning.py --page"


@pytest.mark.promise("tuning_benchmarks:page")
def test_the_command_appends_runs_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "RECORD", tmp_path / "record.jsonl")
    monkeypatch.setattr(tuning, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(tuning, "COMPARISON", tmp_path / "comparison.md")
    folder = str(write_run(tmp_path / "0", 0, curve=[[1, 0.5], [3, 0.75]]))
    assert (
        tuning.main(["--record", folder, "--task", "countdown", "--model", "smollm2", "--commit", "c0ffee"])
        == 0
    )
    [entry] = read_entries(tmp_path / "record.jsonl")
    assert entry.model == "smollm2"
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


@pytest.mark.promise("tuning_benchmarks:comparison")
def test_the_comparison_has_a_column_for_each_backbone_and_names_those_that_never_ran(tmp_path: Path) -> None:
    entry = structs.replace(entry_of([write_run(tmp_path / "0", 0)], **NAMES, **POLICIES), task=TASK)
    curve = debug_curve(
        "task 1: one\n  episode 1:\n    reward: 1\n  a: reward 1, advantage +1.000, 3 tokens to train\n"
        "  b: reward 0, advantage -1.000, 3 tokens to train\nstep 1: grpo is +0.000000 over 2 calls\n"
        "  c: reward 0.25, advantage +0.000, 3 tokens to train\nstep 2: grpo is +0.000000 over 1 calls\nmore\n"
    )
    assert curve == (CurvePoint(1, 0.5, 0.5, 0.5), CurvePoint(2, 0.25, 0.25, 0.25))
    (tmp_path / "fine_tuned.json").write_text("[1.0, 0.0]")
    (tmp_path / "log").write_text("")
    kept = debug_entry(tmp_path, tmp_path / "log", "b", "tiny", "2 cores")
    assert (kept.before, kept.after, kept.measure) == ((0.5,), (0.5,), "solved of 2 held-out tasks")
    page = comparison_page_of(
        [
            structs.replace(entry, commit="a"),
            structs.replace(entry, commit="b"),
            structs.replace(entry, commit="b", backbone="debug", curve=curve),
            structs.replace(entry, commit="b", task="another"),
        ]
    )
    assert (
        "| step | local | debug |\n| ---: | ---: | ---: |\n| 1 | 0.100 | 0.500 |\n| 2 | 0.200 | 0.250 |\n"
        in page
    )
    assert "| step | `a` | `b` |\n" in page
    assert "| trinity | never run | | | | | |\n" in page
    assert page.count("| debug | `b` | 50.0% | 70.0% | +20.0 (+10.0 to +30.0) | 7 | 2 cores |") == 1


@pytest.mark.promise("tuning_benchmarks:comparison")
def test_an_unknown_commit_is_refused_in_one_line_before_anything_runs(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"commit c0ffee-: .*; name a commit") as raised,
        checked_out("c0ffee-", tmp_path / "tree"),
    ):
        pass
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "tree").exists()
