"""Seeds come from files, strings and dicts, and what is no seed is one line."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.errors import ConfigurationError
from agentflow.synthesis import load_seeds


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.promise("synthesis:seeds:forms")
def test_a_file_a_string_strings_and_dicts_are_seeds() -> None:
    Path("seeds.jsonl").write_text('{"content": "A", "kwargs": {"n": 1}}\n\n{"content": "B"}\n')
    expected: list[dict[str, Any]] = [{"content": "A", "kwargs": {"n": 1}}, {"content": "B", "kwargs": {}}]
    assert load_seeds("seeds.jsonl") == expected
    assert load_seeds(Path("seeds.jsonl")) == expected
    assert load_seeds(expected) == expected
    assert load_seeds("Explore the port") == [{"content": "Explore the port", "kwargs": {}}]
    assert load_seeds(["A", "B"]) == [{"content": "A", "kwargs": {}}, {"content": "B", "kwargs": {}}]
    assert load_seeds([]) == []


@pytest.mark.promise("synthesis:seeds:forms")
def test_a_seed_may_have_its_own_id_and_metadata() -> None:
    seeds = load_seeds([{"content": "A", "id": "mine", "note": "kept"}, {"content": "B", "id": 7}])
    assert seeds == [
        {"content": "A", "id": "mine", "note": "kept", "kwargs": {}},
        {"content": "B", "id": "7", "kwargs": {}},
    ]


@pytest.mark.promise("synthesis:seeds:forms")
def test_a_table_of_seeds_may_name_arguments_in_its_columns() -> None:
    Path("seeds.csv").write_text(
        '\ufeffid,content,city\ns1,"Ports, old",Brenn\ns2,Ships,\n', encoding="utf-8"
    )
    assert load_seeds("seeds.csv") == [
        {"id": "s1", "content": "Ports, old", "kwargs": {"city": "Brenn"}},
        {"id": "s2", "content": "Ships", "kwargs": {}},
    ]


@pytest.mark.promise("synthesis:seeds:tolerant")
def test_byte_order_marks_line_ends_and_separators_inside_strings_are_handled() -> None:
    text = '\ufeff{"content": "caf\u00e9 \u2028 東京"}\r\n{"content": "B"}'
    Path("seeds.jsonl").write_bytes(text.encode())
    assert [seed["content"] for seed in load_seeds("seeds.jsonl")] == ["café \u2028 東京", "B"]


@pytest.mark.promise("synthesis:seeds:tolerant")
@given(st.text().filter(lambda text: bool(text.strip()) and "\0" not in text))
def test_any_text_in_a_list_is_an_unchanged_seed(text: str) -> None:
    assert load_seeds([text]) == [{"content": text, "kwargs": {}}]


def test_a_long_text_is_a_seed_not_a_file_name() -> None:
    assert load_seeds("word " * 5000)[0]["content"] == "word " * 5000
    assert load_seeds("Explore\nthis.jsonl")[0]["content"] == "Explore\nthis.jsonl"


@pytest.mark.promise("synthesis:seeds:one-line")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"content": "A"}\n{"content": ', "seeds.jsonl:2: not JSON"),
        ('\n{"text": "A"}', "seeds.jsonl:2: has no content; add a text under content"),
        ('{"content": "  "}', "seeds.jsonl:1: has no content"),
        ('{"content": 5}', "seeds.jsonl:1: has no content"),
        ("[1]", "seeds.jsonl:1: not a seed"),
        ('{"content": "A", "kwargs": [1]}', "seeds.jsonl:1: kwargs is not a mapping"),
        ('{"content": "A", "id": []}', "seeds.jsonl:1: id is neither a text nor a number"),
        ('{"content": "A", "id": "x"}\n{"content": "B", "id": "x"}', "seeds 1 and 2 both have the id x"),
    ],
)
def test_an_invalid_seed_gives_one_line_with_file_and_line(text: str, message: str) -> None:
    Path("seeds.jsonl").write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        load_seeds("seeds.jsonl")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.promise("synthesis:seeds:one-line")
def test_unreadable_files_give_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"^none\.jsonl: no such file"):
        load_seeds("none.jsonl")
    Path("latin.jsonl").write_bytes('{"content": "café"}'.encode("latin-1"))
    with pytest.raises(ConfigurationError, match="not UTF-8 text"):
        load_seeds("latin.jsonl")
    with pytest.raises(ConfigurationError, match="can't be read"):
        load_seeds(Path())
    Path("bare.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigurationError, match=r"bare\.csv:1: has no column content"):
        load_seeds("bare.csv")
    Path("wide.csv").write_text("content\nPorts, old\n")
    with pytest.raises(ConfigurationError, match=r"wide\.csv:2: has more fields"):
        load_seeds("wide.csv")
    with pytest.raises(ConfigurationError, match=r"^seeds\[1\]: has no content"):
        load_seeds(["A", ""])
