"""Tables and a picture of finished rollouts."""

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.rollouts import SUMMARY, RolloutSummary
from agentflow.rollouts.analysis import AnalysedRun, draw, find_runs, summary_card, tables_of
from agentflow.scoring import Interval
from agentflow.trace import Usage
from tests.agentflow.rollouts._rollouts import config_for, run_to_the_end, some_tasks


async def a_summary(folder: Path) -> RolloutSummary:
    _, summary = await run_to_the_end(config_for(folder), some_tasks(2))
    return summary


@pytest.mark.promise("rollout:analyse")
async def test_turns_are_listed_by_budget_and_both_verification_modes_side_by_side(tmp_path: Path) -> None:
    one = msgspec.structs.replace(
        await a_summary(tmp_path), benchmark="b", score=0.5, interval=Interval(0.25, 0.75)
    )
    more = msgspec.structs.replace(one, max_turns=5, score=0.75)
    merged = msgspec.structs.replace(more, verify="merged", calls_per_task={"planner": 2.0})
    tables = {
        table.title: table for table in tables_of([AnalysedRun("x", run) for run in (one, more, merged)])
    }
    turns = tables["Average turns and score by budget"]
    assert turns.columns[3:] == ("at most 3", "at most 5")
    mean = f"{one.turns.mean:.2f}"
    assert turns.rows == (
        ("b", "offline", "team, separate", f"{mean} (50.0%)", f"{mean} (75.0%)"),
        ("b", "offline", "team, merged", "", f"{mean} (75.0%)"),
    )
    ways = tables["Separate and merged verifier"].rows
    assert [row[3] for row in ways] == ["separate", "merged"]
    assert ways[1][6] == "2.0 (planner 2.0)"
    accuracy = tables["Accuracy"].rows[0]
    assert accuracy[5] == "50.0% (25.0% to 75.0%)"


@pytest.mark.promise("models:usage:checked")
async def test_the_summary_says_how_many_token_counts_are_estimates(tmp_path: Path) -> None:
    summary = await a_summary(tmp_path)
    assert "estimates" not in summary_card(summary)
    estimated = msgspec.structs.replace(summary, usage={"planner": Usage(6, 300, 40, estimated=2)})
    assert "tokens; 2 of 6 token counts are estimates" in summary_card(estimated)


@pytest.mark.promise("rollout:analyse")
async def test_the_chart_is_valid_svg_for_any_names(tmp_path: Path) -> None:
    summary = msgspec.structs.replace(await a_summary(tmp_path), benchmark="<b> & c", score=0.5)
    picture = ElementTree.fromstring(draw([AnalysedRun("x", summary)]))
    texts = [text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert any("<b> & c" in text for text in texts)


@pytest.mark.promise("rollout:labels")
@pytest.mark.parametrize("model", ["m" * 90, "W" * 90, "模型" * 40])
async def test_labels_are_never_cut(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = msgspec.structs.replace(await a_summary(tmp_path), models={"planner": model})
    (tmp_path / SUMMARY).write_bytes(msgspec.json.encode(summary))
    assert main(["analyse", str(tmp_path), "--picture", str(tmp_path / "scores.svg")]) == 0
    assert any(model in line for line in capsys.readouterr().out.splitlines())
    picture = ElementTree.parse(tmp_path / "scores.svg").getroot()
    label = next(
        text for text in picture.iter("{http://www.w3.org/2000/svg}text") if model in (text.text or "")
    )
    # Letters of a sans-serif font of 12 pixels are at most 11.4 pixels wide, ideographs 12.
    assert float(label.attrib["x"]) >= 12 * len(model)


@pytest.mark.promise("rollout:analyse")
async def test_runs_are_found_once_below_directories_and_an_invalid_summary_gives_one_line(
    tmp_path: Path,
) -> None:
    await a_summary(tmp_path / "runs" / "one")
    assert len(find_runs([tmp_path, tmp_path / "runs"])) == 1
    (tmp_path / "runs" / "two").mkdir()
    (tmp_path / "runs" / "two" / SUMMARY).write_text('{"tasks": "many"}')
    with pytest.raises(ConfigurationError, match=r"two/summary.json: not a summary of a rollout"):
        find_runs([tmp_path])
