"""Which tools a run may use: found, and seen to work, before anything is asked of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agentflow.errors import ConfigurationError, IsolationUnavailable, ToolFailure
from agentflow.runs._config import RunConfig
from agentflow.sandbox import Sandbox, SandboxSettings, Tool
from agentflow.telemetry import get_logger
from mcp_servers import BACKENDS, load_backend

__all__ = ["ChosenTools", "choose_tools", "explores_bundled_corpus", "sandbox_settings"]

logger = get_logger(__name__)

CORPUS_TOOLS = ("rag_search", "rag_get")
"""What is used when nothing names a tool or a resource: search and reading, of the corpus that comes along."""


class ChosenTools(NamedTuple):
    """What a run may use."""

    tools: list[Tool]
    """The tools, in the order in which backends and their tools stand."""
    dropped: dict[str, str]
    """Names that were asked for and can't be used -> why."""


def explores_bundled_corpus(config: RunConfig) -> bool:
    """Nothing says what to explore, so it is the corpus that comes along."""
    return not (
        config.available_tools or config.resources or config.sandbox_server_url or config.sandbox_config_path
    )


def sandbox_settings(config: RunConfig) -> tuple[SandboxSettings, dict[str, str]]:
    """The sandbox of a run: every backend there is, with the settings given. None starts before its first use.

    :return: the settings, and the backends whose own settings can't be used, with why.
    """
    settings = config.sandbox
    own = settings.backend_settings
    mounts = dict(settings.mounts)
    broken: dict[str, str] = {}
    if data := own.get("files", {}).get("data_dir"):
        # Where the user knows them, so that seeds may name them as they are.
        own = {**own, "files": {name: value for name, value in own["files"].items() if name != "data_dir"}}
        place = Path(str(data)).absolute()
        mounts[str(place)] = str(place)
        if not place.is_dir():
            broken["files"] = f"data_dir: there is no folder {place}"
            del mounts[str(place)]
    backends = {name: own.get(name, {}) for name in [*BACKENDS, *(name for name in own if ":" in name)]}
    for name in own if settings.server_url is None else ():
        if name not in backends or not backends[name]:
            continue
        try:
            load_backend(name).check(backends[name])
        except ConfigurationError as error:
            broken[name] = str(error)
            backends[name] = {}
    return settings.model_copy(update={"backends": backends, "mounts": mounts}), broken


async def choose_tools(sandbox: Sandbox, config: RunConfig, broken: dict[str, str]) -> ChosenTools:
    """The tools that are asked for and work.

    :param broken: backends of which it is known already that they don't work, with why.

    :raises ConfigurationError: for one that does not, unless it is to be dropped; or if none is left.
    """
    wanted = config.available_tools or list(config.resources) or CORPUS_TOOLS
    found: dict[str, Tool] = {}
    dropped: dict[str, str] = {}
    broken = dict(broken)
    for name in wanted:
        try:
            tools = await sandbox.tools(name)
            reason = await _trouble(sandbox, tools, broken)
        except ToolFailure as failure:
            tools, reason = [], failure.message
        if not reason:
            found |= {tool.name: tool for tool in tools}
        elif config.on_missing_tool == "drop":
            dropped[name] = reason
            logger.warning("tool dropped", tool=name, reason=reason)
        else:
            mend = "mend it, take it out, or set on_missing_tool=drop"
            raise ConfigurationError(f"available_tools: {name} can't be used: {reason.rstrip('.')}; {mend}")
    if not found:
        reasons = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in dropped.items())
        raise ConfigurationError(
            f"available_tools: none is left to explore with ({reasons}); name one that works"
        )
    places = {name: place for place, name in enumerate(BACKENDS)}
    used = sorted(
        {tool.backend for tool in found.values()}, key=lambda name: (places.get(name, len(places)), name)
    )
    order = [tool.name for backend in used for tool in await sandbox.tools(backend)]
    return ChosenTools(sorted(found.values(), key=lambda tool: order.index(tool.name)), dropped)


async def _trouble(sandbox: Sandbox, tools: Sequence[Tool], broken: dict[str, str]) -> str:
    """Why one of these tools, or its backend, doesn't work; empty: they do."""
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
