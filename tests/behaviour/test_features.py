"""The table of features says what the tests and the last recorded run say."""

import json
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from tests import _features
from tests._features import FeatureRecord, RecordedRun, Row
from tests.behaviour._tree import ROOT

ROWS = {name: row for features in _features.rows().features.values() for name, row in features.items()}


Outcome: TypeAlias = Literal["passed", "failed", "skipped"]
Phase: TypeAlias = Literal["setup", "call", "teardown"]


def report(test: _features.PromisedTest, outcome: Outcome, *, when: Phase = "call") -> pytest.TestReport:
    """Return the report of a test as pytest makes it."""
    about = {"promises": [*test.promises], "kind": "suite", "parts": ["Postgres"]}
    return pytest.TestReport(
        f"{test.id}[first]", (test.id, 1, ""), {}, outcome, None, when, user_properties=[("feature", about)]
    )  # fmt: skip


@pytest.mark.promise("docs:features")
def test_the_page_of_features_is_the_generated_one() -> None:
    assert _features.PAGE.read_text(encoding="utf-8") == _features.page(_features.recorded_runs()), (
        "run python -m tests._features"
    )


@pytest.mark.promise("docs:features")
def test_every_feature_has_a_test_and_every_promise_belongs_to_a_feature() -> None:
    assert [name for name, row in ROWS.items() if not _features.tests_of(row)] == []
    for name, row in ROWS.items():
        for pattern in row.promises:
            assert _features.promises_of(Row("", (pattern,))), f"{name}: {pattern}"
    belonging = frozenset[str]().union(*(_features.promises_of(row) for row in ROWS.values()))
    assert sorted(_features.written_promises().keys() - belonging) == []


@pytest.mark.promise("docs:features")
def test_a_part_is_named_by_code_that_exists() -> None:
    for part, names in _features.rows().parts.items():
        for name in names:
            assert _exists(name), f"{part}: {name}"


def _exists(name: str) -> bool:
    """Return whether a module of that name exists and contains the rest of the name."""
    words = name.split(".")
    for end in range(len(words), 0, -1):
        path = ROOT.joinpath(*words[:end])
        if (file := path.with_suffix(".py")).is_file():
            return all(word in file.read_text(encoding="utf-8") for word in words[end:])
        if (path / "__init__.py").is_file():
            return end == len(words)
    return len(words) == 1


def uses_postgres(postgres: object) -> object:
    return postgres


@pytest.mark.promise("docs:features:parts")
def test_the_parts_of_a_test_are_those_that_its_code_and_its_helpers_use() -> None:
    from tests._vllm import tiny_server
    from tests.conftest import postgres

    assert "Postgres" in _features.parts_of([uses_postgres, postgres])
    assert "vLLM on the CPU" in _features.parts_of([tiny_server])
    assert _features.parts_of([uses_postgres]) == []


@pytest.mark.promise("docs:features:record")
def test_a_feature_is_recorded_once_all_of_its_tests_ran(tmp_path: Path) -> None:
    file, page = tmp_path / "features.json", tmp_path / "features.md"
    file.write_text("{}", encoding="utf-8")
    name = "S15"
    first, *others = _features.tests_of(ROWS[name])
    partial = FeatureRecord("2031-02-03", file, page)
    partial.pytest_runtest_logreport(report(first, "passed"))
    partial.pytest_sessionfinish()
    assert "not run" in _line(page, name)
    record = FeatureRecord("2031-02-04", file, page)
    for test in others:
        record.pytest_runtest_logreport(report(test, "passed"))
    record.pytest_runtest_logreport(report(first, "failed"))
    record.pytest_sessionfinish()
    run = _features.recorded_runs(file)[name]["suite"]
    assert run == RecordedRun("2031-02-04", len(others) + 1, len(others), 1, ("Postgres",))
    assert f"{len(others)} of {len(others) + 1}, 1 failed (2031-02-04)" in _line(page, name)
    # A run without these tests keeps what was recorded.
    FeatureRecord("2031-02-05", file, page).pytest_sessionfinish()
    assert _features.recorded_runs(file)[name]["suite"] == run


@pytest.mark.promise("docs:features:record")
def test_skipped_tests_and_failed_fixtures_do_not_count_as_passed(tmp_path: Path) -> None:
    file, page = tmp_path / "features.json", tmp_path / "features.md"
    file.write_text("{}", encoding="utf-8")
    name = "S15"
    record = FeatureRecord("2031-02-04", file, page)
    first, *others = _features.tests_of(ROWS[name])
    for test in others:
        record.pytest_runtest_logreport(report(test, "skipped", when="setup"))
    record.pytest_runtest_logreport(report(first, "passed"))
    record.pytest_runtest_logreport(report(first, "failed", when="teardown"))
    record.pytest_sessionfinish()
    saved = json.loads(file.read_text(encoding="utf-8"))[name]["suite"]
    assert (saved["passed"], saved["failed"], saved["parts"]) == (0, 1, [])


def _line(page: Path, name: str) -> str:
    (line,) = [one for one in page.read_text(encoding="utf-8").splitlines() if one.startswith(f"| {name} |")]
    return line
