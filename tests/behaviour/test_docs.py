"""The documentation is true: snippets run, links resolve, commands exist."""

import doctest
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE

import pytest

from tests._core import core_environment, core_python
from tests.behaviour._markdown import anchors, links, snippets
from tests.behaviour._tree import ROOT, files, name, source_modules

PAGES = files(".md")
RUNNABLE = [page for page in PAGES if snippets(page, "python")]
SHELL = ("sh", "shell", "bash", "console")


NEED_EXTRAS = {
    "docs/backbones.md": "train",
    "docs/backends.md": "data",
    "docs/data.md": "data",
    "docs/losses.md": "train",
    "docs/machines.md": "desktop",
    "docs/packing.md": "train",
    "docs/tokens.md": "train",
    "docs/tracing.md": "otel",
    "docs/trackers.md": "train",
    "docs/train-data.md": "train",
    "docs/training.md": "train",
    "docs/tuner.md": "train",
    "docs/web.md": "web",
    "docs/world.md": "world",
}
"""Pages whose snippets need an extra; all others run in an installation without any."""


def run_python(*arguments: str, cwd: Path, core: bool = True) -> str:
    """Run Python as a reader would, in an empty directory and without keys; return its output if it failed.

    :param core: in an installation without extras.
    """
    run = subprocess.run(
        [core_python() if core else sys.executable, "-W", "error", *arguments],
        cwd=cwd,
        env=core_environment() | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return run.stdout + run.stderr if run.returncode else ""


CORE = ("agentflow.synthesis.pipeline", "agentflow.rollouts")
TRAIN = (*CORE, "agentflow.learner.local")


class PageRunner:
    """Runs pages in forks of one program, which loads the libraries once."""

    def __init__(self, python: str | Path, modules: Sequence[str]) -> None:
        self._command = [python, "-W", "error", "-m", "tests.behaviour._run_snippets", "--load", *modules]
        self._program: subprocess.Popen[str] | None = None

    def run(self, page: Path, folder: Path) -> str:
        """Return the output of a page that failed."""
        if self._program is None:
            environment = core_environment() | {"PYTHONPATH": str(ROOT)}
            self._program = subprocess.Popen(
                self._command, cwd="/", env=environment, stdin=PIPE, stdout=PIPE, encoding="utf-8"
            )
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{json.dumps([str(page), str(folder)])}\n")
        self._program.stdin.flush()
        return json.loads(self._program.stdout.readline())

    def close(self) -> None:
        """End the program."""
        if self._program is not None:
            with self._program:
                self._program.kill()


@pytest.fixture(scope="module")
def page_runners() -> Iterator[dict[str, PageRunner]]:
    """Return the runners of pages by the extra that they need; empty: none."""
    runners = {"": PageRunner(core_python(), CORE), "train": PageRunner(sys.executable, TRAIN)}
    yield runners
    for runner in runners.values():
        runner.close()


@pytest.mark.timeout(600)  # Heavy libraries take a minute to import on a busy machine.
@pytest.mark.promise("docs:snippets")
@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_every_python_snippet_of_a_page_runs(
    page: Path, tmp_path: Path, page_runners: dict[str, PageRunner]
) -> None:
    extra = NEED_EXTRAS.get(name(page), "")
    if extra in page_runners:
        failed = page_runners[extra].run(page, tmp_path)
    else:
        failed = run_python("-m", "tests.behaviour._run_snippets", str(page), cwd=tmp_path, core=False)
    assert failed == ""


@pytest.mark.promise("docs:links")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken: list[str] = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.promise("docs:commands")
@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page, *SHELL)], ids=name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    commands = "\n".join(snippet.text for snippet in snippets(page, *SHELL))
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    unknown = set(re.findall(r"\bmake ([a-z][a-z-]*)", commands)) - set(targets)
    modules = {
        word for word in re.findall(r"python -m ([a-z_.]+)", commands) if not importlib.util.find_spec(word)
    }
    scripts = {
        word
        for word in re.findall(r"\b(?:benchmarks|examples)/\S+\.py\b", commands)
        if not (ROOT / word).exists()
    }
    missing = sorted(unknown | modules | scripts)
    assert missing == []


@pytest.mark.promise("docs:make-help")
def test_make_help_names_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert shown.stderr == ""
    targets = re.findall(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    missing = set(" ".join(targets).split()) - set(re.findall(r"[a-z-]+", shown.stdout))
    assert missing == set()


@pytest.mark.promise("docs:contents")
def test_every_page_is_in_the_table_of_contents() -> None:
    contents = ROOT / "docs/README.md"
    listed = {(contents.parent / link.partition("#")[0]).resolve() for link in links(contents)}
    pages = {page for page in PAGES if page.parent == contents.parent} - {contents}
    assert sorted(map(name, pages - listed)) == []


@pytest.mark.timeout(600)
@pytest.mark.promise("docs:examples")
@pytest.mark.parametrize(
    "example", [path for path in files(".py") if path.parent == ROOT / "examples"], ids=name
)
def test_every_example_runs_to_its_end(example: Path, tmp_path: Path) -> None:
    assert run_python(str(example), cwd=tmp_path) == ""


@pytest.mark.promise("docs:doctests")
@pytest.mark.parametrize(
    "module", [path for path in source_modules() if ">>> " in path.read_text(encoding="utf-8")], ids=name
)
def test_every_example_of_a_docstring_gives_what_it_shows(module: Path) -> None:
    loaded = importlib.import_module(".".join(module.relative_to(ROOT).with_suffix("").parts))
    results = doctest.testmod(loaded)
    assert results.attempted > 0
    assert results.failed == 0
