"""The executor: writes the arguments of a tool call, makes the call, and turns the result into an observation.

An observation is readable, reproducible text. Details that vary between runs without meaning are removed: handles,
process ids, durations, modification times, memory addresses, names of temporary files, links.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from msgspec.structs import replace

from agentflow.actors import SYSTEM_CLOCK, Backoff, Clock
from agentflow.engine import is_repeatable
from agentflow.errors import ErrorKind, RunStopped, StopCause, ToolFailure
from agentflow.models import Model
from agentflow.sandbox import Image, Sandbox, TextContent, ToolResult
from agentflow.team._messages import command_messages
from agentflow.team._pool import Role, WorkerCrashed, answer_request, in_worker
from agentflow.team._schemas import command_schema, drop_unused_nulls
from agentflow.trace import (
    Action,
    ActionOutcome,
    Blob,
    BlobStore,
    Command,
    CommandRequest,
    Failure,
    Observation,
    Reply,
    SourceSpan,
    Text,
    Usage,
)

Json: TypeAlias = Any
"""A JSON value."""
Data: TypeAlias = Mapping[str, Json]
RETRIES = 3
PAUSE = Backoff(initial=0.2, factor=2.0, maximum=2.0)
SERVER_SECONDS = 60.0
"""Time for which a tool server that does not answer is waited for."""
_TRANSIENT = (ErrorKind.BUSY, ErrorKind.UNAVAILABLE)


class Executor(Role):
    """Role that calls tools. A failed call is an outcome; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(self, blobs: BlobStore, model: Model, *, workers: int) -> None:
        """Create the role.

        :param blobs: store of the images that tools return.
        :param model: model that writes the arguments of calls.
        :param workers: maximum number of workers.
        """
        super().__init__("executors", workers=workers)
        self._blobs = blobs
        self._model = model

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        """Call a tool in a sandbox. A call that could do harm twice is never repeated."""
        return await self.gate(partial(self._act, sandbox, action))

    async def _act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        try:
            return await self.pool.ask(
                lambda clock: call_tool(sandbox, action, self._blobs, clock),
                again=partial(_may_repeat, sandbox, action),
            )
        except WorkerCrashed as crash:
            return ActionOutcome(failure=Failure(ErrorKind.FAILED, str(crash)))

    @in_worker
    async def command(self, request: CommandRequest) -> Reply[Command]:
        """Write the arguments of a tool call."""
        reply = await answer_request(
            self._model,
            request,
            Command,
            command_messages(request),
            role="executor",
            schema=command_schema(request.tool),
        )
        if reply.value is None:
            return reply
        arguments = drop_unused_nulls(reply.value.arguments, request.tool)
        return replace(reply, value=Command(reply.value.analysis, arguments))


async def call_tool(
    sandbox: Sandbox, action: Action, blobs: BlobStore, clock: Clock = SYSTEM_CLOCK
) -> ActionOutcome:
    """Call a tool; a failed call is an outcome with its partial output. Images go to the blob store.

    See docs/team.md.

    :raises RunStopped: if a model inside the tool can't be used any more, or not now.
    """
    with watch_tool_models() as models:
        result = await _call(sandbox, action, clock)
    if models.stopped is not None:
        raise models.stopped
    failure = None if result.error is None else Failure(result.error.kind, result.error.message)
    return ActionOutcome(
        observation=await _observation(result, blobs),
        failure=failure,
        trouble="" if failure is not None else trouble_of(result.data),
        lost=result.data.get("state_lost") is True,
        usage=models.usage,
    )


async def _may_repeat(sandbox: Sandbox, action: Action) -> bool:
    """Tell whether the tool declares itself read-only or idempotent."""
    try:
        tools = await sandbox.tools(action.tool)
    except ToolFailure:
        return False
    return bool(tools) and all(map(is_repeatable, tools))


async def _call(sandbox: Sandbox, action: Action, clock: Clock) -> ToolResult:
    """Call a tool, and retry if it could not be reached and the call is repeatable.

    :raises RunStopped: if its server does not answer for `SERVER_SECONDS`: that says nothing about the call.
    """
    failures, began = 0, clock.now()
    while True:
        result = await sandbox.execute(action.tool, action.arguments)
        if (
            result.error is None
            or result.error.kind not in _TRANSIENT
            or not await _may_repeat(sandbox, action)
        ):
            return result
        failures += 1
        if result.server_lost:
            if clock.now() - began >= SERVER_SECONDS:
                message = f"no tool server answers: {result.error.message} Run the same command to resume."
                raise RunStopped(StopCause.SANDBOX, message)
        elif failures > RETRIES:
            return result
        await clock.sleep(PAUSE.delay(failures))


async def _observation(result: ToolResult, blobs: BlobStore) -> Observation:
    shown: list[Text | Blob] = []
    for part in result.parts:
        if isinstance(part, TextContent):
            shown.append(Text(part.text))
        elif isinstance(part, Image):
            shown.append(await blobs.put(part.data, part.mime))
    if not any(isinstance(part, Text) for part in shown):
        text = observed_text(result.data)
        if text:
            shown.insert(0, Text(text))
    observation = Observation(tuple(shown))
    return replace(observation, sources=tuple(sources_of(result.data, observation.text)))


_DOCUMENTS = ("final_url", "url", "document", "path", "id")
"""Fields that name a document, the first of them first."""
_CONTENTS = ("text", "snippet", "content")
"""Fields that hold a part of a document."""
_LENGTHS = ("characters", "length")
_MAX_SOURCES = 500


def sources_of(data: Data, shown: str) -> Iterator[SourceSpan]:
    """Yield the parts of documents in the text that roles are shown, by the fields with which tools describe a part."""
    places: dict[str, int] = {}
    for document, title, part in islice(_parts(data, "", ""), _MAX_SOURCES):
        content = next((_text(part, name) for name in _CONTENTS if _text(part, name).strip()), "")
        stripped = content.strip()
        start = shown.find(stripped, places.get(stripped, 0))
        if start < 0:
            continue
        places[stripped] = start + len(stripped)
        lead = len(content) - len(content.lstrip())
        offset, length = part.get("start"), next((part[name] for name in _LENGTHS if name in part), 0)
        if part.get("first_line") == 1 and part.get("next_offset") is None:
            offset, length = 0, len(content)
        yield SourceSpan(
            document=document,
            title=title,
            start=start,
            end=start + len(stripped),
            offset=offset + lead if isinstance(offset, int) else -1,
            length=length if isinstance(length, int) else 0,
        )


def _parts(value: Json, document: str, title: str) -> Iterator[tuple[str, str, Data]]:
    """Yield each part of a document in the data of a result, with the name and title of the document."""
    match value:
        case {**members}:
            named = next((_text(members, name) for name in _DOCUMENTS if _text(members, name)), "")
            if named:
                document, title = named, _text(members, "title")
            if document and any(_text(members, name).strip() for name in _CONTENTS):
                yield document, title, members
            for member in members.values():
                yield from _parts(member, document, title)
        case [*items]:
            for member in items:
                yield from _parts(member, document, title)
        case _:
            return


MAX_ROWS = 100
"""Maximum rows of a table, and items of a list, that are shown."""
MAX_TROUBLE_CHARS = 300
_VARYING = frozenset({"session_id", "pid", "duration", "elapsed", "modified"})
_VARYING_TEXT = (
    (re.compile(r"(?<=\bat )0x[0-9a-fA-F]{4,16}\b"), "0x…"),
    (re.compile(r"/tmp/tmp[A-Za-z0-9_]{6,}"), "/tmp/tmp…"),
    (re.compile(r"; the whole is at agentflow://\S+"), ""),
    # A shell reports a program ended by a signal with its process id.
    (re.compile(r"(: line \d+:) +\d+ (?=[A-Z][a-z]+)"), r"\1 "),
)
_VARYING_HINTS = ("0x", "/tmp/tmp", "agentflow://", ": line ")
"""Substrings of texts that may contain varying text; most texts contain none."""


def observed_text(data: Data) -> str:
    """Render the data of a result as text; empty if it contains no information."""
    for names, render in _KNOWN:
        if names <= data.keys():
            text = render(data)
            break
    else:
        text = _generic(data)
    return scrubbed(text)


def scrubbed(text: str) -> str:
    """Remove varying details from a text."""
    if any(hint in text for hint in _VARYING_HINTS):
        for pattern, instead in _VARYING_TEXT:
            text = pattern.sub(instead, text)
    return text


def trouble_of(data: Data) -> str:
    """Describe in one line how a program or code failed; empty if it did not.

    Exit code 1 without output on stderr is a negative result, as of `grep` and `diff`, not a failure.
    """
    code = data.get("exit_code")
    if isinstance(code, int) and code != 0 and not (code == 1 and not _text(data, "stderr").strip()):
        return f"exit code {code}"
    error = data.get("error")
    match error:
        case {**problem}:
            text = f"{problem.get('type', 'error')}: {problem.get('message', '')}"
        case str():
            text = error
        case _:
            text = ""
    return scrubbed(" ".join(text.split()))[:MAX_TROUBLE_CHARS].removesuffix(":")


def _shell(data: Data) -> str:
    code = data["exit_code"]
    return _joined(
        _text(data, "stdout"),
        _titled("stderr", _text(data, "stderr")),
        f"exit code: {code}" if code not in (0, None) else "",
        _titled("note", _text(data, "note")),
    )


def _python(data: Data) -> str:
    value, tables = _text(data, "value"), _mappings(data.get("tables"))
    if tables and "\n" in value:
        # The value is the printed table; the table itself has more detail.
        value = ""
    displays = [_text(display, "text") for display in _mappings(data.get("displays"))]
    return _joined(
        _text(data, "stdout"),
        value,
        *map(_table, tables),
        *displays,
        _titled("stderr", _text(data, "stderr")),
        _titled("error", trouble_of(data)),
        _titled("note", _text(data, "note")),
    )


def _table(data: Data) -> str:
    rows: list[Sequence[Json]] = list(_sequence(data.get("rows")))
    names = [str(column.get("name", "")) for column in _mappings(data.get("columns"))]
    total = data.get("total_rows")
    shown = rows[:MAX_ROWS]
    lines = [" | ".join(names), *(" | ".join(map(_cell, row)) for row in shown)] if rows else []
    if isinstance(total, int):
        more = f"… {total} rows in total" if total > len(shown) else ""
    else:
        cut = data.get("truncated") is True or data.get("next_offset") is not None or len(rows) > len(shown)
        more = "… there are more rows" if cut else ""
    return _joined(*lines, more, _titled("error", trouble_of(data)))


def _file(data: Data) -> str:
    if data["kind"] != "text":
        return f"{data['path']}: {data.get('mime')}, {data.get('size')} bytes"
    following = data.get("next_offset")
    total = data.get("total_lines")
    rest = f"… from line {following} on not shown{f' ({total} lines in total)' if total else ''}"
    return _joined(_text(data, "content"), rest if following else "", _titled("note", _text(data, "note")))


def _found(data: Data) -> str:
    matches = _mappings(data["matches"])
    lines = [
        str(match["path"])
        if match.get("line") is None
        else f"{match['path']}:{match['line']}: {match.get('text')}"
        for match in matches
    ]
    return _joined(*lines, "… there are more" if data.get("truncated") else "") or "no matches"


def _listing(data: Data) -> str:
    entries = _mappings(data["entries"])
    lines = [f"{entry.get('path')} ({entry.get('kind')}, {entry.get('size')} bytes)" for entry in entries]
    total = data.get("total")
    more = isinstance(total, int) and total > len(entries)
    return _joined(*lines, f"… {total} in total" if more else "") or "no entries"


def _schema(data: Data) -> str:
    """Render the schema of a database with one line for each table, and its sample rows below."""
    lines = [f"database: {data['database']} ({data['engine']})"]
    for table in _mappings(data["tables"]):
        columns = ", ".join(
            f"{column.get('name')} {column.get('type')}"
            + ("" if column.get("nullable", True) else " not null")
            for column in _mappings(table.get("columns"))
        )
        keys = [f"primary key {', '.join(map(str, _sequence(table.get('primary_key'))))}"] * bool(
            _sequence(table.get("primary_key"))
        )
        for key in _mappings(table.get("foreign_keys")):
            referring, referred = (
                ", ".join(map(str, _sequence(key.get(name)))) for name in ("columns", "referred_columns")
            )
            keys.append(f"{referring} -> {key.get('table')}({referred})")
        rows = table.get("row_count")
        kind = "view " if table.get("kind") == "view" else ""
        count = "" if rows is None else f" [{rows} rows]"
        lines.append(f"{kind}{table.get('name')}{count}: {'; '.join([columns, *keys])}")
        lines += [f"  {' | '.join(map(_cell, row))}" for row in _sequence(table.get("sample"))]
    others = ", ".join(map(str, _sequence(data.get("others"))))
    return _joined(*lines, f"other tables: {others}" if others else "")


def _edited(data: Data) -> str:
    return _joined(f"{data['path']}: {data['replacements']} replaced", _text(data, "diff"))


_KNOWN: tuple[tuple[set[str], Callable[[Data], str]], ...] = (
    ({"stdout", "stderr", "exit_code"}, _shell),
    ({"stdout", "value", "error"}, _python),
    ({"columns", "rows"}, _table),
    ({"path", "kind", "content"}, _file),
    ({"matches", "files_searched"}, _found),
    ({"path", "entries", "total"}, _listing),
    ({"path", "replacements", "diff"}, _edited),
    ({"database", "engine", "tables"}, _schema),
)


def _generic(data: Data) -> str:
    stable = _stable(data)
    if _is_empty(stable):
        return ""
    if list(stable) == ["result"]:
        return "\n".join(_lines(stable["result"]))
    return "\n".join(_lines(stable))


def _stable(data: Data) -> Data:
    """Select the fields that are the same in every run."""
    return {
        name: value
        for name, value in data.items()
        if name not in _VARYING and not (isinstance(value, str) and value.startswith("agentflow://"))
    }


def _is_empty(value: Json) -> bool:
    """Tell whether some leaf is empty and every other is empty or zero: no hits, 0 in total."""
    leaves = list(_leaves(value))
    return not leaves or (None in leaves and all(not leaf for leaf in leaves))


def _leaves(value: Json) -> list[Json]:
    """Return all leaf values; `None` for each empty one."""
    match value:
        case {**members}:
            leaves = [leaf for member in members.values() for leaf in _leaves(member)]
        case [*items]:
            leaves = [leaf for item in items for leaf in _leaves(item)]
        case _:
            return [None if value in (None, "") else value]
    return leaves or [None]


def _lines(value: Json) -> list[str]:
    """Render a value as lines: fields by name, list items by number, nested values indented."""
    match value:
        case {**members}:
            stable = _stable(members)
            return [line for name, member in stable.items() for line in _named(f"{name}:", member)]
        case [*items]:
            shown = [
                line
                for number, item in enumerate(items[:MAX_ROWS], start=1)
                for line in _named(f"{number}.", item)
            ]
            more = len(items) - MAX_ROWS
            return [*shown, f"… {more} more"] if more > 0 else shown
        case _:
            return _cell(value).splitlines()


def _named(name: str, value: Json) -> list[str]:
    lines = _lines(value)
    if not lines:
        return [f"{name} none"]
    if len(lines) == 1 and not isinstance(value, Mapping | list | tuple):
        return [f"{name} {lines[0]}"]
    if name.endswith("."):
        first, *rest = lines
        return [f"{name} {first}", *(f"   {line}" for line in rest)]
    return [name, *(f"  {line}" for line in lines)]


def _cell(value: Json) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case _:
            return str(value)


def _text(data: Data, name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _sequence(value: Json) -> Sequence[Json]:
    match value:
        case [*items]:
            return items
        case _:
            return ()


def _mappings(value: Json) -> list[Data]:
    return [item for item in _sequence(value) if isinstance(item, Mapping)]


def _titled(title: str, text: str) -> str:
    text = text.strip()
    return f"{title}: {text}" if text and "\n" not in text else f"{title}:\n{text}" if text else ""


def _joined(*pieces: str) -> str:
    """Join the non-empty pieces by newlines."""
    return "\n".join(piece.rstrip() for piece in pieces if piece.strip())


class ToolModels:
    """Use of models inside one tool call."""

    def __init__(self) -> None:
        self.usage = Usage()
        """Their usage."""
        self.stopped: RunStopped | None = None
        """Reason that one could not answer and the run, or its seed, can't continue: the result of the call is void."""


_TOOL_MODELS: ContextVar[ToolModels | None] = ContextVar("agentflow_tool_models", default=None)


@contextmanager
def watch_tool_models() -> Generator[ToolModels]:
    """Watch the models inside tools, including in tasks started within the block."""
    watched = ToolModels()
    token = _TOOL_MODELS.set(watched)
    try:
        yield watched
    finally:
        _TOOL_MODELS.reset(token)


def count_usage(usage: Usage) -> None:
    """Add the usage of a model inside a tool, if it is watched."""
    if (watched := _TOOL_MODELS.get()) is not None:
        watched.usage += usage


def void_call(stopped: RunStopped) -> None:
    """Void the tool call in which a model can't answer, if it is watched."""
    if (watched := _TOOL_MODELS.get()) is not None:
        watched.stopped = stopped
