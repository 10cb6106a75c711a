"""Tools of the data backend. A program in the session's sandbox reads the files; its replies are validated."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, TypeVar

from pydantic import AliasChoices, BaseModel, Field

import mcp_servers
from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError, ErrorKind, ToolFailure
from agentflow.extras import missing_extra, with_command
from mcp_servers.code import CodeBackend
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Output, TextContent
from mcp_servers.core._failures import did_you_mean, one_line, quoted
from mcp_servers.core._running import RunSettings, check_outcome, check_settings, read_settings
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool
from mcp_servers.data._results import ColumnLink, DataRan, FileProfile, Inspected, Slice, SliceColumn, summary
from runtimes import WORKSPACE, FrameError, Instance, JsonLimits, decode_untrusted

DATA: Final = "/data"
"""Mount point of the data in a session."""
MIB = 1024 * 1024


class DataSettings(RunSettings):
    """Settings of the data backend."""

    folder: Path | None = Field(
        default=None, validation_alias=AliasChoices("folder", "seed_path", "data_dir")
    )
    """Data directory on this machine, mounted read-only as `/data` in the session; also called `seed_path`.
    By default the tools use the workspace."""
    roots: list[Path] = Field(default_factory=list[Path])
    """Directories in which a session's own `folder` must lie; only the server's settings can set them."""
    files: int = Field(default=100, ge=1, validation_alias=AliasChoices("files", "ds_max_csv"))
    """Most files that `data_inspect` describes; also called `ds_max_csv`."""
    summary_characters: int = Field(
        default=12_000, ge=100, validation_alias=AliasChoices("summary_characters", "ds_summary_max_chars")
    )
    """Longest text of `data_inspect`, in characters; also called `ds_summary_max_chars`."""
    rows: int = Field(default=50, ge=1)
    """Default number of rows of `data_read`."""
    result_bytes: int = Field(default=MIB // 4, ge=1_000)
    """Size limit of the rows of one result."""
    file_seconds: float = Field(default=20.0, gt=0)
    """CPU time limit for inspecting one file."""
    inspect_seconds: float = Field(default=120.0, gt=0)
    """Time limit of `data_inspect` and `data_read`, in seconds, including waiting."""
    memory_bytes: int = Field(default=512 * MIB, ge=64 * MIB)
    """Memory limit for inspecting one file."""
    images: int = Field(default=10, ge=0)
    """Most pictures that a result of `data_run` shows; others are kept as resources."""

    @property
    def readable(self) -> list[Path]:
        """Directories that sessions may read."""
        return [*([self.folder] if self.folder else []), *self.roots]


def check_folder(settings: Mapping[str, object]) -> None:
    """Reject invalid settings of the server.

    :raises ConfigurationError: naming the setting.
    """
    for folder in check_settings(DataSettings, "data", settings).readable:
        if not folder.is_dir():
            raise ConfigurationError(f"data: there is no folder {folder}: set `folder` to one that is there")


def folder_for(settings: Mapping[str, object], session_settings: Mapping[str, object]) -> Path | None:
    """Return the data directory of a session, from the server's settings and its own.

    :raises ToolFailure: `denied`, if it is not inside one of the server's `roots`; `not_found`.
    """
    requested = read_settings(DataSettings, "data", session_settings).folder
    defaults = read_settings(DataSettings, "data", settings)
    folder = (requested or defaults.folder or Path()).resolve()
    if requested is None and defaults.folder is None:
        return None
    if requested is not None and not any(folder.is_relative_to(root.resolve()) for root in defaults.readable):
        message = f"data: no session may see {requested}: the operator can allow it with `roots`."
        raise ToolFailure(ErrorKind.DENIED, message)
    if not folder.is_dir():
        raise ToolFailure(ErrorKind.NOT_FOUND, f"data: there is no folder {requested or defaults.folder}.")
    return folder


class DataDirectory:
    """Location of a session's data: `/data`, or the workspace."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        """Directory on this machine; `None` for the workspace."""

    @property
    def root(self) -> str:
        """Path of the data in the session."""
        return DATA if self.folder else WORKSPACE

    def candidates(self, name: str | None, folder: str | None) -> list[str]:
        """Return the paths in the session that a name may refer to, the most likely first.

        :param folder: a directory in the data: a path in the session, on this machine or relative to the data.
        """
        base = self._of(folder, self.root) if folder else self.root
        if not name:
            return [base]
        paths = [self._of(name, base)]
        if base != WORKSPACE and not name.startswith("/"):
            paths.append(f"{WORKSPACE}/{name}")
        return paths

    def _of(self, name: str, base: str) -> str:
        if self.folder is not None and PurePosixPath(name).is_relative_to(self.folder):
            return str(DATA / PurePosixPath(name).relative_to(self.folder))
        return str(PurePosixPath(base) / name)


_MODULES: Final = (
    "mcp_servers.sql.inside._values",
    "mcp_servers.data.inside._sources",
    "mcp_servers.data.inside._main",
)
"""Modules of the program, in import order."""
_START: Final = """
import json, sys, types
given = json.load(sys.stdin)
for name, source in given["modules"]:
    for end in [*[i for i, c in enumerate(name) if c == "."], None]:
        sys.modules.setdefault(name[:end], types.ModuleType(name[:end]))
    exec(compile(source, name, "exec"), vars(sys.modules[name]))
sys.modules[given["modules"][-1][0]].main(given["request"])
"""
_COMMAND: Final = ("python3", "-I", "-c", _START)
M = TypeVar("M", bound="FileReply")
ENDING_SECONDS = 3.0
"""Time after the program's own limit at which it is killed."""
ENOENT = 2
_MAX_STDERR: Final = 4_000


class FileReply(BaseModel):
    """Reply of the program, with an error if it failed."""

    unreadable: str | None = None
    """Reason of a failure."""
    errno: int | None = Field(default=None, ge=0, le=4095)
    """`errno` of a failure."""


class FoundFiles(FileReply):
    """Files of a directory."""

    files: list[FileProfile] = []
    """Data files."""
    links: list[ColumnLink] = []
    """Columns by which they may be joined."""
    others: list[str] = []
    """Other files."""
    more: int = 0
    """Number of data files that were not inspected."""


class ReadRows(FileReply):
    """Rows of a file."""

    columns: list[SliceColumn] = []
    """Columns."""
    rows: list[list[object]] = []
    """The rows."""
    more: bool = False
    """There are more rows."""
    note: str = ""
    """Note on how the file was read."""
    sheet: str | None = None
    """Sheet that was read."""
    wrong_column: str | None = None
    """Requested column that does not exist."""
    known: list[str] = []
    """Existing columns."""
    wrong_filter: str | None = None
    """Error in the condition."""


async def ask(
    tool: str,
    kind: type[M],
    instance: Instance,
    request: Mapping[str, object],
    paths: list[str],
    seconds: float,
    limits: JsonLimits,
) -> tuple[M, str]:
    """Query the first of the paths that exists; return the reply and that path.

    :param limits: limits of the reply, which the sandbox can forge.
    :raises ToolFailure: if none exists, or the query fails.
    """
    answer, path = kind(), paths[0]
    for path in paths:
        payload = {"modules": program_sources(), "request": {**request, "path": path, "seconds": seconds}}
        done = await instance.exec(
            _COMMAND, input=json.dumps(payload).encode(), timeout=seconds + ENDING_SECONDS
        )
        check_outcome(tool, done.outcome, done.detail, "", Output())
        if not done.stdout:
            raise ToolFailure(ErrorKind.FAILED, f"{tool}: {_why(done.stderr)}")
        try:
            answer = await decode_untrusted(done.stdout, kind.model_validate_json, limits)
        except FrameError as error:
            message = f"{tool}: the sandbox's answer can't be used: {error}"
            raise ToolFailure(ErrorKind.FAILED, message) from None
        if answer.errno != ENOENT:
            break
    if answer.errno is not None:
        kind_of_error = ErrorKind.NOT_FOUND if answer.errno == ENOENT else ErrorKind.FAILED
        reason = one_line(answer.unreadable or "")
        raise ToolFailure(kind_of_error, f"{tool}: {paths[0]!r} can't be read: {reason}.")
    if isinstance(answer, ReadRows):
        _check(tool, answer, path)
    return answer, path


def _check(tool: str, answer: ReadRows, path: str) -> None:
    if answer.wrong_column is not None:
        hint = did_you_mean(answer.wrong_column, answer.known)
        message = f"{tool}: no column {quoted(answer.wrong_column)} in {path!r}.{hint}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if answer.wrong_filter is not None:
        message = f"{tool}: the filter can't be used: {one_line(answer.wrong_filter)}"
        raise ToolFailure(ErrorKind.BAD_ARGUMENTS, message)
    if answer.unreadable is not None:
        raise ToolFailure(
            ErrorKind.FAILED, f"{tool}: {path!r} can't be read: {with_command(one_line(answer.unreadable))}."
        )


def _why(stderr: bytes) -> str:
    last = stderr[-_MAX_STDERR:].decode("utf-8", "replace").strip().rpartition("\n")[2]
    if "No module named" in last:
        return missing_extra("the sandbox's Python", "data")
    return f"looking into the files failed: {one_line(last[-300:])}"


@cache
def program_sources() -> list[tuple[str, str]]:
    """Return the program's source, which is part of its input, because the sandbox cannot see the project."""
    root = Path(mcp_servers.__file__).parents[1]
    return [(name, (root / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")) for name in _MODULES]


VALUES_MIME = "application/vnd.agentflow.values+json"
_LIMITS = JsonLimits()

Folder = Annotated[
    str | None,
    Field(
        validation_alias=AliasChoices("folder", "seed_path"),
        description="Directory to restrict to; by default all data.",
    ),
]
DataFile = Annotated[
    str,
    Field(
        min_length=1,
        validation_alias=AliasChoices("file", "csv_file"),
        description="The file, as named by data_inspect.",
    ),
]
MostRows = Annotated[
    int | None,
    Field(
        ge=1,
        le=10_000,
        validation_alias=AliasChoices("rows", "max_rows"),
        description="Maximum number of rows; by default 50.",
    ),
]
Condition = Annotated[
    str | None,
    Field(
        max_length=10_000,
        description="SQL condition that rows must satisfy: amount > 10 AND name LIKE 'A%'.",
    ),
]


class DataBackend(Backend):
    """Tools for a directory of data files: inspection, reading, and Python in the session's interpreter."""

    name = "data"
    description = "Inspect and read a directory of data files, and analyse them with Python."
    settings_model = DataSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = frozenset({"roots"})

    def __init__(self) -> None:
        self._server_settings: Mapping[str, object] = {}
        self._code = CodeBackend()

    def check(self, settings: Mapping[str, object]) -> None:
        """Reject invalid settings and missing directories."""
        check_folder(settings)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Apply the server's settings."""
        check_folder(settings)
        self._server_settings = settings

    def mounts(
        self, settings: Mapping[str, object], session_settings: Mapping[str, object]
    ) -> Mapping[str, str]:
        """Return the mount of the session's data directory."""
        folder = folder_for(settings, session_settings)
        return {DATA: str(folder)} if folder else {}

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Resolve the session's directory, and start the Python session of the code backend."""
        read = read_settings(DataSettings, self.name, settings)
        directory = DataDirectory(folder_for(self._server_settings, session.settings.get(self.name, {})))
        running = session.current_instance
        if (
            running is not None
            and directory.folder
            and running.spec.mounts.get(DATA) != str(directory.folder)
        ):
            message = (
                "data: this session is already running without that folder: set it when starting a session."
            )
            raise ToolFailure(ErrorKind.UNAVAILABLE, message)
        session.put(read)
        session.put(directory)
        if self._code.name not in session.live:
            shared = {name: getattr(read, name) for name in ("images", "output_characters", "timeout")}
            await self._code.initialize(session, shared)

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the settings; files and variables were forked with the instance."""
        forked.put(session.get(DataSettings))
        forked.put(session.get(DataDirectory))
        await self._code.fork(session, forked)

    @tool(title="Inspect data files", read_only=True)
    async def inspect(
        self,
        session: Session,
        context: CallContext,
        file: Annotated[str | None, Field(description="File to inspect; by default all files.")] = None,
        folder: Folder = None,
    ) -> Inspected:
        """Describe the data files of a directory: columns with types, missing values, ranges and frequent values, and first rows.

        Use it first, to learn the files, their content and the columns by which they can be joined. CSV, TSV, Parquet,
        Excel and JSON files are supported; an unreadable file is listed with the reason.
        """
        settings = session.get(DataSettings)
        reply, path = await _ask("data_inspect", FoundFiles, session, context, file, folder, do="inspect")
        inspected = Inspected(
            folder=path if file is None else str(Path(path).parent),
            files=reply.files,
            links=reply.links,
            others=reply.others,
            more=reply.more,
        )
        context.show(TextContent(summary(inspected, settings.summary_characters)))
        return inspected

    @tool(title="Read rows of a file", read_only=True)
    async def read(
        self,
        session: Session,
        context: CallContext,
        file: DataFile,
        rows: MostRows = None,
        offset: Annotated[int, Field(ge=0, description="Number of rows to skip.")] = 0,
        columns: Annotated[list[str] | None, Field(description="Columns to read; by default all.")] = None,
        filter: Condition = None,
        sheet: Annotated[str | None, Field(description="Sheet of a workbook; by default the first.")] = None,
        folder: Folder = None,
    ) -> Slice:
        """Read rows of a CSV, TSV, Parquet, Excel or JSON file.

        Use it to see individual rows, selected columns, or rows that satisfy a condition. To count, join or
        aggregate use data_run.
        """
        reply, path = await _ask(
            "data_read",
            ReadRows,
            session,
            context,
            file,
            folder,
            do="read",
            rows=rows or session.get(DataSettings).rows,
            offset=offset,
            columns=columns or [],
            where=filter or "",
            sheet=sheet,
        )
        return Slice(
            file=path,
            sheet=reply.sheet,
            columns=reply.columns,
            rows=reply.rows,
            next_offset=offset + len(reply.rows) if reply.more else None,
            note=reply.note,
        )

    @tool(title="Run Python over the data")
    async def run(
        self,
        session: Session,
        context: CallContext,
        code: Annotated[
            str,
            Field(min_length=1, description="Python source; the value of the last expression is returned."),
        ],
        return_vars: Annotated[
            list[str] | None, Field(max_length=50, description="Names of variables whose values to return.")
        ] = None,
        timeout: Annotated[float | None, Field(gt=0, description="Time limit in seconds.")] = None,
    ) -> DataRan:
        """Run Python code over the data files and return its value, output, error, tables, plots and variables.

        Use it to clean, join, aggregate and plot, with pandas, numpy, duckdb or matplotlib. The data is in the directory
        returned by data_inspect and is read-only; write files into the working directory. Variables persist between
        calls; the session is the same as that of code_run. Plots are shown automatically.
        """
        try:
            ran = await self._code.run(session, context, code, timeout)
        except ToolFailure as failure:
            message = failure.message.replace("code_run:", "data_run:", 1)
            raise ToolFailure(failure.kind, message, failure.data) from None
        returned: dict[str, object] = {}
        if return_vars and not ran.state_lost:
            returned = await self._returned(session, context, return_vars)
        missing = [name for name in return_vars or () if name not in returned]
        return DataRan(**ran.model_dump(), returned=returned, missing=missing)

    @staticmethod
    async def _returned(session: Session, context: CallContext, names: list[str]) -> dict[str, object]:
        # An anonymous function, so that no name is left in the session.
        source = (
            f"(lambda s: (exec({_returning()!r}, s), display(s['Returned'](globals(), {names!r}))))({{}});"
        )
        instance = await session.instance()
        result = await instance.run("python", source, timeout=context.run_seconds())
        limit = session.get(DataSettings).result_bytes
        for display in result.displays:
            if display.mime == VALUES_MIME and len(display.data) <= limit:
                try:
                    values: object = await decode_untrusted(display.data, json.loads)
                except FrameError:
                    continue
                if is_object(values):
                    return {name: values[name] for name in names if name in values}
        return {}


async def _ask(
    tool: str,
    kind: type[M],
    session: Session,
    context: CallContext,
    file: str | None,
    folder: str | None,
    **request: object,
) -> tuple[M, str]:
    """Query a file or a directory; return the reply and the path."""
    settings = session.get(DataSettings)
    seconds = context.run_seconds(settings.inspect_seconds) or settings.inspect_seconds
    defaults: dict[str, object] = {
        "memory": settings.memory_bytes,
        "files": settings.files,
        "file_seconds": settings.file_seconds,
        "sheet": None,
        "columns": [],
        "where": "",
        "offset": 0,
        "rows": settings.rows,
        "bytes": settings.result_bytes,
    }
    paths = session.get(DataDirectory).candidates(file, folder)
    # A value of a row has at least one byte.
    more = settings.result_bytes if kind is ReadRows else 0
    limits = JsonLimits(_LIMITS.max_bytes + more, _LIMITS.max_values + more)
    return await ask(tool, kind, await session.instance(), {**defaults, **request}, paths, seconds, limits)


@cache
def _returning() -> str:
    return (Path(__file__).parent / "inside/_returned.py").read_text(encoding="utf-8")
