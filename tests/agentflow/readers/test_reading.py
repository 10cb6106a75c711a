"""Files, data sets, functions and traces become tasks with unique ids."""

import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow.errors import ConfigurationError
from agentflow.readers import ReaderSettings, names_reader, read_tasks, reader_settings, task_record
from agentflow.trace import Task

ROWS = [
    {
        "id": "a",
        "problem": "2 + 2?",
        "extra": {"answer": "4"},
        "chat": [{"role": "user", "content": "Add 2 and 2."}],
    },
    {
        "id": "b",
        "problem": "3 + 3?",
        "extra": {"answer": "6"},
        "chat": [{"role": "user", "content": "Add 3 and 3."}],
    },
]
COLUMNS = {"question": "problem", "answer": "extra.answer"}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_table(path: Path) -> Path:
    path.write_text('id,problem,extra\na,2 + 2?,4\nb,"3 + 3?",6\n')
    return path


def write_parquet(path: Path) -> Path:
    pyarrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.promise("readers:files")
@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet"])
def test_files_of_every_format_give_the_same_tasks(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{form}"
    match form:
        case "jsonl":
            write_lines(path, ROWS)
        case "json":
            path.write_text(json.dumps(ROWS))
        case "csv":
            write_table(path)
        case _:
            write_parquet(path)
    columns = {**COLUMNS, "answer": "extra"} if form == "csv" else COLUMNS
    tasks = list(read_tasks(path, columns=columns))
    assert [(task.index, task.id, task.question, task.references) for task in tasks] == [
        (0, "a", "2 + 2?", ("4",)),
        (1, "b", "3 + 3?", ("6",)),
    ]


@pytest.mark.promise("readers:lazy")
def test_a_large_file_is_read_as_far_as_it_is_used(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROWS)
    with path.open("a") as file:
        file.write("this line is broken\n")
    tasks = read_tasks(path, columns=COLUMNS)
    assert [next(tasks).id, next(tasks).id] == ["a", "b"]
    assert [task.id for task in read_tasks(path, columns=COLUMNS, limit=2)] == ["a", "b"]
    with pytest.raises(ConfigurationError, match=r"rows.jsonl:3: not JSON"):
        next(tasks)


@pytest.mark.promise("readers:columns")
def test_columns_lead_into_objects_and_conversations(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROWS)
    columns = {"question": "chat", "answer": "extra.answer", "source": "extra.answer"}
    task = next(read_tasks(path, columns=columns))
    assert (task.question, task.references, task.metadata["source"]) == ("Add 2 and 2.", ("4",), "4")
    with pytest.raises(
        ConfigurationError, match=r"rows.jsonl:1: columns: there is no probelm; did you mean problem\?"
    ):
        next(read_tasks(path, columns={"question": "probelm"}))


@pytest.mark.promise("readers:ids")
def test_every_task_needs_an_id_of_its_own(tmp_path: Path) -> None:
    same = write_lines(
        tmp_path / "same.jsonl", [{"id": "a", "question": "1?"}, {"id": "a", "question": "2?"}]
    )
    with pytest.raises(ConfigurationError, match=r"same.jsonl:2: id: a is used at .*same.jsonl:1, too"):
        list(read_tasks(same))
    none = write_lines(tmp_path / "none.jsonl", [{"question": "1?", "answer": "x"}, {"question": "2?"}])
    with pytest.raises(ConfigurationError, match=r"none.jsonl:1: id: is missing; .* ids=row or ids=content"):
        list(read_tasks(none))
    assert [task.id for task in read_tasks(none, ids="row")] == ["none/1", "none/2"]
    first, second = read_tasks(none, ids="content")
    assert first.id != second.id
    assert [task.id for task in read_tasks(none, ids="content")] == [first.id, second.id]
    twins = [Task(index=0, id="x", question="1?"), Task(index=0, id="x", question="2?")]
    with pytest.raises(ConfigurationError, match=r"task 2: id: x is used at task 1"):
        list(read_tasks(twins))


HOSTILE = [
    (b'{"id": "a", "question": "' + b"\xff" + b'"}', "1: not UTF-8 text"),
    (b'{"id": "a", "question": "\\ud800"}', "1: a text has half of a surrogate pair"),
    (b'{"id": "a", "question": ' + b"[" * 100_000, "1: nested deeper than 100 levels"),
    (b'{"id": "a", "question": ' + b"9" * 5_000 + b"}", "1: a number of 5,000 digits"),
    (
        b'{"id": "a", "question": "x", "m": ' + b"[" * 900 + b"]" * 900 + b"}",
        "1: nested deeper than 100 levels",
    ),
    (b'{"id": "a", "question": "x", "m": NaN}', "1: not JSON: NaN is no number"),
    (b'{"id": "a", "question": "x", "m": 1e999}', "1: the number 1e999 is out of range"),
    (b'{"id": "a", "question": "x", "question": "y"}', "1: question is given twice"),
    (b'{"id": "a", "question": {"a": 1}}', "1: question: is an object"),
    (b'["a"]', "1: is a list, not an object"),
    (b'{"id": ["a"], "question": "x"}', "1: id: is a list"),
]


@pytest.mark.promise("readers:hostile")
@pytest.mark.parametrize(("line", "message"), HOSTILE)
def test_a_hostile_line_is_one_error_that_names_it(line: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(ConfigurationError, match=re.escape(message)) as refused:
        list(read_tasks(path))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600


@pytest.mark.promise("readers:hostile")
def test_a_line_that_never_ends_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.truncate(200 << 20)  # sparse
    with pytest.raises(ConfigurationError, match=r"rows.jsonl:1: is longer than 64 MiB"):
        next(read_tasks(path))


@pytest.mark.promise("readers:names")
def test_a_text_names_a_reader_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not any(map(names_reader, ["train.jsonl", "data/train.parquet", "hub:openai/gsm8k", "bamboogle"]))
    assert all(map(names_reader, ["datasets:gsm8k", "textarena:TicTacToe-v0?size=2", "own.py:tasks"]))
    write_lines(tmp_path / "odd:name.jsonl", [{"id": "a", "question": "x"}])
    assert [task.id for task in read_tasks("odd:name.jsonl")] == ["a"]
    assert next(read_tasks("bamboogle")).references
    assert reader_settings({"source": "x.jsonl", "limit": 3}) == ReaderSettings(source="x.jsonl", limit=3)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"source": "x.jsonl", "filter": []}, "filter"),
        ({"source": ""}, "source"),
        ({"source": "x.jsonl", "limit": 0}, "limit"),
    ]
    for wrong, message in refused:
        with pytest.raises(ConfigurationError, match=message):
            reader_settings(wrong)
    with pytest.raises(ConfigurationError, match="size is given twice"):
        next(read_tasks("reasoning_gym:gcd?size=1", options={"size": 2}))


@pytest.mark.promise("readers:function")
def test_a_function_yields_tasks_or_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_tasks.py").write_text(
        "def rows(count=1, broken=False):\n"
        "    for number in range(count):\n"
        "        yield {'id': f't{number}', 'question': f'{number}?'}\n"
        "    if broken:\n"
        "        raise OSError('the disk is gone')\n"
        "def nothing():\n"
        "    return 3\n"
    )
    assert [task.id for task in read_tasks("own_tasks.py:rows?count=2")] == ["t0", "t1"]
    with pytest.raises(ConfigurationError, match="rows: raised OSError: the disk is gone"):
        list(read_tasks("own_tasks.py:rows", options={"broken": True}))
    with pytest.raises(ConfigurationError, match="nothing: returned int; return tasks"):
        list(read_tasks("own_tasks.py:nothing"))


@pytest.mark.promise("readers:round_trip")
def test_written_tasks_are_read_back(tmp_path: Path) -> None:
    task = Task(
        index=0, id="a", question="2 + 2?", references=("4", "four"), metadata={"source": "gsm8k", "n": [1]}
    )
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(msgspec.json.encode(task_record(task)))
    assert list(read_tasks(path)) == [task]


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a data set with two configurations, without a network."""
    folder = tmp_path_factory.mktemp("sums")
    before = dict(os.environ)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path_factory.mktemp("hf"))}
    for config, offset in (("easy", 0), ("hard", 100)):
        (folder / config).mkdir()
        rows = [{"query": f"{n} + {n}?", "result": {"value": str(2 * n)}} for n in range(offset, offset + 3)]
        write_lines(folder / config / "train.jsonl", rows)
    card = "configs:\n" + "".join(
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train.jsonl\n"
        for name in ("easy", "hard")
    )
    (folder / "README.md").write_text(f"---\n{card}---\n")
    yield folder
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.promise("readers:datasets")
def test_a_data_set_is_read_by_configuration_split_and_columns(data_set: Path) -> None:
    columns = {"question": "query", "answer": "result.value"}
    tasks = list(read_tasks(f"datasets:{data_set}?config=hard&split=train[:2]", columns=columns, ids="row"))
    assert [(task.question, task.references) for task in tasks] == [
        ("100 + 100?", ("200",)),
        ("101 + 101?", ("202",)),
    ]
    assert tasks[0].id == f"{data_set.name}/train[:2]/1"
    streamed = read_tasks(f"datasets:{data_set}?config=easy&streaming=true", columns=columns, ids="content")
    assert next(streamed).question == "0 + 0?"
    for source, message in [
        (f"datasets:{data_set}?config=hrad", "can't be loaded"),
        (f"datasets:{data_set}?config=easy&split=tset", "can't be loaded"),
        (f"datasets:{data_set}?configuration=easy", "there is no option configuration; did you mean config"),
        ("datasets:nobody/nothing", "can't be loaded"),
    ]:
        with pytest.raises(ConfigurationError, match=message) as caught:
            list(read_tasks(source, columns=columns, ids="row"))
        assert "\n" not in str(caught.value)


BROKEN_DATA = [
    (
        json.dumps({"id": "a", "question": "x"})[:-1].encode()
        + b', "m": '
        + b'{"a":' * 80
        + b"1"
        + b"}" * 81,
        "can't be loaded",
    ),
    (b"[" * 100_000, "can't be loaded"),
    (b'{"id": "a", "question": "\xff"}', "row 1: can't be read: UnicodeDecodeError"),
]


@pytest.mark.promise("readers:hostile")
@pytest.mark.usefixtures("data_set")
@pytest.mark.parametrize(("line", "message"), BROKEN_DATA)
def test_a_hostile_data_set_is_one_error(line: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(line + b"\n")
    with pytest.raises(ConfigurationError, match=message) as caught:
        list(read_tasks(f"datasets:{tmp_path}"))
    assert "\n" not in str(caught.value) and "while generating the dataset" not in str(caught.value)


RESULTS: list[dict[str, Any]] = [
    {"task_id": "a", "sample": 0, "question": "2 + 2?", "answer": "4", "references": ["4"], "score": 1.0},
    {"task_id": "a", "sample": 1, "question": "2 + 2?", "answer": "5", "references": ["4"], "score": 0.0},
    {"task_id": "b", "sample": 0, "question": "Who?", "answer": "Ada", "references": [], "score": None},
]


@pytest.mark.promise("readers:traces")
def test_results_of_a_rollout_are_tasks_with_their_pass_rate(tmp_path: Path) -> None:
    write_lines(tmp_path / "results.jsonl", RESULTS)
    first, second = read_tasks(f"traces:{tmp_path}")
    assert (first.references, first.metadata) == (("4",), {"attempts": 2, "pass_rate": 0.5})
    assert (second.id, second.references) == ("b", ())
    _, accepted = read_tasks(f"traces:{tmp_path}?answers=true")
    assert accepted.references == ("Ada",)
    _, unscored = read_tasks(f"traces:{tmp_path}?answers=true&min_score=1")
    assert unscored.references == ()


def span(trace: str, start: int, attributes: dict[str, Any], *, otlp: bool = False) -> dict[str, Any]:
    if not otlp:
        times = {
            "start_time": f"2026-11-23T10:00:{start:02}.000000Z",
            "end_time": f"2026-11-23T10:01:{start:02}.000000Z",
        }
        return {"name": "chat", "context": {"trace_id": trace}, **times, "attributes": attributes}
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    spans = [
        {
            "traceId": trace,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + 1),
            "attributes": listed,
        }
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def said(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


@pytest.mark.promise("readers:traces")
@pytest.mark.parametrize("otlp", [True, False])
def test_spans_of_language_models_are_tasks(otlp: bool, tmp_path: Path) -> None:
    lines = [
        span(
            "t1",
            2,
            {
                "gen_ai.input.messages": said("user", "later"),
                "gen_ai.output.messages": said("assistant", "4"),
            },
            otlp=otlp,
        ),
        span(
            "t1", 1, {"gen_ai.input.messages": said("user", "2 + 2?"), "gen_ai.request.model": "m"}, otlp=otlp
        ),
        span("t2", 3, {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Who?"}, otlp=otlp),
        span("t3", 4, {"http.method": "GET"}, otlp=otlp),
    ]
    path = write_lines(tmp_path / "spans.jsonl", lines)
    first, second = read_tasks(f"traces:{path}")
    assert (first.id, first.question, first.metadata["answered"], first.metadata["model"]) == (
        "t1",
        "2 + 2?",
        "4",
        "m",
    )
    assert (first.references, second.question) == ((), "Who?")
    assert next(read_tasks(f"traces:{path}?answers=true")).references == ("4",)
    silent = write_lines(tmp_path / "silent.jsonl", [span("t3", 4, {"http.method": "GET"}, otlp=otlp)])
    with pytest.raises(ConfigurationError, match="no span has the messages of a model call"):
        list(read_tasks(f"traces:{silent}"))
