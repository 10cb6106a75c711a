"""Exports of finished runs, from the command line to the files."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.exports import (
    Dropped,
    DropReason,
    ExportContext,
    ExportFormat,
    ExportRow,
    Take,
    export_run,
)
from agentflow.exports._formats import FORMATS
from agentflow.exports._native import long_context_rows
from agentflow.inspection import SeedRecord
from agentflow.trace import ActionOutcome, Observation, SourceSpan, Text
from tests.agentflow.exports._trees import answer, files_of, node, program_of, rows, tree_of
from tests.behaviour._markdown import snippets
from tests.behaviour._tree import ROOT

OFFLINE_FORMATS = [format for format in ExportFormat if format not in ("trl-dpo", "trl-sft-tokens")]
"""Formats for runs of the offline engine, which makes no mistakes and reports no tokens."""


@pytest.mark.promise("exports:bytes")
@pytest.mark.parametrize("format", OFFLINE_FORMATS)
def test_the_same_run_gives_the_same_bytes(synthesis: Path, tmp_path: Path, format: ExportFormat) -> None:
    for name in ("one", "two"):
        export_run(synthesis, format, tmp_path / name, split=True)
    assert list(files_of(tmp_path / "one")) == list(files_of(tmp_path / "two"))


@pytest.mark.promise("exports:manifest")
@pytest.mark.parametrize("format", [format for format in OFFLINE_FORMATS if format != "long-context"])
def test_manifest_and_card_name_every_file_and_reason(
    rollout: Path, tmp_path: Path, format: ExportFormat
) -> None:
    folder = tmp_path / "data"
    manifest = export_run(rollout, format, folder)
    assert json.loads((folder / "manifest.json").read_text())["run"]["kind"] == "rollout"
    assert {file.name for file in manifest.files} == {name for name, _ in files_of(folder)} - {
        "manifest.json"
    }
    dropped = rows(folder / "dropped.jsonl") if manifest.dropped else []
    assert len(dropped) == sum(manifest.dropped.values())
    assert {one["reason"] for one in dropped} == set(manifest.dropped)
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    named = {part["path"] for config in card["configs"] for part in config["data_files"]}
    assert named == set(manifest.rows)
    assert all(reason in body for reason in manifest.dropped)


@pytest.mark.promise("exports:programs")
def test_the_documentation_shows_the_program_of_each_card_for_trl() -> None:
    page = ROOT / "docs/exports.md"
    shown = {snippet.text for snippet in snippets(page, "py")}
    programs = {program_of(format.usage) for name, format in FORMATS.items() if name.startswith("trl-")}
    assert {program.replace('"FOLDER"', '"data"') for program in programs} == shown


@pytest.mark.promise("exports:take")
def test_only_correct_or_only_the_best_answers_are_taken(rollout: Path, tmp_path: Path) -> None:
    counts: dict[str, int] = {}
    for take in ("all", "correct", "best"):
        manifest = export_run(rollout, "openai", tmp_path / take, take=take)
        counts[take] = manifest.rows["train.jsonl"]
    assert counts == {"all": 4, "correct": 2, "best": 1}
    texts = (tmp_path / "best" / "train.jsonl").read_text()
    assert "When was Needle Light built?" in texts
    assert "Who was the designer" not in texts


@pytest.mark.promise("exports:split")
def test_a_split_holds_out_whole_seeds(synthesis: Path, tmp_path: Path) -> None:
    manifest = export_run(synthesis, "native", tmp_path / "data", split=True)
    parts = [rows(tmp_path / "data" / name) for name in ("trees.jsonl", "trees.validation.jsonl")]
    assert [len(part) for part in parts] == [1, 1]
    assert parts[0][0]["group"] != parts[1][0]["group"]
    assert set(manifest.rows) >= {"nodes.jsonl", "nodes.validation.jsonl"}


@pytest.mark.promise("exports:command")
def test_the_command_writes_the_folder_and_says_what_is_left_out(
    rollout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    assert main(["export", str(rollout), "--format", "sharegpt", "-o", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"{folder}/train.jsonl: 2 rows" in shown
    assert "left out: 2 not_correct" in shown
    assert main(["export", str(rollout), "--format", "sharegpt", "-o", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"train.jsonl": 2}


@pytest.mark.promise("exports:bad")
@pytest.mark.parametrize("table", ["seeds", "harvests"])
def test_a_damaged_record_of_the_journal_is_one_line_and_leaves_no_files(
    table: str, synthesis: Path, tmp_path: Path
) -> None:
    shutil.copytree(synthesis, tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run/journal.db")) as journal, journal:
        journal.execute(f"UPDATE agentflow_{table} SET body = substr(body, 1, length(body) - 1)")
    with pytest.raises(
        ConfigurationError, match=r"run: .*a record of the run is damaged: Input data was"
    ) as refused:
        export_run(tmp_path / "run", "openai", tmp_path / "new")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.promise("exports:bad")
def test_bad_input_is_one_line_and_leaves_no_files(synthesis: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "trees.jsonl").write_text('{"tree_id": 1}\n')
    (broken / "trajectories.jsonl").write_text("")
    (broken / "synthesized_qa.jsonl").write_text("")
    cases: tuple[tuple[Path, str, str, dict[str, str], str], ...] = (
        (synthesis, "trl-stf", "new", {}, "did you mean trl-sft"),
        (synthesis, "openai", "new", {"take": "right"}, "--take: right is unknown"),
        (synthesis, "openai", "new", {"view": "planner"}, "--view: planner is unknown"),
        (synthesis, "trl-kto", "new", {"take": "best"}, "trl-kto needs right and wrong answers alike"),
        (
            synthesis,
            "trl-sft-tokens",
            "new",
            {},
            "2 no_tokens); the engine reported no tokens: set tokens=true",
        ),
        (synthesis, "openai", "other", {}, "has files, but no export"),
        (tmp_path / "nothing", "openai", "new", {}, "no such file or folder"),
        (broken, "openai", "new", {}, "trees.jsonl:1: "),
    )
    for run, format, folder, more, words in cases:
        with pytest.raises(ConfigurationError) as caught:
            export_run(run, format, tmp_path / folder, take=more.get("take"), view=more.get("view", "agent"))
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["broken", "other"]
    assert [path.name for path in other.iterdir()] == ["mine.txt"]


@pytest.mark.promise("exports:killed")
def test_a_run_is_read_from_its_journal_or_from_its_files_alike(
    synthesis: Path, rollout: Path, tmp_path: Path
) -> None:
    for run in (synthesis, rollout):
        copy = tmp_path / run.name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("journal.db*"))
        for format in ("native", "trl-prm", "trl-grpo"):
            folders = [tmp_path / f"{run.name}-{format}-{kind}" for kind in ("journal", "files")]
            for source, folder in zip((run / "journal.db", copy), folders, strict=True):
                export_run(source, format, folder)
            names = json.loads((folders[0] / "manifest.json").read_text())["rows"]
            for name in names:
                assert rows(folders[0] / name) == rows(folders[1] / name)


@pytest.mark.promise("exports:tools")
def test_rows_have_the_schemas_that_the_run_kept(rollout: Path, tmp_path: Path) -> None:
    export_run(rollout, "openai", tmp_path / "data")
    tools = {tool["function"]["name"]: tool for tool in rows(tmp_path / "data" / "train.jsonl")[0]["tools"]}
    assert "query" in tools["rag_search"]["function"]["parameters"]["properties"]


@pytest.mark.promise("exports:killed")
def test_an_unfinished_run_gives_what_it_has(tmp_path: Path) -> None:
    run = tmp_path / "run"
    seeds = tmp_path / "seeds.jsonl"
    seeds.write_text(
        "".join(json.dumps({"content": f"Explore the Grey Petrel {n}."}) + "\n" for n in range(3))
    )
    settings = [f"seeds_file={seeds}", f"output_dir={run}", "max_depth=2", "max_total_tokens=20000"]
    assert main(["synth", *settings]) in (0, 3)
    manifest = export_run(run, "native", tmp_path / "data")
    assert manifest.rows["trees.jsonl"] == 3


@pytest.mark.promise("exports:trimmed")
def test_paths_are_trimmed_to_what_answers_need_unless_all_of_them_is_asked_for(
    synthesis: Path, tmp_path: Path
) -> None:
    pairs = [json.loads(line) for line in (synthesis / "synthesized_qa.jsonl").read_text().splitlines()]
    calls = {pair["qa_id"]: len(pair["metadata"]["path"]) - 1 for pair in pairs}
    whole = {pair["qa_id"]: pair["metadata"]["trajectory_depth"] for pair in pairs}
    for path, expected in (("trimmed", calls), ("full", whole)):
        manifest = export_run(synthesis, "axolotl", tmp_path / path, path=path)
        assert manifest.path == path
        found = {
            row["id"]: sum(message["role"] == "tool" for message in row["messages"])
            for row in rows(tmp_path / path / "train.jsonl")
        }
        assert found == expected
    assert sum(calls.values()) < sum(whole.values())
    copy = tmp_path / "copy"
    shutil.copytree(synthesis, copy, ignore=shutil.ignore_patterns("journal.db*"))
    export_run(copy, "axolotl", tmp_path / "files")
    texts = [
        [row["messages"] for row in rows(tmp_path / folder / "train.jsonl")]
        for folder in ("trimmed", "files")
    ]
    assert texts[0] == texts[1]
    with pytest.raises(ConfigurationError, match="--path: short is unknown"):
        export_run(synthesis, "axolotl", tmp_path / "bad", path="short")


@pytest.mark.promise("exports:long-context")
def test_a_question_over_long_context_stands_below_all_documents_of_its_tree(
    synthesis: Path, tmp_path: Path
) -> None:
    pairs = {
        pair["qa_id"]: pair
        for pair in map(json.loads, (synthesis / "synthesized_qa.jsonl").read_text().splitlines())
    }
    export_run(synthesis, "long-context", tmp_path / "data")
    found = rows(tmp_path / "data/train.jsonl")
    assert {row["id"] for row in found} == set(pairs)
    orders = {tuple(row["documents"]) for row in found}
    assert len(orders) > 1
    for row in found:
        pair = pairs[row["id"]]
        needed = [row["documents"][number - 1] for number in row["needed"]]
        assert set(needed) == {document["id"] for document in pair["metadata"]["documents"]}
        assert len(row["documents"]) > len(needed)
        [message] = row["prompt"]
        assert message["content"].endswith(pair["question"])
        for step in pair["reasoning_steps"]:
            assert all(cited["quote"] in message["content"] for cited in step["citations"])
        assert row["completion"] == [{"role": "assistant", "content": pair["answer"]}]


@pytest.mark.promise("exports:long-context")
def test_the_parts_of_a_single_document_are_the_documents_of_a_long_context() -> None:
    texts = (
        "Brenn Light was designed by Ada Holm, a painter.",
        "Ada Holm was born in Vessel Bay in the year 1841.",
    )
    nodes = [node("n0", None, 0)]
    for number, text in enumerate(texts, 1):
        source = SourceSpan("light.pdf", 0, len(text), offset=100 * number)
        read = node(f"n{number}", f"n{number - 1}", number, tool="document_read")
        nodes.append(replace(read, outcome=ActionOutcome(Observation((Text(text),), (source,)))))
    own = replace(answer(tuple(nodes), "a", "n2"), documents=("light.pdf#100", "light.pdf#200"))
    tree = SeedRecord(tree=tree_of(tuple(nodes), "Read it."), is_episode=False, answers=(own,))
    [row] = long_context_rows([tree], ExportContext(take=Take.CORRECT))
    assert isinstance(row, ExportRow)
    assert sorted(row.values["documents"]) == ["light.pdf#100", "light.pdf#200"]
    assert row.values["needed"] == [1, 2]
    unknown = replace(tree, answers=(replace(own, documents=("elsewhere.pdf",)),))
    [dropped] = long_context_rows([unknown], ExportContext(take=Take.CORRECT))
    assert dropped == Dropped("s", "a", DropReason.NO_DOCUMENTS)


CUSTOM_FORMAT = """
from agentflow.exports import Dropped, DropReason, ExportRow, RowFormat

def rows(records, export):
    for record in records:
        for answer in record.answers:
            if answer.right:
                values = {"question": answer.question, "tools": [tool.name for tool in export.tools]}
                yield ExportRow("train", record.group, values)
            else:
                yield Dropped(record.group, answer.id, DropReason.NOT_CORRECT)

QUESTIONS = RowFormat(
    rows=rows, columns={"train": {"question": "string", "tools": "[string]"}}, usage="For any trainer."
)
"""


@pytest.mark.promise("exports:custom")
def test_a_custom_format_is_one_file(rollout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CUSTOM_FORMAT, encoding="utf-8")
    assert main(["export", str(rollout), "--format", "mine.py:QUESTIONS", "-o", "data"]) == 0
    [first, second] = rows(Path("data/train.jsonl"))
    assert first == second and first["question"] == "When was Needle Light built?"
    assert "rag_search" in first["tools"]
    card = Path("data/README.md").read_text(encoding="utf-8")
    assert "For any trainer." in card and "| `not_correct` | 2 |" in card
    assert json.loads(Path("data/manifest.json").read_text())["format"] == "mine.py:QUESTIONS"
    with pytest.raises(ConfigurationError, match=r"mine\.py:rows is no RowFormat; see docs/exports\.md"):
        export_run(rollout, "mine.py:rows", "other")
