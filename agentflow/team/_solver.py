"""A solver for one question at a time: `construct_solver(...).solve(...)`."""

import mimetypes
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from anyio.from_thread import start_blocking_portal
from pydantic import ValidationError

from agentflow.actors import Supervisor
from agentflow.errors import ConfigurationError, ToolFailure
from agentflow.journal import Page
from agentflow.models import (
    OFFLINE,
    Accounts,
    Call,
    Endpoints,
    Message,
    Model,
    ModelSettings,
    Text,
    make_model,
)
from agentflow.sandbox import Sandbox, Tool
from agentflow.team._asking import ask_model, seen_by
from agentflow.team._engines import CORPUS_TOOLS, USUAL_TOOLS, model_name, tool_name
from agentflow.team._model_tools import model_tools
from agentflow.team._rendering import pictured
from agentflow.team._settings import EpisodeSettings
from agentflow.team._solver_output import Heard, Output, result_of
from agentflow.team._solving import solve_task
from agentflow.team._team import Team
from agentflow.telemetry import get_logger
from agentflow.trajectory import Blob, Episode, Task
from mcp_servers import BACKENDS

__all__ = ["Solver", "construct_solver"]

logger = get_logger(__name__)

Role: TypeAlias = Literal["planner", "analyst", "verifier", "executor"]

_OUTPUTS: tuple[Output, ...] = ("base", "final", "direct")
_ROLES: tuple[Role, ...] = ("planner", "analyst", "verifier", "executor")


def construct_solver(
    llm_engine_name: str = OFFLINE,
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
) -> "Solver":
    """A team that answers questions one by one, in this process. Without arguments it needs no model.

    :param llm_engine_name: the model: `provider/model`, or a documented name such as `vllm-…` or `dashscope`.
    :param enabled_tools: tools by name, documented or ours; `all`: the usual ones, as far as they can be used here.
    :param tool_engine: models of the tools that have one inside, in the order of the tools, or one for all; `Default` and
        `self` mean `llm_engine_name`.
    :param model_engine: models of planner, analyst with generator, verifier, executor; `trainable` means `llm_engine_name`.
    :param output_types: of `base`, `final` and `direct`, with commas.
    :param max_steps: turns at most.
    :param max_time: seconds, the answer counted.
    :param max_tokens: the longest answer of a model.
    :param temperature: of all models.
    :param base_url: where `llm_engine_name` is served.
    :param verbose: log every turn.
    :param sandbox_url: a sandbox server, instead of a sandbox in this process.
    :raises ConfigurationError: if something can't be used, in one line.
    """
    outputs = [word.strip() for word in output_types.split(",") if word.strip()]
    if unknown := next((word for word in outputs if word not in _OUTPUTS), None):
        raise ConfigurationError(f"output_types: {unknown!r} is none of {', '.join(_OUTPUTS)}")
    if len(model_engine) != len(_ROLES):
        raise ConfigurationError(f"model_engine: give one for each of {', '.join(_ROLES)}")
    if len(tool_engine) not in (1, len(enabled_tools)):
        raise ConfigurationError("tool_engine: give one for all tools, or one for each of enabled_tools")
    own = {"trainable", "self", "Default"}

    def settings(engine: str) -> ModelSettings:
        engine = llm_engine_name if engine in own else engine
        url = (base_url or "") if engine == llm_engine_name else ""
        name = model_name(engine, url)
        return ModelSettings(name=name, base_url=url, temperature=temperature, max_tokens=max_tokens)

    try:
        models: dict[Role, ModelSettings] = {
            role: settings(engine) for role, engine in zip(_ROLES, model_engine, strict=True)
        }
        engines = tool_engine if len(tool_engine) > 1 else [*tool_engine] * len(enabled_tools)
        chosen = [
            _Enabled(tool_name(name), settings(engine))
            for name, engine in zip(enabled_tools, engines, strict=True)
        ]
        limits = EpisodeSettings(max_turns=max_steps, max_seconds=max_time)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(f"construct_solver: {where}: {problem['msg']}") from None
    return Solver(models, chosen, limits, cast("Sequence[Output]", outputs), verbose, sandbox_url)


class _Enabled(NamedTuple):
    name: str
    engine: ModelSettings


class _Open(NamedTuple):
    team: Team
    planner: Model
    sandbox: Sandbox
    tools: list[Tool]
    blobs: "_Blobs"
    heard: dict[str, list[str]]


class Solver:
    """Answers questions; made by `construct_solver`. Each question has a memory and a sandbox of its own."""

    def __init__(
        self,
        models: dict[Role, ModelSettings],
        enabled: Sequence[_Enabled],
        settings: EpisodeSettings,
        outputs: Sequence[Output],
        verbose: bool,
        sandbox_url: str | None,
    ) -> None:
        self._models = models
        self._enabled = enabled
        self._settings = settings
        self._outputs = outputs
        self._verbose = verbose
        self._sandbox_url = sandbox_url

    def solve(self, question: str, image_path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """Answer a question: `direct_output`, `final_output`, and how it came to that.

        It also works where a loop runs already, as in a notebook: the work has a thread of its own.

        :param image_path: a picture that belongs to the question.
        :raises ConfigurationError: if something can't be used, in one line.
        :raises RunStopped: if a model can't be used.
        """
        with start_blocking_portal() as portal:
            future = portal.start_task_soon(self.asolve, question, image_path)
            try:
                return future.result()
            except BaseException:
                # Interrupted while it waited: what runs ends in order before this goes on.
                future.cancel()
                raise

    async def asolve(self, question: str, image_path: str | PathLike[str] | None = None) -> dict[str, Any]:
        """`solve` for code that awaits."""
        image = None if image_path is None else _read(Path(image_path))
        async with self._open() as house:
            images = () if image is None else (await house.blobs.put(*image),)
            task = Task(index=0, id="question", question=question, images=images)
            said: dict[str, Any] = {
                "query": question,
                "image": None if image_path is None else str(image_path),
            }
            if "base" in self._outputs:
                said["base_response"] = await _plainly(task, house)
                house.heard.clear()
            episode = await solve_task(
                task,
                team=house.team,
                sandbox=house.sandbox,
                tools=house.tools,
                page=Page(),
                settings=self._settings,
            )
        if self._verbose:
            _tell(episode)
        return {**said, **result_of(episode, self._outputs, house.heard)}

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[_Open]:
        accounts, endpoints, blobs = Accounts(), Endpoints(), _Blobs()
        async with AsyncExitStack() as stack:
            opened: list[tuple[ModelSettings, Model]] = []

            async def model(settings: ModelSettings) -> Model:
                for known, there in opened:
                    if known == settings:
                        return there
                made = make_model(settings, accounts, endpoints=endpoints)
                opened.append((settings, await stack.enter_async_context(made)))
                return opened[-1][1]

            heard: dict[str, list[str]] = {}
            roles = {role: Heard(await model(settings), heard) for role, settings in self._models.items()}
            inside = {each.name: await model(each.engine) for each in self._with_models()}
            team = Team(
                planner=roles["planner"],
                analyst=roles["analyst"],
                executor=roles["executor"],
                verifier=roles["verifier"],
                generator=roles["analyst"],
                put_blob=blobs.put,
                blob=blobs.read,
                workers=8,
            )
            await stack.enter_async_context(Supervisor(team.specs(), name="solver"))
            sandbox = await stack.enter_async_context(self._sandbox(inside))
            yield _Open(team, roles["planner"], sandbox, await self._tools(sandbox), blobs, heard)

    @property
    def _offline(self) -> bool:
        return self._models["planner"].name == OFFLINE

    def _with_models(self) -> list[_Enabled]:
        """The tools that have a model inside."""
        inside = ("base_generator", "python_coder")
        if self._sandbox_url is not None:
            return []
        named = [each for each in self._enabled if each.name in inside]
        every = next((each for each in self._enabled if each.name == "all"), None)
        if every is not None and not self._offline:
            named += [_Enabled(name, every.engine) for name in inside]
        return list({each.name: each for each in reversed(named)}.values())

    def _sandbox(self, inside: dict[str, Model]) -> Sandbox:
        if self._sandbox_url is not None:
            return Sandbox(self._sandbox_url)
        tools = model_tools(
            base_generator=inside.get("base_generator"), python_coder=inside.get("python_coder")
        )
        return Sandbox(backends=[*BACKENDS, *tools])

    async def _tools(self, sandbox: Sandbox) -> list[Tool]:
        """The tools that were asked for. Of `all`, those that can be used here.

        :raises ConfigurationError: for one that was named and can't be used.
        """
        found: dict[str, Tool] = {}
        for each in self._enabled:
            usual = CORPUS_TOOLS if self._offline else USUAL_TOOLS
            for name in usual if each.name == "all" else (each.name,):
                try:
                    tools = await sandbox.tools(name)
                    reason = next((tool.unusable for tool in tools if tool.unusable), "")
                except ToolFailure as failure:
                    tools, reason = [], failure.message
                if not reason:
                    found |= {tool.name: tool for tool in tools}
                elif each.name == "all":
                    logger.warning("tool dropped", tool=name, reason=reason)
                else:
                    raise ConfigurationError(f"enabled_tools: {name} can't be used: {reason}")
        return list(found.values())


class _Blobs:
    """The pictures of one question."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def put(self, data: bytes, mime: str) -> Blob:
        hash = sha256(data).hexdigest()
        self._kept[hash] = data
        return Blob(hash, mime)

    async def read(self, hash: str) -> bytes:
        return self._kept[hash]


def _read(path: Path) -> tuple[bytes, str]:
    mime = mimetypes.guess_type(path.name)[0] or ""
    if not mime.startswith("image/"):
        raise ConfigurationError(
            f"image_path: {path.name} is no picture by its name; give a png, jpeg, gif or webp"
        )
    try:
        return path.read_bytes(), mime
    except OSError as error:
        raise ConfigurationError(f"image_path: {path}: {error.strerror}") from None


async def _plainly(task: Task, house: _Open) -> str:
    """What the planner's model says to the question alone."""
    pictures = await seen_by(house.planner, task.images, house.blobs.read)
    asked = Message("user", (Text(task.question), *pictured(task.images, pictures)))
    reply = await ask_model(house.planner, Call(role="planner", messages=(asked,), reply=str))
    return reply.value or ""


def _tell(episode: Episode) -> None:
    for turn in episode.turns:
        logger.info("turn", number=turn.number, tool=turn.step.tool_name, goal=turn.step.sub_goal)
    logger.info("answered", ending=str(episode.ending), answer=episode.answer, seconds=episode.seconds)
