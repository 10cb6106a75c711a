"""Optional dependencies: the extras of this distribution, their state here, and the command that adds one.

Every message about a missing library comes from `missing_extra`, so that it names an extra of this project and a command
for this interpreter. Standard library only: the lowest layers import this.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

__all__ = [
    "DISTRIBUTION",
    "PURPOSES",
    "Extra",
    "add_command",
    "extra_of",
    "install_argv",
    "list_extras",
    "missing_extra",
    "with_command",
]

DISTRIBUTION: Final = "agentflow-trees"
"""Name of the distribution; on PyPI, `agentflow` is another project."""

PURPOSES: Final[Mapping[str, str]] = {
    "all": "everything that is small and under a permissive licence: all but daytona, e2b, k8s, litellm, modal, ray, train and zim",
    "browser": "backend `browser`: a confined Chromium",
    "data": "libraries for code in sessions, backend `data`, Parquet files",
    "datasets": "data sets in the format of Hugging Face as tasks",
    "daytona": "sandboxes of Daytona",
    "desktop": "machines with a screen: windows, screenshots",
    "docker": "containers as sandboxes",
    "document": "backend `document`: PDF, Office files, images",
    "e2b": "sandboxes of E2B",
    "external": "calls to external MCP servers are checked against their schemas",
    "games": "tasks of reasoning-gym, games of textarena",
    "k8s": "sandboxes in a Kubernetes cluster",
    "litellm": "models of any provider that LiteLLM supports (150 MB)",
    "math": "mathematical answers judged by more rules",
    "modal": "sandboxes of Modal",
    "otel": "traces and metrics to a collector",
    "postgres": "a journal that many machines share",
    "ray": "runs on the machines of a Ray cluster (290 MB)",
    "s3": "files of ended sessions in a bucket",
    "sql": "backend `sql`: DuckDB and Postgres besides SQLite",
    "train": "the learner: torch, transformers (gigabytes)",
    "uvloop": "a faster event loop",
    "web": "backend `web`: pages as Markdown",
    "world": "backend `world`: Gymnasium, MiniGrid",
    "zim": "offline Wikipedia (libzim is under the GPL, version 3)",
}
"""Purpose of each extra, in a few words."""

_MODULES: Final = {
    "PIL": "pillow",
    "Xlib": "python-xlib",
    "docx": "python-docx",
    "libzim": "libzim",
    "markdown_it": "markdown-it-py",
    "math_verify": "math-verify",
    "pptx": "python-pptx",
}
"""Distributions of modules with another name."""

_REQUIREMENT: Final = re.compile(r"(?P<text>(?P<name>[\w.-]+)[^;]*);\s*extra == ['\"](?P<extra>[\w.-]+)['\"]")

_UNFINISHED: Final = re.compile(rf"needs the extra ({'|'.join(PURPOSES)})(?=[.;]|$)")


class Extra(NamedTuple):
    """Extra of this distribution."""

    name: str
    """Name, as in `agentflow extras add NAME`."""
    requirements: tuple[str, ...]
    """Requirements, as pip takes them."""
    missing: tuple[str, ...]
    """Names of the distributions among them that are not installed here."""


def list_extras() -> list[Extra]:
    """Return all extras, in alphabetical order; none if the installation has no metadata.

    See docs/extras.md.
    """
    wanted: dict[str, list[tuple[str, str]]] = {}
    for line in _requires():
        match = _REQUIREMENT.fullmatch(line)
        if match:
            wanted.setdefault(match["extra"], []).append((match["name"], match["text"].strip()))
    return [
        Extra(
            name,
            tuple(text for _, text in wanted.get(name, ())),
            tuple(
                distribution for distribution, _ in wanted.get(name, ()) if not _is_installed(distribution)
            ),
        )
        for name in _names()
    ]


def missing_extra(what: str, extra: str) -> str:
    """Return the message for something that needs an extra, with the command that adds it to this interpreter.

    >>> missing_extra("reading pages", "web").partition(":")[0]
    'reading pages needs the extra web'
    """
    return f"{what} needs the extra {extra}: {add_command(extra)}"


def with_command(text: str) -> str:
    """Add the command to a message of `missing_extra` that a program in a sandbox began.

    >>> with_command("this database needs the extra sql").partition(":")[0]
    'this database needs the extra sql'
    """
    return _UNFINISHED.sub(lambda match: f"{match[0]}: {add_command(match[1])}", text)


def add_command(*extras: str) -> str:
    """Return the command that adds extras to this interpreter.

    >>> add_command("web", "sql").endswith(" extras add web sql")
    True
    """
    return shlex.join([*_program(), "extras", "add", *extras])


def extra_of(module: str, prefer: str = "") -> str:
    """Return the extra that a missing module belongs to; empty if it belongs to none.

    >>> extra_of("torch.nn")
    'train'

    :param prefer: the extra to name if several contain the module.
    """
    top = module.partition(".")[0]
    wanted = _plain(_MODULES.get(top, top))
    owners = [
        extra.name
        for extra in list_extras()
        if extra.name != "all"
        and any(_plain(re.split(r"[^\w.-]", text)[0]) == wanted for text in extra.requirements)
    ]
    return prefer if prefer in owners else next(iter(owners), "")


def install_argv(requirements: Iterable[str]) -> list[str]:
    """Return the command line that installs requirements into this interpreter; empty if there is neither pip nor uv.

    pip goes first, because it alone reads pip's configuration (indexes, a choice of torch). In a checkout the pinned
    versions apply. See docs/extras.md.
    """
    pins = Path(__file__).parents[1] / "constraints.txt"
    constraints = ["-c", str(pins)] if pins.is_file() else []
    if find_spec("pip") is not None:
        return [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            *constraints,
            *requirements,
        ]
    sibling_uv = Path(sys.executable).with_name("uv")
    uv = str(sibling_uv) if sibling_uv.is_file() else shutil.which("uv")
    if uv is None:
        return []
    # Without compiled modules every sandbox compiles them again, as it can't write them.
    return [
        uv,
        "pip",
        "install",
        "--compile-bytecode",
        "--python",
        sys.executable,
        *constraints,
        *requirements,
    ]


@cache
def _program() -> tuple[str, ...]:
    """Return the `agentflow` command of this interpreter."""
    script = Path(sys.executable).with_name("agentflow")
    if not script.is_file():
        return (sys.executable, "-m", "agentflow.cli")
    found_script = shutil.which("agentflow")
    return ("agentflow",) if found_script and Path(found_script) == script else (str(script),)


def _names() -> list[str]:
    try:
        return sorted(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ())
    except metadata.PackageNotFoundError:
        return []


def _requires() -> list[str]:
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
