"""The suite runs all tests."""

import pytest

from tests.behaviour._tree import ROOT, files


def test_every_folder_of_tests_is_run_by_default(pytestconfig: pytest.Config) -> None:
    tests = [path.relative_to(ROOT) for path in files(".py") if path.name.startswith("test_")]
    folders = {"/".join(path.parts[:2]) for path in tests if path.parts[0] == "tests"}
    listed = {path for path in pytestconfig.getini("testpaths") if not path.endswith(".py")}
    assert folders == listed
