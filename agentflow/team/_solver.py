"""Solver for single questions, `construct_solver(...).solve(...)`, with the documented names of engines, tools and outputs."""

import mimetypes
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from anyio.from_thread import start_blocking_portal
from msgspec.structs import asdict

from agentflow.actors import Supervisor
from agentflow.engine import EpisodeEngine, EpisodeSettings
from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.journal import MemoryPage
from agentflow.models import (
    OFFLINE,
    PROVIDERS,
    SERVER_PREFIXES,
    Accounts,
    Call,
    Completion,
    Message,
    Model,
    ModelEndpoints,
    ModelSettings,
    ModelWrapper,
    RejectionMemory,
    TextPart,
    ask_model,
    make_model,
)
from agentflow.runs import CORPUS_TOOLS, USUAL_TOOLS
from agentflow.sandbox import Sandbox, SandboxSettings, Tool
from agentflow.settings import read_environment
from agentflow.team._labelled_steps import DOCUMENTED_TOOLS
from agentflow.team._model_tools import model_tools
from agentflow.team._rendering import call_line, image_parts, visible_images
from agentflow.team._team import Team
from agentflow.team._team_agent import TeamAgent
from agentflow.telemetry import get_logger
from agentflow.trace import Episode, MemoryBlobStore, Task, Turn
from mcp_servers import BACKENDS

logger = get_logger(__name__)
_KEY: Final = PROVIDERS["openai"].key_variable
T = TypeVar("T")
SolverOutput: TypeAlias = Literal["base", "final", "direct"]
_PROMPTED = {"planner": "action_predictor", "executor": "tool_commander", "verifier": "verifier"}
DOCUMENTED_MODEL: Final = "gpt-4o"
"""Model of a solver without arguments, if there is a key for it."""
_NO_MODEL: Final = (
    "construct_solver: no model is set, and the offline engine only answers questions about the bundled documents; "
    "set OPENAI_API_KEY, or name a model: construct_solver('claude-sonnet-4-5')"
)
_SolverRole: TypeAlias = Literal["planner", "analyst", "verifier", "executor"]
_OUTPUTS: tuple[SolverOutput, ...] = get_args(SolverOutput)
_ROLES: tuple[_SolverRole, ...] = get_args(_SolverRole)


def construct_solver(
    llm_engine_name: str | None = None,
    enabled_tools: Sequence[str] = ("all",),
    tool_engine: Sequence[str] = ("Default",),
    model_engine: Sequence[str] = ("trainable", "trainable", "trainable", "trainable"),
    output_types: str = "final,direct",
    max_steps: int = 10,
    max_time: float = 300,
    max_tokens: int = 4000,
    temperature: float = 0.0,
    base_url: str | None = None,
    verbose: bool = False,
    sandbox_url: str | None = None,
    root_cache_dir: str | PathLike[str] | None = None,
) -> "Solver":
    """Create a solver: a team that answers one question at a time in this process.

    Without a model it uses `gpt-4o` if `OPENAI_API_KEY` is set, else the offline engine, which knows the bundled documents.

    Example::

        solver = construct_solver(max_steps=3)
        print(solver.solve("In which year was Skyreach Observatory founded?")["direct_output"])

    :param llm_engine_name: the model: `provider/model`, or a documented name such as `vllm-…` or `dashscope`.
    :param enabled_tools: documented tool names or ours; `all` selects the usual ones that are usable here.
    :param tool_engine: models of tools with a model inside: one per tool in the same order, or one for all;
        `Default` and `self` mean `llm_engine_name`.
    :param model_engine: models of planner, analyst and generator, verifier, executor; `trainable` means
        `llm_engine_name`.
    :param output_types: comma-separated list of `base`, `final` and `direct`.
    :param max_steps: maximum number of turns.
    :param max_time: time limit in seconds, including the answer.
    :param max_tokens: maximum tokens of one model answer.
    :param temperature: temperature of all models.
    :param base_url: endpoint that serves `llm_engine_name`.
    :param verbose: log every turn.
    :param sandbox_url: a sandbox server to use instead of a sandbox in this process.
    :param root_cache_dir: folder of the cached search results and pages; by default in the user's cache directory.
    :raises ConfigurationError: if an argument cannot be used.
    """
    if root_cache_dir is not None and sandbox_url is not None:
        raise ConfigurationError(
            "root_cache_dir: the server at sandbox_url has its own cache; remove one of the two"
        )
    words = [word.strip() for word in output_types.split(",") if word.strip()]
    if unknown := next((word for word in words if word not in _OUTPUTS), None):
        raise ConfigurationError(f"output_types: unknown type {unknown!r}; use {', '.join(_OUTPUTS)}")
    if len(model_engine) != len(_ROLES):
        raise ConfigurationError(f"model_engine: give one model for each of {', '.join(_ROLES)}")
    if len(tool_engine) not in (1, len(enabled_tools)):
        raise ConfigurationError(
            "tool_engine: give one model for all tools, or one for each of enabled_tools"
        )
    defaults = {"trainable", "self", "Default"}
    main = llm_engine_name or (DOCUMENTED_MODEL if base_url or read_environment().get(_KEY) else OFFLINE)

    def settings(engine: str) -> ModelSettings:
        engine = main if engine in defaults else engine
        url = (base_url or "") if engine == main else ""
        name = served_name(engine) if url else engine
        return ModelSettings(name=name, base_url=url, temperature=temperature, max_tokens=max_tokens)

    try:
        models: dict[_SolverRole, ModelSettings] = {
            role: settings(engine) for role, engine in zip(_ROLES, model_engine, strict=True)
        }
        engines = tool_engine if len(tool_engine) > 1 else [*tool_engine] * len(enabled_tools)
        chosen = [
            _EnabledTool(tool_name(name), settings(engine))
            for name, engine in zip(enabled_tools, engines, strict=True)
        ]
        limits = EpisodeSettings(max_turns=max_steps, max_seconds=max_time)
    except ConfigurationError as error:
        raise ConfigurationError(f"construct_solver: {str(error).partition(': ')[2]}") from None
    outputs: list[SolverOutput] = [output for output in _OUTPUTS if words.count(output)]
    cache = None if root_cache_dir is None else Path(root_cache_dir)
    refusal = _NO_MODEL if main == OFFLINE and not llm_engine_name else ""
    return Solver(models, chosen, limits, outputs, verbose, sandbox_url, cache, refusal)


class _EnabledTool(NamedTuple):
    name: str
    engine: ModelSettings


class _SolverResources(NamedTuple):
    team: Team
    planner: Model
    sandbox: Sandbox
    tools: list[Tool]
    blobs: "MemoryBlobStore"
    prompts: dict[str, list[str]]


@dataclass(frozen=True, eq=False)
class Solver:
    """Team that answers one question at a time, each with its own memory and sandbox.

    Created by `construct_solver`; see docs/team.md.
    """

    _models: dict[_SolverRole, ModelSettings]
    _enabled: Sequence[_EnabledTool]
    _settings: EpisodeSettings
    _outputs: Sequence[SolverOutput]
    _verbose: bool
    _sandbox_url: str | None
    _cache: Path | None = None
    _refusal: str = ""
    _memory: RejectionMemory = field(default_factory=RejectionMemory)

    def solve(self, question: str, image_path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """Answer a question; the result has `direct_output`, `final_output` and a record of the turns.

        It runs in its own thread, so it also works inside a running event loop, for example in a notebook.

        :param image_path: an image that belongs to the question.
        :raises ConfigurationError: if a model, a tool or the image cannot be used.
        :raises RunStopped: if a model cannot be used any more.
        """
        with start_blocking_portal() as portal:
            future = portal.start_task_soon(self.asolve, question, image_path)
            try:
                return future.result()
            except BaseException:
                # Interrupted while waiting: cancel the work and let it end in order.
                future.cancel()
                raise

    async def asolve(self, question: str, image_path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """Answer a question asynchronously; see `solve`."""
        image = None if image_path is None else _read(Path(image_path))
        async with self._open() as resources:
            images = () if image is None else (await resources.blobs.put(*image),)
            task = Task(index=0, id="question", question=question, images=images)
            result: dict[str, Any] = {
                "query": question,
                "image": None if image_path is None else str(image_path),
            }
            if "base" in self._outputs:
                result["base_response"] = await _plain_answer(task, resources)
                resources.prompts.clear()
            engine = EpisodeEngine(
                agent=TeamAgent(resources.team), tools=resources.tools, settings=self._settings
            )
            episode = await engine.solve(task, resources.sandbox, MemoryPage())
        if self._refusal and not episode.answer:
            raise ConfigurationError(self._refusal)
        if self._verbose:
            _log_turns(episode)
        return {**result, **result_of(episode, self._outputs, resources.prompts)}

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[_SolverResources]:
        accounts, endpoints, blobs = Accounts(), ModelEndpoints(memory=self._memory), MemoryBlobStore()
        async with AsyncExitStack() as stack:
            opened: list[tuple[ModelSettings, Model]] = []

            async def model(settings: ModelSettings) -> Model:
                for opened_settings, there in opened:
                    if opened_settings == settings:
                        return there
                made = make_model(settings, accounts, endpoints=endpoints)
                opened.append((settings, await stack.enter_async_context(made)))
                return opened[-1][1]

            prompts: dict[str, list[str]] = {}
            roles = {
                role: PromptRecorder(await model(settings), prompts)
                for role, settings in self._models.items()
            }
            inside = {tool.name: await model(tool.engine) for tool in self._with_models()}
            team = Team({**roles, "generator": roles["analyst"]}, blobs=blobs, workers=8)
            await stack.enter_async_context(Supervisor(team.specs(), name="solver"))
            sandbox = await stack.enter_async_context(self._sandbox(inside))
            yield _SolverResources(
                team, roles["planner"], sandbox, await self._tools(sandbox), blobs, prompts
            )

    @property
    def _offline(self) -> bool:
        return self._models["planner"].name == OFFLINE

    def _with_models(self) -> list[_EnabledTool]:
        """Return the enabled tools with a model inside."""
        inside = ("base_generator", "python_coder")
        if self._sandbox_url is not None:
            return []
        named = [tool for tool in self._enabled if tool.name in inside]
        every = next((tool for tool in self._enabled if tool.name == "all"), None)
        if every is not None and not self._offline:
            named += [_EnabledTool(name, every.engine) for name in inside]
        return list({tool.name: tool for tool in reversed(named)}.values())

    def _sandbox(self, inside: dict[str, Model]) -> Sandbox:
        if self._sandbox_url is not None:
            return Sandbox(self._sandbox_url)
        tools = model_tools(
            base_generator=inside.get("base_generator"), python_coder=inside.get("python_coder")
        )
        backends: dict[str, dict[str, object]] = {}
        if self._cache is not None:
            backends["web"] = {"cache": {"folder": str(self._cache.absolute())}}
        return Sandbox(SandboxSettings(backends=backends), backends=[*BACKENDS, *tools])

    async def _tools(self, sandbox: Sandbox) -> list[Tool]:
        """Return the enabled tools; `all` skips those that are unusable here.

        :raises ConfigurationError: if a tool given by name is unusable.
        """
        usable: dict[str, Tool] = {}
        for enabled in self._enabled:
            usual = CORPUS_TOOLS if self._offline else USUAL_TOOLS
            for name in usual if enabled.name == "all" else (enabled.name,):
                try:
                    tools = await sandbox.tools(name)
                    reason = next((tool.unusable for tool in tools if tool.unusable), "")
                except ToolFailure as failure:
                    tools, reason = [], failure.message
                if not reason:
                    usable |= {tool.name: tool for tool in tools}
                elif enabled.name == "all":
                    logger.warning("tool skipped", tool=name, reason=reason)
                else:
                    raise ConfigurationError(f"enabled_tools: {name} cannot be used: {reason}")
        return list(usable.values())


def _read(path: Path) -> tuple[bytes, str]:
    mime = mimetypes.guess_type(path.name)[0] or ""
    if not mime.startswith("image/"):
        raise ConfigurationError(
            f"image_path: {path.name} has no image extension; give a png, jpeg, gif or webp"
        )
    try:
        return path.read_bytes(), mime
    except OSError as error:
        raise ConfigurationError(f"image_path: {path}: {error.strerror}") from None


async def _plain_answer(task: Task, resources: _SolverResources) -> str:
    """Return the answer of the planner's model to the question alone."""
    images = await visible_images(resources.planner, task.images, resources.blobs)
    message = Message("user", (TextPart(task.question), *image_parts(task.images, images)))
    reply = await ask_model(resources.planner, Call(role="planner", messages=(message,), reply=str))
    return reply.value or ""


def _log_turns(episode: Episode) -> None:
    for turn in episode.turns:
        logger.info("turn", number=turn.number, tool=turn.step.tool_name, goal=turn.step.sub_goal)
    logger.info("answered", ending=str(episode.ending), answer=episode.answer, seconds=episode.seconds)


def served_name(engine: str) -> str:
    """Return the name of a documented engine at its endpoint: without a prefix that names a server."""
    return next(
        (engine.removeprefix(prefix) for prefix in SERVER_PREFIXES if engine.startswith(prefix)), engine
    )


def tool_name(name: str) -> str:
    """Return our name of a documented tool; any other name is returned unchanged."""
    return DOCUMENTED_TOOLS.get(name, name)


class PromptRecorder(ModelWrapper):
    """Model that records its prompts by role, in order."""

    def __init__(self, model: Model, prompts: dict[str, list[str]]) -> None:
        super().__init__(model)
        self._prompts = prompts

    async def complete(self, call: Call[T]) -> Completion[T]:
        messages = (f"[{message.role}]\n{_text(message)}" for message in call.messages)
        self._prompts.setdefault(call.role, []).append("\n\n".join(messages))
        return await self._model.complete(call)


def result_of(
    episode: Episode, outputs: Sequence[SolverOutput], prompts: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return an episode under the documented keys.

    :param prompts: prompts of each role, in order.
    """
    analysis = episode.analysis
    result: dict[str, Any] = {
        "query_analysis": {} if analysis is None else asdict(analysis),
        "memory": {f"Action Step {turn.number}": _remembered(turn) for turn in episode.turns},
        "step_count": len(episode.turns),
        "execution_time": round(episode.seconds, 3),
        "ending": str(episode.ending),
        "failure": None if episode.failure is None else episode.failure.message,
    }
    for turn in episode.turns:
        decision = turn.decision
        result[f"action_predictor_{turn.number}_response"] = asdict(turn.step)
        if turn.reasoning:
            result[f"action_predictor_{turn.number}_reasoning"] = turn.reasoning
        result[f"tool_commander_{turn.number}_response"] = (
            "" if turn.action is None else call_line(turn.action)
        )
        result[f"tool_result_{turn.number}"] = turn.result
        result[f"verifier_{turn.number}_response"] = None if decision is None else decision.analysis
    if "final" in outputs:
        result["final_output"] = "" if episode.solution is None else episode.solution.working
    if "direct" in outputs:
        result["direct_output"] = episode.answer
    return {**result, **_turn_prompts(episode, prompts)}


def _turn_prompts(episode: Episode, prompts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the prompts of each turn; of a repeated call, the last one."""
    turn_prompts: dict[str, str] = {}
    for role, name in _PROMPTED.items():
        keys = [exchange.key for exchange in episode.exchanges if exchange.role == role]
        for key, shown in zip(keys, prompts.get(role, ()), strict=False):
            turn_prompts[f"{name}_{key.partition('/')[0]}_prompt"] = shown
    return turn_prompts


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _remembered(turn: Turn) -> dict[str, object]:
    return {
        "tool_name": turn.step.tool_name,
        "sub_goal": turn.step.sub_goal,
        "command": {} if turn.action is None else turn.action.arguments,
        "result": turn.result,
    }
