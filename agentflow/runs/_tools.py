"""Choice of the tools of a run: found and tested before the first model call; their record in its journal."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError, IsolationUnavailable, ToolFailure
from agentflow.runs._config import CORPUS_TOOLS, RunConfig
from agentflow.sandbox import Sandbox, SandboxSettings, Tool, argument_of
from agentflow.telemetry import get_logger
from agentflow.trace import ToolCard
from mcp_servers import BACKENDS, load_backend

logger = get_logger(__name__)


class ChosenTools(NamedTuple):
    """Tools of a run."""

    tools: list[Tool]
    """The tools, in the order of backends and of their tools."""
    dropped: dict[str, str]
    """Reasons of requested tools that can't be used, by name."""
    corpus: str = ""
    """One line about the documents that rag searches, with the skipped files; empty without rag."""
    inputs: tuple[str, ...] = ()
    """One line for each input folder or file, as the tools see it."""
    optional: frozenset[str] = frozenset()
    """Those of `dropped` that no setting names, or that belong to no resource of the settings: a run does without them."""


def explores_bundled_corpus(config: RunConfig) -> bool:
    """Return true if the settings name nothing to explore, so that the bundled corpus is used."""
    return not (config.available_tools or config.names_resources)


def sandbox_settings(config: RunConfig) -> tuple[SandboxSettings, dict[str, str]]:
    """Return the sandbox settings of a run, with all backends; a backend starts at its first use.

    :return: the settings, and the reasons of backends whose settings can't be used, by name.
    """
    settings = config.sandbox
    settings_by_backend = settings.backend_settings
    broken: dict[str, str] = {}
    backends = {
        name: settings_by_backend.get(name, {})
        for name in [*BACKENDS, *(name for name in settings_by_backend if ":" in name)]
    }
    for name in settings_by_backend if settings.server_url is None else ():
        if name not in backends or not backends[name]:
            continue
        try:
            load_backend(name).check(backends[name])
        except ConfigurationError as error:
            broken[name] = str(error)
            backends[name] = {}
    return settings.model_copy(update={"backends": backends}), broken


def input_lines(settings: SandboxSettings) -> tuple[str, ...]:
    """Return one line for each input folder or file that sessions see, by its path in the session.

    Paths of this machine are not shown. Nothing is known about the folders of a server.
    """
    if settings.server_url is not None:
        return ()
    mounts = dict(settings.mounts)
    lines: list[str] = []
    for name, backend_settings in settings.backend_settings.items():
        # A backend whose settings can't be used is reported when tools are chosen.
        with suppress(ConfigurationError, ToolFailure):
            if backend_settings:
                mounts |= load_backend(name).mounts(backend_settings, {})
        documents = (
            [str(backend_settings[key]) for key in _DOCUMENTS if backend_settings.get(key)]
            if name == "document"
            else []
        )
        for path in map(Path, documents):
            how = (
                "its documents are named by their path in it" if path.is_dir() else "a document of that name"
            )
            lines.append(f"{path.name} (for the document tools): {how}")
    mounted = (f"{inside} (read-only): {_entries(Path(path))}" for inside, path in mounts.items())
    # Names of files may contain anything.
    return tuple("".join(c if c.isprintable() else "?" for c in line) for line in (*mounted, *lines))


_DOCUMENTS = ("folder", "file", "file_path", "seed_path")
"""Settings of the document backend that name its documents."""
_MAX_ENTRIES = 20
_MAX_NAME = 80


def _entries(path: Path) -> str:
    """Return the names in a folder, sorted."""
    if not path.is_dir():
        return "a file"
    try:
        names = sorted(entry.name[:_MAX_NAME] + "/" * entry.is_dir() for entry in path.iterdir())
    except OSError:
        return "a folder"
    more = f" and {len(names) - _MAX_ENTRIES} more" if len(names) > _MAX_ENTRIES else ""
    return f"a folder with {', '.join(names[:_MAX_ENTRIES]) or 'no files'}{more}"


async def choose_tools(sandbox: Sandbox, config: RunConfig, broken: dict[str, str]) -> ChosenTools:
    """Return the requested tools that work.

    :param broken: reasons of backends that are known not to work, by name.

    A known tool that does not work is left out with a message if the settings name resources and it belongs to none of them:
    a scenario over a database does not need its web search. So is one of the usual tools, if the settings name none.

    :raises ConfigurationError: if another tool does not work, unless `on_missing_tool` is `drop`; or if none is left.
    """
    if config.sandbox_server_url is not None and config.on_missing_tool == "refuse":
        await _check_resources(sandbox, config)
    named = config.available_tools or list(config.resources)
    wanted = named or config.default_tools
    usual = not named and wanted != CORPUS_TOOLS
    working: dict[str, Tool] = {}
    dropped: dict[str, str] = {}
    optional: set[str] = set()
    sources = config.sandbox
    resources = {*sources.backend_settings, *sources.apis} if config.resources else set[str]()
    broken = dict(broken)
    for name in wanted:
        try:
            tools = await sandbox.tools(name)
            reason = await _trouble(sandbox, tools, broken)
        except ToolFailure as failure:
            tools, reason = [], failure.message
        if resources and tools and resources.isdisjoint(tool.backend for tool in tools):
            optional.add(name)
        if not reason:
            working |= {tool.name: tool for tool in tools}
        elif usual:
            dropped[name] = reason
            optional.add(name)
        elif config.on_missing_tool == "drop" or name in optional:
            dropped[name] = reason
            logger.warning("tool dropped", tool=name, reason=reason)
        else:
            fix = "fix it, remove it, or set on_missing_tool=drop"
            raise ConfigurationError(f"available_tools: {name} can't be used: {reason.rstrip('.')}; {fix}")
    reasons = "; ".join(
        f"{name}: {reason.removeprefix(f'{name}: ').rstrip('.')}" for name, reason in dropped.items()
    )
    if usual and dropped:
        logger.warning("usual tools are left out", reasons=reasons)
    if not working:
        raise ConfigurationError(
            f"available_tools: none is left to explore with ({reasons}); name one that works"
        )
    ranks = {name: rank for rank, name in enumerate(BACKENDS)}
    used = sorted(
        {tool.backend for tool in working.values()}, key=lambda name: (ranks.get(name, len(ranks)), name)
    )
    order = [tool.route for backend in used for tool in await sandbox.tools(backend)]
    tools = sorted(working.values(), key=lambda tool: order.index(tool.route))
    corpus = await _corpus(sandbox) if "rag" in used else ""
    return ChosenTools(tools, dropped, corpus, optional=frozenset(optional & dropped.keys()))


async def _corpus(sandbox: Sandbox) -> str:
    """Return one line about the documents that are searched."""
    stats = (await sandbox.execute("rag:stats")).data
    summary = stats.get("summary")
    if not isinstance(summary, str):  # a server of an earlier version
        return ""
    return f"rag: {summary}"


async def _check_resources(sandbox: Sandbox, config: RunConfig) -> None:
    """Refuse resources that the server does not have; those of this process are known when settings are loaded."""
    for name in config.resources:
        try:
            await sandbox.tools(f"{name}:*")
        except ToolFailure as failure:
            reason = failure.message.rstrip(".")
            raise ConfigurationError(
                f"resource_types: {name}: the server at {config.sandbox_server_url}: {reason}"
            ) from None


async def _trouble(sandbox: Sandbox, tools: Sequence[Tool], broken: dict[str, str]) -> str:
    """Return the reason that a tool or its backend does not work, or an empty text."""
    # First the reason why the settings of a backend can't be used: it is loaded without them.
    if wrong := next((broken[tool.backend] for tool in tools if broken.get(tool.backend)), ""):
        return wrong
    if unusable := next((tool for tool in tools if tool.unusable), None):
        return f"{unusable.name}: {unusable.unusable}"
    for backend in dict.fromkeys(tool.backend for tool in tools):
        if backend not in broken:
            broken[backend] = ""
            try:
                await sandbox.warmup(backend)
            except (ToolFailure, ConfigurationError, IsolationUnavailable) as error:
                broken[backend] = " ".join(str(error).split())
        if broken[backend]:
            return broken[backend]
    return ""


def unused_arguments(tools: Sequence[Tool], fixed: Sequence[Mapping[str, object]]) -> str:
    """Return one line about fixed arguments of seeds or tasks that no tool takes, or an empty text.

    See docs/synthesis.md.
    """
    schemas = [tool.input_schema.get("properties") for tool in tools]
    accepted = {name for schema in schemas if is_object(schema) for name in schema}
    names = dict.fromkeys(
        name for arguments in fixed for name in arguments if argument_of(name, accepted) is None
    )
    if not names:
        return ""
    count = sum(any(name in names for name in arguments) for arguments in fixed)
    return f"kwargs that no tool takes, in {count} of {len(fixed)}: {', '.join(names)}"


RUN_START: Final = "start"
"""Key of `RunStart` in the journal."""


RECORDS: Final = 1
"""Version of the records on the pages of a run. A change that a resumed run could not read raises it."""


class RunStart(Struct, frozen=True, kw_only=True):
    """Beginning of a run. That of its first process is kept."""

    kind: str
    """`synthesis` or `rollout`."""
    started: float
    """Seconds since 1970."""
    tools: tuple[ToolCard, ...] = ()
    """Tools with their schemas, with the arguments that a seed may fix."""
    inputs: tuple[str, ...] = ()
    """Input files and folders as the tools see them, one line each."""
    records: int = 0
    """Version of its records; 0 before they were numbered."""


def check_records(start: RunStart) -> None:
    """Check that a run can be resumed.

    :raises ConfigurationError: if it was begun with records of another version.
    """
    if start.records != RECORDS:
        raise ConfigurationError(
            f"output_dir: the records of this run are of version {start.records}, and this program writes version "
            f"{RECORDS}: view or export the run, finish it with the program that began it, or name another output_dir"
        )


def start_of(kind: str, chosen: ChosenTools) -> RunStart:
    """Describe the beginning of a run, now."""
    tools = (
        ToolCard(
            tool.name,
            tool.description,
            dict(tool.input_schema),
            limits=tool.limits,
            practices=tool.practices,
            examples=tuple(map(dict, tool.examples)),
        )
        for tool in chosen.tools
    )
    return RunStart(kind=kind, started=time.time(), tools=tuple(tools), inputs=chosen.inputs, records=RECORDS)
