"""The tools of the code backend."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter

from agentflow.errors import ErrorKind, ToolFailure
from mcp_servers.code._install import InstalledPackages, InstallSettings, install
from mcp_servers.code._results import (
    CodeError,
    CodeQueryResult,
    CodeResult,
    DisplayedTable,
    InstallResult,
    QueryError,
    RichOutput,
    ShownImage,
    Variable,
    VariableList,
)
from mcp_servers.core._backend import Backend
from mcp_servers.core._call import CallContext, Image
from mcp_servers.core._running import (
    RunSettings,
    check_outcome,
    progress_of,
    read_settings,
    sendable,
    shown,
)
from mcp_servers.core._sessions import Session
from mcp_servers.core._tool import tool
from runtimes import MIB, Display, FrameError, JsonLimits, Outcome, OutputSink, RunResult, decode_untrusted

TABLE_MIME = "application/vnd.agentflow.table+json"
"""MIME type of a structured table."""

VARIABLES_MIME = "application/vnd.agentflow.variables+json"
"""MIME type of the list of session variables."""

MAX_TABLE_BYTES = 4 * MIB
"""Most JSON of the tables of one run; further ones are shown as text."""

_LIMITS = JsonLimits(max_bytes=24 * MIB, max_values=1_000_000)
M = TypeVar("M")


_LOST = (
    "The Python session has ended: the next call runs in a new one, without the variables; files are kept."
)
_WAS_LOST = (
    "The Python session had ended before: this ran in a new one, without the variables; files are kept."
)
_INSIDE = '__import__("_agentflow_session")'

Seconds = Annotated[float | None, Field(gt=0, description="Seconds after which the run is killed.")]


class CodeSettings(RunSettings):
    """Settings of the code backend."""

    images: int = Field(default=10, ge=0)
    """Maximum number of images shown in a result; the others are kept as resources."""
    rows: int = Field(default=100, ge=1)
    """Default number of rows that `code_sql` returns."""
    install: InstallSettings | None = None
    """Enables `code_install`; without it, installing is denied."""


class CodeBackend(Backend):
    """A Python session that keeps its variables, imports and functions from call to call."""

    name = "code"
    description = "Run Python code in a session that keeps its state; query files with SQL."
    settings_model = CodeSettings
    cards = Path(__file__).with_name("cards.toml")
    reserved = frozenset({"install"})

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        """Read the session's settings; the interpreter starts with the first code."""
        session.put(read_settings(CodeSettings, self.name, settings))
        session.put(InstalledPackages())

    async def fork(self, session: Session, forked: Session) -> None:
        """Copy the settings; the interpreter was forked with the instance."""
        forked.put(session.get(CodeSettings))
        forked.put(replace(session.get(InstalledPackages)))

    @tool(title="Run Python code")
    async def run(
        self,
        session: Session,
        context: CallContext,
        code: Annotated[str, Field(description="Python source; the value of a last expression is shown.")],
        timeout: Seconds = None,
    ) -> CodeResult:
        """Run Python code in the session and return its last value, output, error, tables and plots.

        Use it to compute, analyse data and plot. Variables, imports and functions last from call to call, as in a
        notebook; `await` works at the top level. Matplotlib plots and data frames are shown automatically. Code
        that raises is not a failed call: look at error.
        """
        result = await self._run(code, session, context, timeout, progress_of(context))
        ran = await self._ran(result, session, context)
        check_outcome("code_run", result.outcome, result.detail, ran.note, ran)
        return ran

    @tool(title="Query files with SQL")
    async def sql(
        self,
        session: Session,
        context: CallContext,
        query: Annotated[
            str,
            Field(description="DuckDB SQL. Name a file as a table: SELECT * FROM 'data/sales.csv'."),
        ],
        limit: Annotated[int | None, Field(ge=1, le=10_000, description="How many rows to return.")] = None,
        timeout: Seconds = None,
    ) -> CodeQueryResult:
        """Run a DuckDB SQL query over files of the workspace and return the result as a table.

        Use it to explore, join and aggregate CSV, Parquet and JSON files, and data frames of the Python session by
        their variable names. COPY (...) TO 'file.parquet' writes a file. A query that fails is not a failed call:
        look at error.
        """
        rows = limit or session.get(CodeSettings).rows
        source = f"{_INSIDE}.sql({sendable('code_sql', query)!r}, {rows});"
        result = await self._run(source, session, context, timeout)
        queried = await self._queried(result)
        check_outcome("code_sql", result.outcome, result.detail, _note(result), queried)
        return queried

    @tool(title="List variables", read_only=True)
    async def variables(self, session: Session, context: CallContext) -> VariableList:
        """List the variables of the Python session with their types and a short summary of each.

        Use it to see what exists before you continue earlier work.
        """
        source = f"{_INSIDE}.show_variables();"
        result = await self._run(source, session, context, None)
        variables = VariableList(variables=await _first(_variables, VARIABLES_MIME, result.displays) or [])
        check_outcome("code_variables", result.outcome, result.detail, _note(result), variables)
        return variables

    @tool(title="Install Python packages", open_world=True, destructive=False, idempotent=True)
    async def install(
        self,
        session: Session,
        context: CallContext,
        packages: Annotated[
            list[str],
            Field(
                min_length=1, max_length=50, description="Requirements: 'rich', 'rich>=14', 'rich[jupyter]'."
            ),
        ],
    ) -> InstallResult:
        """Install Python packages into the session, from wheels of the server's package index.

        Use it when an import fails because the package is missing. Denied unless the server allows it.
        """
        allowed = session.get(CodeSettings).install
        if allowed is None:
            message = (
                "code_install: installing packages is off on this server. The operator can allow it "
                "with the setting `install: {index_url: …}` of the backend `code`."
            )
            raise ToolFailure(ErrorKind.DENIED, message)
        return await install(packages, allowed, session, context)

    @staticmethod
    async def _run(
        source: str,
        session: Session,
        context: CallContext,
        timeout: float | None,
        on_output: OutputSink | None = None,
    ) -> RunResult:
        instance = await session.instance()
        packages = session.get(InstalledPackages)
        await packages.restore(instance)
        limit = context.run_seconds(timeout or session.get(CodeSettings).timeout)
        result = await instance.run("python", source, timeout=limit, on_output=on_output)
        if result.state_lost:
            packages.on_path = False
        return result

    async def _ran(self, result: RunResult, session: Session, context: CallContext) -> CodeResult:
        settings = session.get(CodeSettings)
        limit = settings.output_characters
        showing = CollectedDisplays(settings, session, context)
        for display in result.displays:
            await showing.add(display)
        value = result.value
        return CodeResult(
            value=None if value is None else shown(value, "value.txt", limit, session, context),
            stdout=shown(result.stdout, "stdout.txt", limit, session, context),
            stderr=shown(result.stderr, "stderr.txt", limit, session, context),
            error=_failure(result),
            tables=showing.tables,
            images=showing.images,
            displays=showing.others,
            state_lost=result.state_lost,
            note=_note(result),
        )

    @staticmethod
    async def _queried(result: RunResult) -> CodeQueryResult:
        table, failure = await _first(_table, TABLE_MIME, result.displays), _failure(result)
        if failure is not None:
            return CodeQueryResult(error=QueryError(type=failure.type, message=failure.message))
        if table is None:
            return CodeQueryResult(error=QueryError(type="NoResult", message="the session showed no table"))
        return CodeQueryResult(columns=table.columns, rows=table.rows, total_rows=table.total_rows)


def _failure(result: RunResult) -> CodeError | None:
    error = result.error
    if error is not None:
        return CodeError(type=error.type, message=error.message, traceback=error.traceback)
    if result.outcome is Outcome.INTERRUPTED:
        return CodeError(type="KeyboardInterrupt", message="interrupted", traceback="")
    if result.outcome is Outcome.ENDED:
        return CodeError(type="SessionEnded", message=result.detail or _LOST, traceback="")
    return None


def _note(result: RunResult) -> str:
    if result.fresh:
        return _WAS_LOST
    return _LOST if result.state_lost else ""


_PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


_table = TypeAdapter(DisplayedTable)


_variables = TypeAdapter(list[Variable])


@dataclass(slots=True)
class CollectedDisplays:
    """Displayed output of one run."""

    settings: CodeSettings
    """Settings of the session."""
    session: Session
    """The session, which keeps long texts and all images."""
    context: CallContext
    """The call, which shows images."""
    tables: list[DisplayedTable] = field(default_factory=list[DisplayedTable])
    """Tables."""
    images: list[ShownImage] = field(default_factory=list[ShownImage])
    """Images, which are shown beside the data."""
    others: list[RichOutput] = field(default_factory=list[RichOutput])
    """Other output, as text."""
    _table_bytes: int = MAX_TABLE_BYTES

    async def add(self, display: Display) -> None:
        """Add one display."""
        if display.mime in _PICTURES:
            self._add_picture(display)
            return
        if display.mime == TABLE_MIME and len(display.data) <= self._table_bytes:
            self._table_bytes -= len(display.data)
            table = await _parsed(_table, display)
            if table is not None:
                self.tables.append(table)
                return
        text = display.data.decode("utf-8", "replace")
        cut = shown(text, "display.txt", self.settings.output_characters, self.session, self.context)
        self.others.append(RichOutput(mime=display.mime, text=cut))

    def _add_picture(self, display: Display) -> None:
        number = len(self.images) + 1
        link = self.session.keep(f"picture-{number}.{_PICTURES[display.mime]}", display.mime, display.data)
        self.context.show(Image(display.data, display.mime) if number <= self.settings.images else link)
        self.images.append(ShownImage(mime=display.mime, size=len(display.data), resource=link.uri))


async def _first(adapter: TypeAdapter[M], mime: str, displays: tuple[Display, ...]) -> M | None:
    """Return the first valid value among the displays of that type."""
    for display in displays:
        if display.mime == mime and (value := await _parsed(adapter, display)) is not None:
            return value
    return None


async def _parsed(adapter: TypeAdapter[M], display: Display) -> M | None:
    # A display is what the session's code makes of it.
    try:
        return await decode_untrusted(display.data, adapter.validate_json, _LIMITS)
    except FrameError:
        return None
