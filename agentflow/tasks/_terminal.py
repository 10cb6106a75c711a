"""State of a workspace: files, archives, git repositories and outputs of scripts."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from agentflow.errors import ToolFailure
from agentflow.sandbox import Sandbox
from agentflow.tasks._states import ABSENT, State, StateCondition
from agentflow.trace import Action

INSPECT = "bash_inspect"
RUN = "bash_run"
LONG_TEXT = 20
"""Lines from which an appended file is checked by its new lines only."""
APPENDED = 5
"""Maximum number of appended lines that are checked one by one."""
SHOWN_CHARACTERS = 600
_REPOSITORY = "repository "
_USUAL_MODES = frozenset({"644", "664", "600", "755", "775"})
_CONTENTS = ("members", "unpacked", "json", "rows", "text", "sha256")
"""Properties that hold the content of a file, the most tolerant first."""

# Programs at the start of a command, and names of libraries, whose results depend on the moment or the machine.
_VARYING_COMMAND = re.compile(
    r"(?:^|[;&|(`\n]|\$\()\s*(?:sudo\s+)?(?:date|uptime|mktemp|uuidgen|shuf|ps|top|who|w|id|hostname|uname|nproc|free|df|du|stat|"
    r"env|printenv|ls\s+-\w*l|find\s[^|;]*-(?:newer|mtime|ctime|ls)|ping|curl|wget|sleep|time)\b"
)
_VARYING_TEXT = re.compile(
    r"\$RANDOM|\$\$|\$BASHPID|\$SECONDS|\$EPOCH\w+|/dev/u?random|/proc/|\bmkpasswd\b|--random-source|\bsort\s+-R\b|"
    r"\b(?:import|from)\s+(?:random|time|datetime|uuid|secrets|platform|socket)\b|\bos\.(?:getpid|urandom|times)\b"
)


class _Entry(Struct):
    path: str
    kind: str
    mode: str
    sha256: str | None = None
    text: str | None = None
    target: str | None = None
    members: dict[str, str] | None = None
    unpacked: str | None = None


class _Repository(Struct):
    path: str
    branch: str
    commits: list[str]
    changes: list[str]


class _Ran(Struct):
    command: str
    exit_code: int
    output: str


class _Inspection(Struct):
    files: list[_Entry]
    repositories: list[_Repository]
    commands: list[_Ran]
    complete: bool


class TerminalState:
    """State of the workspace of a shell.

    Things are paths, `repository PATH`, and commands such as `./report.sh`. A process is not part of the state: forks do not
    copy background jobs.

    Example::

        state = await TerminalState().read(sandbox)
        assert state["notes.txt"]["text"] == "first line"
    """

    name = "terminal"
    """Name of the kind of task."""

    async def read(self, sandbox: Sandbox, conditions: Sequence[StateCondition] = ()) -> State:
        """Read files first, then repositories; then run the commands of conditions, and all scripts if there are none."""
        commands = sorted(
            {condition.thing for condition in conditions if condition.property in ("output", "exit")}
        )
        inspection = await _inspect(sandbox, commands)
        state = _state_of(inspection)
        if not conditions and (scripts := [f"./{path}" for path in state if _is_script(state[path])]):
            state |= {
                command.command: _outcome(command)
                for command in (await _inspect(sandbox, scripts[:10])).commands
            }
        return state

    def probe(self, condition: StateCondition) -> tuple[Action, ...]:
        """Return the inspection that reads the value of a condition."""
        commands = [condition.thing] if condition.property in ("output", "exit") else []
        return (Action(INSPECT, {"commands": commands}),)

    def differences(self, before: State, after: State) -> tuple[StateCondition, ...]:
        """Return conditions on everything that was added, removed or changed."""
        conditions: list[StateCondition] = []
        for thing in sorted({*before, *after}):
            conditions += _thing_differences(thing, before, after)
        return tuple(conditions)

    def is_start(self, state: State) -> bool:
        """Tell whether there is a file with content."""
        return any(properties.get("text") or properties.get("members") for properties in state.values())

    def repeatable(self, before: Sequence[Action], actions: Sequence[Action]) -> bool:
        """Tell whether no command depends on the moment or the machine, nor leaves a job running."""
        commands = [str(action.arguments.get("command", "")) for action in (*before, *actions)]
        return not any(
            _VARYING_COMMAND.search(command)
            or _VARYING_TEXT.search(command)
            or re.search(r"(?<![&>])&(?![&>\d])\s*(?:$|\n|;)", command)
            for command in commands
        )

    def no_op(self) -> tuple[Action, ...]:
        """List the files."""
        return (Action(RUN, {"command": "ls -A"}),)

    def shortcut(self, conditions: Sequence[StateCondition]) -> tuple[Action, ...]:
        """Create the files that are asked for, without content."""
        paths = sorted(
            {
                condition.thing.removeprefix("./")
                for condition in conditions
                if condition.property not in (ABSENT, "branch", "commits", "changes")
            }
        )
        if not paths:
            return ()
        quoted = " ".join("'" + path.replace("'", "'\\''") + "'" for path in paths)
        script = f'for f in {quoted}; do mkdir -p -- "$(dirname -- "$f")"; : > "$f"; chmod +x -- "$f"; done 2>/dev/null; :'
        return (Action(RUN, {"command": script}),)

    def describe(self, state: State) -> str:
        """List the files with their text."""
        lines: list[str] = []
        for path, properties in state.items():
            kind = properties.get("kind", "")
            if kind == "file":
                text = properties.get("text")
                lines.append(f"{path} (mode {properties['mode']})" + (f":\n{_cut(text)}" if text else ""))
            elif kind == "symlink":
                lines.append(f"{path} -> {properties['target']}")
            elif kind == "directory":
                lines.append(f"{path}/")
            elif path.startswith(_REPOSITORY):
                lines.append(f"{path}: branch {properties['branch']}, commits {properties['commits']}")
        return "\n".join(lines)

    def says(self, condition: StateCondition) -> str:
        """Return a condition in words."""
        thing, value = f"`{condition.thing}`", condition.value
        match condition.property:
            case "absent":
                return f"{thing} does not exist"
            case "kind":
                return f"{thing} is a {value}"
            case "target":
                return f"{thing} is a symbolic link to `{value}`"
            case "mode":
                return f"the mode of {thing} is {value}"
            case "lines":
                return f"{thing} has {value} lines"
            case "members":
                return f"the archive {thing} has exactly these files: {', '.join(json.loads(value))}"
            case "unpacked":
                return f"{thing} is a gzip file of this text: {_cut(value)}"
            case "sha256":
                return f"the SHA-256 of {thing} is {value}"
            case "output":
                return f"running {thing} in the home directory prints: {_cut(value)}"
            case "exit":
                return f"running {thing} exits with {value}"
            case "branch" | "commits" | "changes":
                return _repository_says(condition)
            case _:
                verb = "contains the line" if condition.contains else "has exactly this content:"
                return f"{thing} {verb} {_cut(value)}"

    def must_name(self, condition: StateCondition, actions: Sequence[Action]) -> tuple[str, ...]:
        """Return the name of the file, and content that can't be derived because the commands spell it out."""
        name = PurePosixPath(condition.thing.removeprefix(_REPOSITORY)).name
        match condition.property:
            case "target":
                return name, PurePosixPath(condition.value).name
            case "mode":
                return name, "executable" if condition.value in ("755", "775", "744") else condition.value
            case "branch":
                return name, condition.value
            case "commits":
                return name, *json.loads(condition.value)[:1]
            case "text" | "output":
                return name, *_spelled(condition.value, actions)
            case _:
                return (name,)

    def must_hide(self, condition: StateCondition, actions: Sequence[Action]) -> tuple[str, ...]:
        """Return content that is to be derived."""
        if (
            condition.property not in ("text", "output", "rows", "json", "unpacked")
            or len(condition.value) < 4
        ):
            return ()
        spelled = set(_spelled(condition.value, actions))
        if condition.value in spelled:
            return ()
        lines = [line for line in condition.value.splitlines() if len(line) > 3 and line not in spelled]
        # A single line of many may be a legitimate example of the format; all of them are the solution.
        return (condition.value,) if len(lines) > 1 else tuple(lines)


async def _inspect(sandbox: Sandbox, commands: Sequence[str]) -> _Inspection:
    result = await sandbox.execute(INSPECT, {"commands": list(commands)})
    if result.error is not None:
        raise ToolFailure(result.error.kind, result.error.message)
    return msgspec.convert(result.data, _Inspection)


def _state_of(inspection: _Inspection) -> dict[str, Mapping[str, str]]:
    state: dict[str, Mapping[str, str]] = {file.path: _properties(file) for file in inspection.files}
    for repository in inspection.repositories:
        state[f"{_REPOSITORY}{repository.path}"] = {
            "branch": repository.branch,
            "commits": json.dumps(repository.commits),
            "changes": json.dumps(sorted(repository.changes)),
        }
    return state | {command.command: _outcome(command) for command in inspection.commands}


def _outcome(ran: _Ran) -> dict[str, str]:
    return {"output": plain_text(ran.output), "exit": str(ran.exit_code)}


def _properties(entry: _Entry) -> dict[str, str]:
    properties = {"kind": entry.kind, "mode": entry.mode}
    if entry.target is not None:
        properties["target"] = entry.target
    if entry.sha256 is not None:
        properties["sha256"] = entry.sha256
    if entry.members is not None:
        properties["members"] = json.dumps(entry.members, sort_keys=True)
    if entry.unpacked is not None:
        properties["unpacked"] = plain_text(entry.unpacked)
    if entry.text is not None:
        properties["text"] = plain_text(entry.text)
        properties["lines"] = str(len(entry.text.splitlines()))
        if entry.text.startswith("#!"):
            properties["script"] = "yes"
        properties |= _parsed(entry.path, entry.text)
    return properties


def _parsed(path: str, text: str) -> dict[str, str]:
    """Return the values of a JSON or CSV file in a form that does not depend on its layout."""
    try:
        if path.endswith(".json"):
            value: Any = json.loads(text)
            return {"json": json.dumps(value, sort_keys=True)}
        if path.endswith((".csv", ".tsv")):
            delimiter = "\t" if path.endswith(".tsv") else ","
            rows = [
                [cell.strip() for cell in row]
                for row in csv.reader(text.splitlines(), delimiter=delimiter)
                if row
            ]
            return {"rows": json.dumps(rows)}
    except (ValueError, csv.Error, RecursionError):
        pass
    return {}


def plain_text(text: str) -> str:
    r"""Return the text with single spaces and without empty lines at its end.

    >>> plain_text("   3 a  \n\n")
    '3 a'
    """
    return "\n".join(" ".join(line.split()) for line in text.splitlines()).rstrip("\n")


def _is_script(properties: Mapping[str, str]) -> bool:
    return properties.get("script") == "yes" and int(properties["mode"], 8) & 0o100 != 0


def _repository_says(condition: StateCondition) -> str:
    where = f"in the git repository `{condition.thing.removeprefix(_REPOSITORY)}`"
    if condition.property == "branch":
        return f"{where} the branch is `{condition.value}`"
    listed = ", ".join(f"`{text}`" for text in json.loads(condition.value)) or "none"
    if condition.property == "commits":
        return f"{where} the commits, newest first, are {listed}"
    return f"{where} the uncommitted files are: {listed}"


def _thing_differences(thing: str, before: State, after: State) -> list[StateCondition]:
    old, new = before.get(thing), after.get(thing)
    if new is None:
        gone_with = any(parent in before and parent not in after for parent in _parents(thing))
        return [] if gone_with or old is None or "output" in old else [StateCondition(thing, ABSENT)]
    if "output" in new:
        same = old is not None and old == new
        useful = new["exit"] == "0" and bool(new["output"])
        return [StateCondition(thing, "output", new["output"])] if useful and not same else []
    if thing.startswith(_REPOSITORY):
        names = ("branch", "commits", "changes")
        return [
            StateCondition(thing, name, new[name]) for name in names if (old or {}).get(name) != new[name]
        ]
    return _entry_differences(thing, old or {}, new, after)


def _parents(path: str) -> list[str]:
    return [str(parent) for parent in PurePosixPath(path).parents]


def _entry_differences(
    path: str, old: Mapping[str, str], new: Mapping[str, str], after: State
) -> list[StateCondition]:
    match new["kind"]:
        case "symlink":
            return (
                [StateCondition(path, "target", new["target"])] if old.get("target") != new["target"] else []
            )
        case "directory":
            empty = not any(other.startswith(f"{path}/") for other in after)
            return [StateCondition(path, "kind", "directory")] if not old and empty else []
        case "file":
            mode = (
                new["mode"] != old["mode"] if old.get("kind") == "file" else new["mode"] not in _USUAL_MODES
            )
            modes = [StateCondition(path, "mode", new["mode"])] if mode else []
            return [*_content_differences(path, old, new), *modes]
        case _:
            return []


def _content_differences(path: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[StateCondition]:
    # A script is checked by its output, as it may be written in many ways.
    if _is_script(new) or new.get("sha256") == old.get("sha256"):
        return []
    text, before = new.get("text"), old.get("text")
    if text is not None and before and before.count("\n") >= LONG_TEXT and text.startswith(f"{before}\n"):
        added = text.removeprefix(f"{before}\n").splitlines()
        if len(added) <= APPENDED:
            lines = [StateCondition(path, "text", line, contains=True) for line in added if line]
            return [*lines, StateCondition(path, "lines", new["lines"])]
    for name in _CONTENTS:
        if name in new:
            return [StateCondition(path, name, new[name])] if new[name] != old.get(name) else []
    return []


def _spelled(value: str, actions: Sequence[Action]) -> tuple[str, ...]:
    """Return the lines of a value if the commands contain all of them, so that they can't be derived."""
    written = [value for action in actions for value in action.arguments.values() if isinstance(value, str)]
    commands = "\n".join(map(plain_text, written))
    lines = [line for line in value.splitlines() if line]
    written_lines = list(takewhile(lambda line: len(line) > 1 and line in commands, lines))
    return tuple(written_lines) if lines and len(written_lines) == len(lines) else ()


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} …"
