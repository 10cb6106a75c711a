"""Progress and results of a synthesis on a terminal, in a notebook, and elsewhere."""

import json
import logging
import os
import pty
import re
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, main_thread
from types import ModuleType, SimpleNamespace

import anyio
import pytest

from agentflow.errors import ConfigurationError
from agentflow.runs import open_screen, run_sync
from agentflow.synthesis import PAIRS, SynthesisPipeline
from agentflow.synthesis.api import synthesize
from tests.agentflow.synthesis._runs import config_for

SEEDS = ["Explore the lighthouses"]
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:[349]\d|[34]8;5;\d+)m")


class Terminal:
    """A terminal; a thread reads what is written to it."""

    def __init__(self) -> None:
        self._leader, follower = pty.openpty()
        self.stream = os.fdopen(follower, "w", encoding="utf-8")
        self._written = bytearray()
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._leader, 65536):
                self._written += part
        except OSError:  # its other end is closed
            pass
        os.close(self._leader)

    def close(self) -> str:
        """Return everything that was written."""
        self.stream.close()
        self._reader.join()
        return self._written.decode()


@contextmanager
def on_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[], str]]:
    """Have a terminal as stderr; yield a function that closes it and returns its content."""
    terminal = Terminal()
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    # rich asks the descriptors 0 to 2 for their width, which are those of the test run.
    monkeypatch.setenv("COLUMNS", str(columns))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal.stream)
        yield terminal.close
    if not terminal.stream.closed:
        terminal.close()


def lines(shown: str) -> list[str]:
    """Return what a terminal was sent, as lines without control sequences."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))


def pipeline(folder: Path, **settings: object) -> SynthesisPipeline:
    return SynthesisPipeline(config_for(folder, max_depth=2, **settings))


@pytest.mark.promise("supervisor:progress")
@pytest.mark.promise("supervisor:progress:terminal")
def test_a_narrow_terminal_shows_progress_with_the_newest_pairs_then_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with on_terminal(40, monkeypatch) as closed:
        pipeline(tmp_path).run(SEEDS)
        shown = closed()
    assert max(map(len, lines(shown))) <= 40
    flat = " ".join(shown.split())
    assert "growing" in flat
    assert "of 1 done" in flat
    assert "–, ETA –" in flat
    assert "failures none" in " ".join(" ".join(lines(shown)).split())
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    result = " ".join(" ".join(lines(shown)[-30:]).split())
    first = json.loads((tmp_path / PAIRS).read_text(encoding="utf-8").splitlines()[0])
    assert "question-answer pairs (" in result
    assert "calls per pair" in result or "calls and" in result
    assert first["question"] in result
    assert COLOURS.search(shown)
    with on_terminal(40, monkeypatch) as closed:
        monkeypatch.setenv("NO_COLOR", "1")
        pipeline(tmp_path).run(SEEDS)
        shown = closed()
    assert "question-answer pairs" in shown
    assert not COLOURS.search(shown)
    with on_terminal(40, monkeypatch) as closed:
        pipeline(tmp_path).run(SEEDS, progress=False)
        assert closed() == ""
    pipeline(tmp_path).run(SEEDS)
    assert capsys.readouterr() == ("", "")


class Cell:
    """The output of a notebook cell, as IPython has it."""

    def __init__(self) -> None:
        self.contents: list[Mapping[str, str]] = []

    def display(self, bundle: Mapping[str, str], *, raw: bool, display_id: bool) -> "Cell":
        assert raw
        assert display_id
        self.contents.append(bundle)
        return self

    def update(self, bundle: Mapping[str, str], *, raw: bool) -> None:
        assert raw
        self.contents.append(bundle)


@pytest.mark.promise("supervisor:progress")
async def test_a_notebook_shows_progress_and_the_result_in_one_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell, notebook, shown = Cell(), ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(kernel=object())
    setattr(notebook, "get_ipython", lambda: shell)  # noqa: B010 - a module has no such attribute
    setattr(shown, "display", cell.display)  # noqa: B010
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    # It works inside the running loop, as in a notebook.
    pipeline(tmp_path, min_documents=99).run(["Explore <b>the</b> lighthouses"])
    assert any(
        "<pre" in content["text/html"] and "growing" in content["text/html"] for content in cell.contents
    )
    last = cell.contents[-1]["text/plain"]
    assert last.startswith("Nothing was written: ")
    assert re.search(r"1 seed, \d+ actions, \d+ new observations, \d+ paths, \d+ documents, 0 drafts", last)
    shell.kernel = None
    count = len(cell.contents)
    await pipeline(tmp_path, min_documents=99).arun(["Explore <b>the</b> lighthouses"])
    assert len(cell.contents) == count
    assert capsys.readouterr().out == ""


@pytest.mark.promise("supervisor:empty")
def test_an_empty_result_is_one_log_line_if_there_is_no_screen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "agentflow.synthesis"):
        pipeline(tmp_path, min_documents=99).run(SEEDS)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("agentflow.synth")]
    assert re.fullmatch(
        rf"nothing was written to {tmp_path}: the trees show \d+ documents, and a question needs 99", line
    )


@pytest.mark.promise("supervisor:progress")
def test_settings_that_can_not_be_used_are_refused_as_without_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_terminal(80, monkeypatch) as closed:
        with pytest.raises(ConfigurationError, match="read_minds can't be used"):
            synthesize(seeds=SEEDS, overrides=[f"output_dir={tmp_path}", "available_tools=[read_minds]"])
        assert "\x1b[?25h" in closed()


@pytest.mark.promise("supervisor:interrupt")
@pytest.mark.promise("supervisor:progress:terminal")
def test_an_interrupt_cancels_the_work_and_leaves_the_terminal_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cleaned = Event()

    async def work() -> None:
        with open_screen() as screen:
            assert screen is not None
            screen.show("growing")
            try:
                signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
                await anyio.sleep_forever()
            finally:
                screen.keep("Interrupted.")
                cleaned.set()

    with on_terminal(80, monkeypatch) as closed:
        with pytest.raises(KeyboardInterrupt):
            run_sync(work)
        shown = closed()
    assert cleaned.is_set()
    assert "Interrupted." in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.promise("supervisor:interrupt")
def test_an_interrupt_before_the_work_begins_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Event()
    start = Thread.start

    def interrupted(thread: Thread) -> None:
        start(thread)
        if thread.name == "agentflow-run":
            raise KeyboardInterrupt

    async def work() -> None:
        await anyio.sleep_forever()
        begun.set()

    monkeypatch.setattr(Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sync(work)
    assert not begun.is_set()
