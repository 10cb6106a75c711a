"""Work in a shell, or in a terminal on a desktop: small projects made from the seed, and jobs on their files, each with the words
that ask for it.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from agentflow.offline._arguments import Use
from agentflow.trace import Node, PlanRequest

_SERVICES = ("auth", "billing", "catalog", "mail", "search", "upload")
_MESSAGES = (
    "request finished",
    "queue is full",
    "cache was rebuilt",
    "timeout of the database",
    "disk is slow",
    "token expired",
)
_LEVELS = ("INFO", "INFO", "INFO", "WARN", "WARN", "ERROR", "ERROR", "DEBUG")
_CUSTOMERS = ("Adler", "Brandt", "Castro", "Dubois", "Eriksen", "Fontana", "Green", "Hansen")
_PRODUCTS = ("anchor", "barrel", "compass", "lantern", "net", "rope", "sail")
_REGIONS = ("east", "north", "south", "west")
_TOPICS = ("garden", "harbour", "kitchen", "library", "meeting", "travel", "workshop")
_VERBS = ("call", "check", "order", "paint", "repair", "send", "sort", "visit")
_OBJECTS = (
    "the boxes",
    "the gate",
    "the invoice",
    "the lamps",
    "the map",
    "the pump",
    "the shelves",
    "the tickets",
)


_PLACEHOLDER: Final = re.compile(r"@(\w+)@")
PREPARES: Final = "bash_run"
"""Tool that prepares the files of a desktop."""
_TERMINAL: Final = (
    ("vm_right_click", Use("Open the menu of the empty screen.", {})),
    ("vm_key", Use("Select its first entry, the terminal.", {"key": "down"})),
    ("vm_key", Use("Start the terminal.", {"key": "enter"})),
    ("vm_wait", Use("Wait for its prompt.", {"seconds": 3})),
)
"""Steps that start a terminal."""
DESKTOP_TOOLS: Final = frozenset(("vm_type", *(tool for tool, _ in _TERMINAL)))
"""Tools with which a terminal is started and used."""


class ProjectJob(NamedTuple):
    """A command with the words that ask for it."""

    intent: str
    """Instruction that the command follows; it names every file and format."""
    command: str
    """The command; it prints a summary of its result."""
    needs: str = ""
    """File that an earlier job must have written."""


class _Project(NamedTuple):
    """Files to begin with, and jobs on them."""

    start: ProjectJob
    jobs: tuple[ProjectJob, ...]


def shell_jobs(seed: str, path: Sequence[Node]) -> Iterator[ProjectJob]:
    """Yield jobs for the next action: first a project, then work on its files.

    The order depends on the seed and the path, so that branches differ.
    """
    projects = _projects(seed)
    done = _done(path)
    project = next((project for project in projects if project.start.command in done), None)
    if project is None:
        yield from (project.start for project in projects)
        return
    yield from _remaining(project.jobs, seed, done)


def desktop_steps(request: PlanRequest) -> Iterator[tuple[str, Use]]:
    """Yield tools with the next step on a desktop: prepare its files, start a terminal, or type a job into it.

    The engine has no vision: it opens the menu of the empty screen at the pointer, and selects the first entry by keys.
    """
    opening = [*_preparation(request), *_TERMINAL]
    if len(request.path) < len(opening):
        yield opening[len(request.path)]
        return
    if "command" in request.kwargs:
        jobs = _remaining(_jobs("files", {}), request.seed, _done(request.path))
    else:
        jobs = shell_jobs(request.seed, request.path)
    for job in jobs:
        yield "vm_type", Use(job.intent, {"text": f"{job.command}\n"})


def _preparation(request: PlanRequest) -> Iterator[tuple[str, Use]]:
    """Yield the command that prepares the files: that of the seed, or the start of a project."""
    if "command" in request.kwargs:
        yield PREPARES, Use("Prepare the files.", {})
    elif any(tool.name == PREPARES for tool in request.tools):
        start = _projects(request.seed)[0].start
        yield PREPARES, Use(start.intent, {"command": start.command})


def _done(path: Sequence[Node]) -> list[str]:
    """Return the commands of a path, run or typed."""
    arguments = [step.call.arguments for step in path]
    return [str(call.get("command", call.get("text", ""))).removesuffix("\n") for call in arguments]


def _remaining(jobs: Sequence[ProjectJob], seed: str, done: Sequence[str]) -> Iterator[ProjectJob]:
    """Yield the jobs that are not done, in the order of the seed and the path."""
    remaining = [job for job in jobs if job.command not in done]
    Random(f"jobs {seed} {done}").shuffle(remaining)
    written = "\n".join(done[1:])
    # Work on the newest results comes first.
    yield from (job for job in remaining if job.needs and f"> {job.needs}" in written)
    yield from (job for job in remaining if not job.needs)


def _projects(seed: str) -> list[_Project]:
    random = Random(f"projects {seed}")
    projects = [_log(random), _orders(random), _notes(random)]
    random.shuffle(projects)
    return projects


def _file(path: str, lines: Sequence[str]) -> str:
    return f"cat > {path} <<'END'\n" + "\n".join(lines) + "\nEND"


def _job(intent: str, command: str, result: str, needs: str = "") -> ProjectJob:
    """Return a job that prints the size and checksum of its result."""
    name = shlex.quote(result)
    summary = f'echo "{result}: $(wc -l < {name}) lines, checksum $(cksum < {name} | cut -d" " -f1)"'
    return ProjectJob(intent, f"{command}\n{summary}", needs)


class _JobTemplate(Struct, frozen=True):
    """Job of `shell_jobs.toml`."""

    intent: str
    command: str
    result: str = ""
    needs: str = ""
    each: str = ""

    def job(self, values: Mapping[str, str]) -> ProjectJob:
        """Return the job with the values of a project in place of `@NAME@`."""
        intent, command, result = (
            _PLACEHOLDER.sub(lambda match: values[match[1]], text)
            for text in (self.intent, self.command, self.result)
        )
        return (
            _job(intent, command, result, self.needs) if result else ProjectJob(intent, command, self.needs)
        )


@cache
def _templates() -> Mapping[str, list[_JobTemplate]]:
    text = (Path(__file__).parent / "shell_jobs.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, list[_JobTemplate]])


def _jobs(
    project: str, values: Mapping[str, str], repeated: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> tuple[ProjectJob, ...]:
    """Return the jobs of a project.

    :param repeated: values of each name over which jobs are repeated.
    """
    return tuple(
        template.job({**values, template.each: value})
        for template in _templates()[project]
        for value in (repeated[template.each] if template.each else ("",))
    )


def _log(random: Random) -> _Project:
    path = f"logs/{random.choice(['app', 'server', 'worker'])}.log"
    days = [f"2031-0{random.randint(1, 9)}-{day:02}" for day in sorted(random.sample(range(1, 29), 3))]
    days.sort()
    services = sorted(random.sample(_SERVICES, 3))
    lines = [
        f"{day} {hour:02}:{random.randint(0, 59):02} {random.choice(_LEVELS)} {random.choice(services)} {random.choice(_MESSAGES)}"
        for day in days
        for hour in sorted(random.sample(range(24), random.randint(5, 8)))
    ]
    # Each level and service occurs.
    lines += [
        f"{days[-1]} 23:59 {level} {service} closing"
        for level, service in zip(("ERROR", "WARN", "INFO"), services, strict=True)
    ]
    start = _job(
        f"Begin with a log of {len(lines)} lines in {path}.", f"mkdir -p logs\n{_file(path, lines)}", path
    )
    values = {
        "path": path,
        "days": ", ".join(f"days/{day}.log" for day in days),
        "first_day": days[0],
    }
    return _Project(start, _jobs("log", values, {"service": services}))


def _orders(random: Random) -> _Project:
    path = random.choice(["orders.csv", "sales.csv"])
    stem = path.removesuffix(".csv")
    customers = random.sample(_CUSTOMERS, 5)
    rows = [
        f"{number},{random.choice(customers)},{random.choice(_PRODUCTS)},{random.randint(1, 9)},{random.randint(2, 40)},{region}"
        for number, region in enumerate((*_REGIONS, *random.choices(_REGIONS, k=10)), 1)
    ]
    header = "id,customer,product,quantity,price,region"
    least = random.randint(4, 7)
    start = _job(f"Begin with a table of {len(rows)} orders in {path}.", _file(path, [header, *rows]), path)
    values = {"path": path, "stem": stem, "least": str(least)}
    return _Project(start, _jobs("orders", values, {"region": _REGIONS}))


def _notes(random: Random) -> _Project:
    topics = sorted(random.sample(_TOPICS, 4))
    texts = {
        topic: [
            f"{'OPEN ' if random.random() < 0.4 else ''}{random.choice(_VERBS)} {random.choice(_OBJECTS)}"
            for _ in range(random.randint(3, 6))
        ]
        for topic in topics
    }
    for topic in topics[:2]:
        texts[topic].append(f"OPEN {random.choice(_VERBS)} {topic} sign")
    written = "\n".join(_file(f"notes/{topic}.txt", lines) for topic, lines in texts.items())
    empty = f"notes/{random.choice(('draft', 'scratch', 'untitled'))}.txt"
    start = _job(
        f"Begin with {len(topics)} notes and an empty file in the directory notes.",
        f"mkdir -p notes\n{written}\n: > {empty}",
        f"notes/{topics[0]}.txt",
    )
    first, other = random.sample(topics, 2)
    return _Project(start, _jobs("notes", {"empty": empty, "one": first, "other": other}))
