"""The table of kinds of runs and formats in the documentation."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow.errors import ConfigurationError
from agentflow.exports import DropReason, ExportFormat, export_run
from tests.behaviour._tree import ROOT
from tests.trainers._runs import store_training

KINDS = ("synthesis", "rollout, evaluation", "tuning", "gateway", "training")


def table() -> Iterator[tuple[str, str, str]]:
    """Yield kind, format and cell of the table."""
    text = (ROOT / "docs/exports.md").read_text(encoding="utf-8")
    head, _, *lines = (
        text.partition("## Kinds of runs")[2].partition("| run |")[2].split("\n\n")[0].splitlines()
    )
    formats = [re.findall(r"[a-z]+(?:-[a-z]+)*", cell) for cell in head.strip(" |").split("|")]
    for line in lines:
        kind, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for names, cell in zip(formats, cells, strict=True):
            yield from ((kind, name, cell) for name in names)


@pytest.mark.promise("exports:kinds")
def test_the_table_names_every_kind_and_format_once() -> None:
    named = [(kind, format) for kind, format, _ in table()]
    assert sorted(named) == sorted((kind, format.value) for kind in KINDS for format in ExportFormat)


@pytest.mark.promise("exports:kinds")
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_run_gives_rows_or_the_reason_in_the_table(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind == "training":
        run = store_training(tmp_path)
    elif kind == "gateway":
        run = request.getfixturevalue("tuning") / "gateway"
    else:
        run = request.getfixturevalue(
            {"synthesis": "sampled", "rollout, evaluation": "evaluation", "tuning": "tuning"}[kind]
        )
    for own, format, cell in table():
        if own != kind:
            continue
        try:
            assert sum(export_run(run, format, tmp_path / format).rows.values()) > 0
            found = "rows"
        except ConfigurationError as error:
            assert "\n" not in str(error)
            found = str(error)
        assert cell == "rows" if found == "rows" else f" {DropReason(cell.strip('`'))}" in found, (
            format,
            found,
        )


@pytest.mark.promise("exports:bad")
def test_an_evaluation_of_several_benchmarks_asks_for_one_of_its_rollouts(
    evaluation: Path, tmp_path: Path
) -> None:
    for benchmark in ("first", "second"):
        shutil.copytree(evaluation / "bamboogle", tmp_path / "eval" / benchmark)
    with pytest.raises(
        ConfigurationError, match=r"has several runs; --name one of fake-\w+, fake-\w+$"
    ) as found:
        export_run(tmp_path / "eval", "openai", tmp_path / "data")
    chosen = str(found.value).rpartition(" ")[2]
    assert export_run(tmp_path / "eval", "openai", tmp_path / "data", name=chosen).rows
