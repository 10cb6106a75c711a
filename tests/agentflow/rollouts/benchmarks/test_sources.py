"""Published files as they are: in a folder of downloads, and from the hub."""

import csv
import importlib
import json
import threading
from collections.abc import Generator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.cli import main
from agentflow.errors import ConfigurationError
from agentflow.rollouts import RolloutConfig, assign
from agentflow.rollouts.benchmarks import benchmark_names, find_data, load_tasks
from agentflow.rollouts.benchmarks._sources import choose_file

CONTEXT = [["Sea birds", ["Gulls nest on cliffs.", "Terns do not."]]]
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "GAIA/2023/validation/metadata.jsonl": [
        {"task_id": "c61d22de", "Question": "How many gulls?", "Level": 1, "Final answer": "17", "file_name": "", "Annotator Metadata": {"Steps": "1. Count.", "Number of steps": "1"}},
        {"task_id": "17b5a6a3", "Question": "Read the sheet.", "Level": 2, "Final answer": "3", "file_name": "17b5a6a3.xlsx", "Annotator Metadata": {"Steps": ""}},
    ],
    "GAIA/2023/test/metadata.jsonl": [{"task_id": "a", "Question": "Hidden?", "Level": 1, "Final answer": "?", "file_name": ""}],
    "hotpot_dev_distractor_v1.json": [{"_id": "5a8b57f25542995d1e6f1371", "answer": "yes", "question": "Are gulls and terns sea birds?", "supporting_facts": [["Sea birds", 0]], "context": CONTEXT, "type": "comparison", "level": "hard"}],
    "2wikimultihop/dev.json": [{"_id": "8813f87c0bdd11eba7f7acde48001122", "type": "compositional", "question": "Who is the mother of the director?", "context": CONTEXT, "supporting_facts": [["Sea birds", 0]], "evidences": [["Sea birds", "director", "Ann"]], "answer": "Małgorzata Braunek"}],
    "2wikimultihop/id_aliases.json": [{"Q_id": "Q1", "aliases": []}],
    "musique/data/musique_ans_v1.0_dev.jsonl": [
        {"id": "2hop__460946_294723", "paragraphs": [{"idx": 0, "title": "Sea birds", "paragraph_text": "Gulls.", "is_supporting": True}], "question": "Who is the spouse?", "question_decomposition": [{"id": 1, "question": "who", "answer": "x"}], "answer": "Miquette Giraudy", "answer_aliases": [], "answerable": True},
    ],
    "musique/data/dev_test_singlehop_questions_v1.0.json": [{"natural_questions": [1]}],
    "Bamboogle Prerelease - Sheet1.csv": [{"Question": "Who was president of the United States when superconductivity was discovered?", "Answer": "William Howard Taft"}],
    "AIME_2024/aime_2024_problems.parquet": [{"ID": "2024-II-4", "Problem": "Find $m+n$.", "Solution": "It is $33$.", "Answer": 33}],
    "aimo-validation-aime25/test.jsonl": [{"problem": "Another year.", "answer": "1"}],
    "amc23/data/test-00000-of-00001.parquet": [{"id": 0, "question": "How many hours?", "answer": 27.0, "url": "https://example.org/"}],
    "game24/24.csv": [{"Rank": 1, "Puzzles": "1 1 4 6", "AMT (s)": 4.4, "Solved rate": "99.20%", "1-sigma Mean (s)": 4.67, "1-sigma STD (s)": 1.48}],
    "gpqa/gpqa_diamond.csv": [{"Pre-Revision Question": "", "Question": "Which spin?", "Correct Answer": "10^-4 eV\n", "Incorrect Answer 1": "10^-11 eV\n", "Incorrect Answer 2": "10^-8 eV", "Incorrect Answer 3": "10^-9 eV", "Explanation": "By ΔE·Δt.", "Subdomain": "Physics (general)", "High-level domain": "Physics", "Record ID": "rec06pnAkLOr2t2mp"}],
    "gpqa/gpqa_experts.csv": [{"Expert": "x"}],
    "MedQA/questions/US/test.jsonl": [{"question": "A junior resident asks. What next?", "answer": "Tell the attending", "options": {"A": "Disclose", "B": "Tell the attending", "C": "Report", "D": "Refuse", "E": "Wait"}, "meta_info": "step1", "answer_idx": "B"}],
    "MedQA/questions/US/train.jsonl": [{"question": "Which vitamin?", "answer": "C", "options": {"A": "B", "B": "C"}, "meta_info": "step1", "answer_idx": "B"}],
}  # fmt: skip
"""Rows with the fields of the published files, by their usual paths."""
REFERENCES = {
    "gaia": "17", "hotpotqa": "yes", "2wiki": "Małgorzata Braunek", "musique": "Miquette Giraudy", "bamboogle": "William Howard Taft",
    "aime24": "33", "amc23": "27", "gpqa": "10^-4 eV", "medqa": "Tell the attending",
}  # fmt: skip
OTHER_PATHS = [
    ("gaia", ["GAIA/2023/validation/metadata.level1.parquet", "GAIA/2023/validation/metadata.parquet", "GAIA/2023/test/metadata.parquet"], 1),
    ("hotpotqa", ["hotpot_qa/fullwiki/test-00000-of-00001.parquet", "hotpot_qa/fullwiki/validation-00000-of-00001.parquet", "hotpot_qa/distractor/train-00000-of-00002.parquet"], 1),
    ("medqa", ["med_qa/questions/Mainland/test.jsonl", "med_qa/questions/US/test.jsonl"], 1),
    ("gpqa", ["gpqa/gpqa_extended.csv", "gpqa/gpqa_main.csv", "gpqa/gpqa_diamond.csv"], 2),
    ("aime24", ["aime2025.jsonl", "aime_1983_2023.csv"], None), ("aime24", ["aime.jsonl", "aime_2024.jsonl.lock"], 0), ("musique", ["README.md", "dataset_infos.json"], None),
    ("birds", ["birds/test.csv", "birds/train.csv"], 0),
]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        case ".parquet":
            table: Any = importlib.import_module("pyarrow").Table.from_pylist(rows)
            importlib.import_module("pyarrow.parquet").write_table(table, path)
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        case _:
            path.write_text(json.dumps(rows), encoding="utf-8")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder with tiny files in the published formats, under their published names."""
    for name, rows in PUBLISHED.items():
        write(tmp_path / "data" / name, rows)
    return tmp_path / "data"


@pytest.mark.promise("benchmarks:published")
@pytest.mark.parametrize("name", benchmark_names())
def test_the_published_file_of_each_benchmark_is_found_and_read(name: str, published: Path) -> None:
    assignment = assign(RolloutConfig(benchmark_name=name, data_path=str(published)))
    assert len(assignment.tasks) == 1
    task = assignment.tasks[0]
    right = [task.metadata.get("options", {}).get(reference, reference) for reference in task.references]
    assert right == ([REFERENCES[name]] if name in REFERENCES else [])
    assert task.question


@pytest.mark.promise("benchmarks:published")
@pytest.mark.parametrize(("name", "files", "place"), OTHER_PATHS)
def test_of_several_files_the_usual_configuration_and_split_is_chosen(
    name: str, files: list[str], place: int | None
) -> None:
    chosen = None if place is None else files[place]
    assert choose_file(files, name) == chosen
    assert choose_file(reversed(files), name) == chosen


@pytest.mark.promise("benchmarks:published")
@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=20)), st.sampled_from(benchmark_names()))
def test_any_names_of_files_can_be_searched(files: list[str], name: str) -> None:
    assert choose_file(files, name) in {*files, None}


@pytest.mark.promise("benchmarks:published")
def test_all_benchmarks_of_a_folder_are_evaluated_with_one_command(
    published: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(published.parent)
    for path in (published / "gpqa").iterdir():
        path.unlink()
    assert main(["eval", "all", "--data=data", "--json", "max_turns=1"]) == 0
    said = capsys.readouterr()
    assert [(row["benchmark"], row["summary"]["tasks"]) for row in json.loads(said.out)] == [
        (name, 1) for name in benchmark_names() if name != "gpqa"
    ]
    assert "gpqa: no file, left out\n" in said.err
    assert f"gaia: {Path('data/GAIA/2023/validation/metadata.jsonl')}\n" in said.err


@pytest.mark.promise("benchmarks:published")
def test_a_folder_without_files_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["eval", "all", "--data=empty"]) == 2
    assert "empty has no file of a benchmark; call files" in capsys.readouterr().err
    assert main(["eval", "all", "--data=none"]) == 2
    assert "--data: none: no such folder; name one" in capsys.readouterr().err
    assert main(["eval", "gpqa", "--data=empty"]) == 2
    assert "data_path: empty has no file of gpqa; name its file" in capsys.readouterr().err


@pytest.mark.promise("benchmarks:published")
def test_the_result_of_a_solution_of_gsm8k_is_its_answer(tmp_path: Path) -> None:
    row = {
        "question": "How many?",
        "answer": "48/2 = <<48/2=24>>24\n48+24 = 72\n#### 72",
        "source": "openai/gsm8k",
    }
    write(tmp_path / "gsm8k.jsonl", [row, {"question": "What?", "answer": "#### is a heading"}])
    tasks = load_tasks(tmp_path / "gsm8k.jsonl")
    assert [task.references for task in tasks] == [("72",), ("#### is a heading",)]
    assert assign(RolloutConfig(data_path=str(tmp_path / "gsm8k.jsonl"))).metric == "by_source"


class FakeHub(ThreadingHTTPServer):
    """The part of the hub that lists and serves files of data sets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, self))
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.gated = False
        self.cut = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, hub: FakeHub, *arguments: Any) -> None:  # noqa: ANN401 - whatever the server passes
        self.hub = hub
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.hub.asked.append((self.path, self.headers["Authorization"]))
        prefix = "/datasets/owner/aime/resolve/main/"
        if self.hub.gated and self.headers["Authorization"] is None:
            self._answer(401, b"")
        elif self.path == "/api/datasets/owner/aime/revision/main":
            listed = [{"rfilename": name} for name in self.hub.files]
            self._answer(200, json.dumps({"siblings": listed}).encode())
        elif self.path.startswith(prefix):
            self.send_response(302)
            self.send_header("Location", f"/storage/{self.path.removeprefix(prefix)}")
            self.end_headers()
        else:
            content = self.hub.files.get(self.path.removeprefix("/storage/"))
            self._answer(404 if content is None else 200, content or b"")

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:-5] if self.hub.cut and self.path.startswith("/storage/") else content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeHub]:
    with FakeHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        server.files = {
            "README.md": b"# AIME", "2024/test.jsonl": b'{"problem": "Find it.", "answer": "33"}\n',
            "2024/train.jsonl": b'{"problem": "Learn it.", "answer": "44"}\n', "2023/test.jsonl": b'{"problem": "Old.", "answer": "55"}\n',
        }  # fmt: skip
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def answers(source: str) -> list[str]:
    tasks = assign(RolloutConfig(benchmark_name="aime24", data_path=source)).tasks
    return [reference for task in tasks for reference in task.references]


@pytest.mark.promise("benchmarks:hub")
def test_a_data_set_of_the_hub_is_read_by_file_or_by_configuration_and_split(hub: FakeHub) -> None:
    assert answers("hub:owner/aime:2024") == ["33"]
    assert answers("hub:owner/aime:2024:train") == ["44"]
    assert answers("hub:owner/aime::test") == ["55"]
    assert answers("hub:owner/aime@main/2023/test.jsonl") == ["55"]
    assert load_tasks("hub:owner/aime/2024/test.jsonl", benchmark="aime24")[0].references == ("33",)


@pytest.mark.promise("benchmarks:hub")
def test_a_token_opens_gated_data_and_is_not_sent_to_the_storage(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated = True
    with pytest.raises(
        ConfigurationError, match=r"^hub:owner/aime: is private, gated or missing; .* set HF_TOKEN$"
    ):
        answers("hub:owner/aime:2024")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.asked.clear()
    hub.gated = False
    assert answers("hub:owner/aime:2024") == ["33"]
    assert [token for _, token in hub.asked] == ["Bearer hf_secret", "Bearer hf_secret", None]


@pytest.mark.promise("benchmarks:hub")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hub:owner/none", "hub:owner/none: the hub has no main of it; check the name and the revision"),
        ("hub:owner/aime/none.jsonl", "hub:owner/aime: the hub has no none.jsonl of it"),
        ("hub:owner/aime:2024:dev", "hub:owner/aime: has no such data file; name one"),
        ("hub:aime", "hub:aime: is not a data set; write hub:OWNER/NAME"),
        ("hub:", "hub:: is not a data set"),
    ],
)
def test_a_wrong_source_is_refused_in_one_line(source: str, message: str, hub: FakeHub) -> None:
    with pytest.raises(ConfigurationError) as refused:
        answers(source)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.promise("benchmarks:hub")
def test_without_the_hub_the_last_copy_is_used_and_a_broken_download_leaves_none(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = "hub:owner/aime/2024/test.jsonl"
    hub.cut = True
    with pytest.raises(ConfigurationError, match="5 bytes of it are missing; try again"):
        answers(source)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    hub.cut = False
    assert answers(source) == ["33"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert answers(source) == ["33"]
    with pytest.raises(ConfigurationError) as refused:
        answers("hub:owner/aime/2024/train.jsonl")
    assert "http://127.0.0.1:9 can't be reached" in str(refused.value) and "\n" not in str(refused.value)
    assert find_data("file.jsonl", "aime24") == Path("file.jsonl")
