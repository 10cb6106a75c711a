"""Record of failed tests, for `scripts/rerun-failed`."""

import json
from pathlib import Path

import pytest


class FailureLog:
    """Plugin that appends each failure to a file of JSON lines: the test's id and its traceback."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure of a test, of its set-up or of its tear-down."""
        if report.failed:
            self._write(report.nodeid, report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that could not be collected; its id is the file's path."""
        if report.failed:
            self._write(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Record that the run came to its end, and how."""
        self._append({"finished": int(exitstatus)})

    def _write(self, test: str, traceback: str) -> None:
        self._append({"test": test, "traceback": traceback})

    def _append(self, entry: dict[str, str | int]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
