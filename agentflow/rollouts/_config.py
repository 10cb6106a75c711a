"""Settings of a rollout."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from agentflow._typeguards import is_list
from agentflow.errors import ConfigurationError
from agentflow.runs import CORPUS_TOOLS, USUAL_TOOLS, Prose, RoleModel, RunConfig
from agentflow.settings import EndpointUrl, Section, import_object, load_settings

if TYPE_CHECKING:
    from agentflow.engine import EpisodeSettings, PathSearch
    from agentflow.models import ModelSettings


AGENT: Final = "agent"
"""Role of a single agent."""
JUDGE: Final = "judge"
"""Role of the model that judges answers."""
TURNS: Final = {"team": 10}
DEFAULT_TURNS: Final = 100
"""Default maximum number of turns."""
CONTEXT_TOKENS: Final = 32_000
MIN_CONTEXT_TOKENS: Final = 1_000
CHARS_PER_TOKEN: Final = 4
PARALLEL: Final = 8
"""Number of workers with `parallel` and without `max_workers`."""
TOOL: Final = "tool"
"""Role of the model inside tools."""
MODEL_TOOLS: Final = ("base_generator", "python_coder")
"""Tools that use a model."""
TEAM: Final = ("analyst", "planner", "executor", "verifier", "generator")
"""Roles of the team."""


def _texts(value: object) -> object:
    return [str(id) if isinstance(id, int) else id for id in value] if is_list(value) else value


Ids = Annotated[list[str], BeforeValidator(_texts)]
"""Ids of tasks; numbers are accepted."""


class BranchingSettings(Section):
    """Episodes of a task that share their beginnings. See docs/rollout.md."""

    at: str = "every"
    """Decisions that are made several times: `every`, `uncertain` (those with the least likely tokens), or
    `module:function`, which returns true for a `PathNode` that may branch."""
    width: int = Field(default=4, ge=1)
    """Continuations of a decision."""
    leaves: int = Field(default=16, ge=1)
    """Answers to a task; branching ends when so many paths have answered or may still answer."""
    search: Literal["all", "best_first", "beam", "mcts"] = "all"
    """Paths that continue: `all` of them, or those with the best values of the guide."""
    guide: str | None = None
    """Estimate of a path for `search`: `verifier`, the team's verifier as a judge of progress; or `module:function`, which
    gets a task, turns and an answer or `None`, and returns a number from 0 to 1."""
    roles: list[str] | None = None
    """Roles whose calls are decisions; `None`: those that are trained, or else the planner or the single agent."""
    merge_duplicates: bool = True
    """Run equal continuations of a decision once, counted as often as they were sampled."""

    @model_validator(mode="after")
    def _sensible(self) -> "BranchingSettings":
        if self.search != "all" and self.guide is None:
            raise ValueError(f"guide: search={self.search} needs one; set verifier or module:function")
        if self.search != "all" and self.at != "every":
            raise ValueError(f"at: search={self.search} makes every decision several times; leave it out")
        if self.search == "beam" and self.leaves < self.width:
            raise ValueError("leaves: a beam has at least `width` paths; raise it")
        return self

    def make_search(self) -> "PathSearch":
        """Return the search of a task.

        :raises ConfigurationError: if `at` names no function.
        """
        from agentflow.engine import (  # loads the sandbox
            Beam,
            BestFirst,
            EveryDecision,
            TreeSearch,
            UncertainDecisions,
        )

        if self.search == "best_first":
            return BestFirst(self.width, self.leaves)
        if self.search == "beam":
            return Beam(self.width, self.leaves)
        if self.search == "mcts":
            return TreeSearch(self.width, self.leaves)
        if self.at == "uncertain":
            return UncertainDecisions(self.width, self.leaves)
        if self.at == "every":
            return EveryDecision(self.width, self.leaves)
        may_branch = import_object(self.at)
        if not callable(may_branch):
            raise ConfigurationError(f"branching.at: {self.at} is not a function")
        return EveryDecision(self.width, self.leaves, lambda node: bool(may_branch(node)))


class RolloutConfig(RunConfig):
    """Settings of a rollout. Constructed directly, it reads neither files nor the environment."""

    aliases: ClassVar[dict[str, str]] = {"metric": "evaluation_metric"}
    DEFAULT_OUTPUT: ClassVar[str] = "rollout_results"
    """Default output directory."""
    NOT_CONTENT: ClassVar[frozenset[str]] = frozenset({
        "data_path", "number_of_tasks", "task_ids", "max_workers", "parallel", "system_prompt_file",
        "evaluator_model_name", "evaluator_api_key", "evaluator_base_url", "evaluator_temperature",
        "evaluator_max_retries", "evaluator_extra_params", "save_results", "save_trajectories", "trajectory_only",
        "save_summary", *(f"{role}_model" for role in TEAM), "tool_model",
        "tool_models",
    })  # fmt: skip
    """Its fields that do not affect the content of the files."""

    data_path: str | None = None
    """File of tasks: JSONL, JSON, CSV or parquet with a question and its answer per row."""
    benchmark_name: str | None = None
    """Benchmark by name, or a file that describes one. It defines how tasks are read, asked and scored."""
    number_of_tasks: int | None = Field(default=None, ge=1)
    """Number of tasks to use, from the first; `None`: the benchmark's default, or all."""
    task_ids: Ids | None = None
    """Ids of the tasks to use; `None`: all."""
    samples: int = Field(default=1, ge=1)
    """Number of independent episodes per task."""
    branching: BranchingSettings | None = None
    """Several episodes per task that share their beginnings; `None`: episodes are independent."""

    agent: str = "team"
    """`team`: planner, executor, verifier and generator; `single`: one model that calls tools itself; `module:function`: your
    own agent. The function takes a model and a store of images and returns an `agentflow.engine.EpisodeAgent`."""
    verify: Literal["separate", "merged"] = "separate"
    """Decision to stop: by the verifier (`separate`), or by the planner together with its next step (`merged`)."""
    max_turns: int | None = Field(default=None, ge=0)
    """Maximum number of turns of an episode; `None`: 10 for the team, 100 for a single agent."""
    max_retries: int = Field(default=3, ge=0)
    """Number of retries of an episode that crashed or has no answer, from the beginning."""
    max_workers: int = Field(default=1, ge=1)
    """Number of concurrent episodes."""
    parallel: bool = False
    """Run eight concurrent episodes, unless `max_workers` is set."""
    abstain: bool | dict[str, bool] | None = None
    """Let the team leave an answer empty instead of a blind guess, in all benchmarks or by name; `None`: as usual for each."""
    short_prompts: bool = False
    """Prompt the planner with the question, tool names and results only, as small models are trained."""
    planner_format: Literal["json", "labelled"] = "json"
    """Format of the planner's steps: JSON, or `labelled` as `Context:`, `Sub-Goal:` and `Tool Name:`, with one prompt for each
    step, as the released planners of AgentFlow are trained."""
    system_prompt: Prose = ""
    """First part of the prompt of the planner or the agent."""
    system_prompt_file: str | None = None
    """File with the system prompt."""
    episode_seconds: float = Field(default=300, gt=0)
    """Time limit of an episode; then it answers from what it knows."""
    episode_tokens: int | None = Field(default=None, ge=1)
    """Prompt and completion tokens of an episode after which it only answers."""
    episode_cost: float | None = Field(default=None, gt=0)
    """Cost of an episode, by `prices`, after which it only answers."""
    memory_chars: int = Field(default=24_000, ge=1_000)
    """Maximum number of characters of memory in prompts; beyond it, the oldest turns are summarised."""
    context_tokens: int | None = Field(default=None, ge=MIN_CONTEXT_TOKENS)
    """Maximum number of tokens of a single agent's prompt; beyond it, the oldest part of its conversation is summarised. `None`:
    32,000, or a quarter of `memory_chars` if that is not its default."""
    max_observation_chars: int = Field(default=6_000, ge=200)
    """Maximum characters of one result in prompts; of a longer one the passages are shown that fit the question."""

    analyst_model: RoleModel = RoleModel()
    """Model settings of the query analyst; by default those of the planner."""
    planner_model: RoleModel = RoleModel()
    """Model settings of the planner."""
    executor_model: RoleModel = RoleModel()
    """Model settings of the executor."""
    verifier_model: RoleModel = RoleModel()
    """Model settings of the verifier."""
    generator_model: RoleModel = RoleModel()
    """Model settings of the generator."""

    tool_model: RoleModel = RoleModel()
    """Model settings of the tools `base_generator` and `python_coder`."""
    tool_models: dict[str, RoleModel] = Field(default_factory=dict[str, RoleModel])
    """Model settings by tool, over those of `tool_model`."""

    evaluate_results: bool = True
    """Score the answers."""
    evaluation_metric: str | None = None
    """Name of the metric; `None`: that of the benchmark, `by_source` for tasks of known sources, or `exact_match`."""
    metric_options: dict[str, object] = Field(default_factory=dict[str, object])
    """Options of the metric."""
    evaluator_model_name: str | None = None
    """Model of the judge; `None`: the agent's."""
    evaluator_api_key: SecretStr | None = None
    """API key of the judge; keys of other endpoints are not sent to `evaluator_base_url`."""
    evaluator_base_url: EndpointUrl | None = None
    """Endpoint of the judge; `None`: the agent's."""
    evaluator_temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the judge."""
    evaluator_max_retries: int = Field(default=3, ge=0, le=9)
    """Number of retries of a request to the judge."""
    evaluator_extra_params: dict[str, object] = Field(default_factory=dict[str, object])
    """Additional fields of requests to the judge."""

    sandbox_auto_start: bool = False
    """Start a server if none answers at `sandbox_server_url`."""
    save_results: bool = True
    """Write `results.jsonl`, with a line for each finished task."""
    save_trajectories: bool = True
    """Write `trajectories.jsonl`."""
    trajectory_only: bool = False
    """Write only the task's id, its success and its trajectory to `results.jsonl`."""
    save_summary: bool = True
    """Write `summary.json` and `report.html`."""
    run_name: str = Field(default="rollout", min_length=1)
    """Name of the run in its journal."""

    @model_validator(mode="after")
    def _sensible(self) -> "RolloutConfig":
        if problem := next(self._problems(), None):
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        fields_set = self.model_fields_set
        if self.agent not in ("team", "single") and ":" not in self.agent:
            yield f"agent: there is no {self.agent!r}; choose team, single or module:function"
        if self.agent != "team":
            names = (
                "verify",
                "short_prompts",
                "planner_format",
                "abstain",
                *(f"{role}_model" for role in TEAM),
            )
            for name in names:
                if name in fields_set and getattr(self, name) != type(self).model_fields[name].default:
                    yield f"{name}: a single agent has no such role; remove it, or set agent=team"
        yield from self._format_problems()
        if self.verify == "merged" and self.verifier_model != RoleModel():
            yield "verifier_model: with verify=merged the planner verifies; remove it, or set verify=separate"
        if (
            "parallel" in fields_set
            and "max_workers" in fields_set
            and self.parallel != (self.max_workers > 1)
        ):
            yield f"parallel: contradicts max_workers={self.max_workers}; remove one of them"
        if self.system_prompt and self.system_prompt_file:
            yield "system_prompt_file: system_prompt is set, too; remove one of them"
        if self.trajectory_only and not self.save_results:
            yield "trajectory_only: results are not saved; remove it, or set save_results=true"
        if not self.evaluate_results:
            for name in sorted(fields_set):
                scoring = name.startswith(("evaluation_", "evaluator_", "metric_"))
                if scoring and getattr(self, name) != _default(name):
                    yield f"{name}: nothing is scored; remove it, or set evaluate_results=true"
        yield from self._tool_problems()
        yield from self._branching_problems()
        if self.model_tools and self.sandbox_server_url is not None:
            yield f"available_tools: {self.model_tools[0]} runs in this process; remove sandbox_server_url"
        if self.task_ids is not None and not self.task_ids:
            yield "task_ids: names no task; name one, or remove it"
        if (self.episode_cost is not None or self.max_cost is not None) and not self._priced:
            yield "prices: a budget of money needs them; set the cost of a million tokens"

    def _branching_problems(self) -> Iterator[str]:
        if self.branching is None:
            return
        if self.samples > 1:
            yield "samples: branching.leaves is the number of episodes per task; leave out samples"
        if self.seed is not None:
            yield "seed: with it every continuation is the same; leave it out, or branching"
        if self.branching.guide == "verifier" and (self.agent != "team" or self.verify == "merged"):
            yield "branching.guide: there is no verifier; name a module:function, or set agent=team"
        known = self._agent_models
        for role in self.branching.roles or ():
            if role not in known:
                yield f"branching.roles: there is no role {role}; choose from {', '.join(known)}"

    @property
    def branching_roles(self) -> tuple[str, ...]:
        """Roles before whose calls an episode may branch."""
        if self.branching is not None and self.branching.roles:
            return tuple(self.branching.roles)
        return ("planner",) if self.agent == "team" else (AGENT,)

    def _format_problems(self) -> Iterator[str]:
        if self.agent == "team" and self.context_tokens is not None:
            yield "context_tokens: a team has a memory instead; set memory_chars, or agent=single"
        if self.planner_format == "labelled":
            if self.verify == "merged":
                yield "planner_format: labelled steps have no decision to stop; set verify=separate, or planner_format=json"
            if self.short_prompts:
                yield "short_prompts: planner_format=labelled has a prompt of its own; remove one of them"

    def _tool_problems(self) -> Iterator[str]:
        if self.tool_model != RoleModel() and not self.model_tools:
            yield f"tool_model: no tool uses a model; name one of {', '.join(MODEL_TOOLS)} in available_tools"
        for name in self.tool_models:
            if name not in self.model_tools:
                reason = "available_tools does not name it" if name in MODEL_TOOLS else "it uses no model"
                yield f"tool_models: {name}: {reason}; use {' or '.join(self.model_tools or MODEL_TOOLS)}"

    @property
    def _priced(self) -> bool:
        known_prices = (model.known_prices for model in self.models.values())
        return self.prices is not None or any(prices is not None for prices in known_prices)

    @property
    def role_models(self) -> Mapping[str, RoleModel]:
        """Model settings of each role that uses a model."""
        models = self._agent_models
        for name in self.model_tools:
            role = self.tool_role(name)
            models[role] = self.tool_model if role == TOOL else _over(self.tool_models[name], self.tool_model)
        return {**models, JUDGE: self._judge} if self.evaluate_results else models

    @property
    def _agent_models(self) -> dict[str, RoleModel]:
        if self.agent != "team":
            return {AGENT: RoleModel()}
        team = {
            "analyst": self._analyst,
            "planner": self.planner_model,
            "executor": self.executor_model,
            "verifier": self.verifier_model,
            "generator": self.generator_model,
        }
        if self.verify == "merged":
            del team["verifier"]
        return team

    def tool_role(self, name: str) -> str:
        """Return the role of a tool's model: that of all tools, or its own if `tool_models` names it."""
        return name if name in self.tool_models else TOOL

    @property
    def _analyst(self) -> RoleModel:
        return _over(self.analyst_model, self.planner_model)

    @property
    def _judge(self) -> RoleModel:
        return RoleModel(
            model_name=self.evaluator_model_name,
            base_url=self.evaluator_base_url,
            api_key=self.evaluator_api_key,
            temperature=self.evaluator_temperature,
            max_attempts=self.evaluator_max_retries + 1,
            extra_body=self.evaluator_extra_params,
        )

    @property
    def model_tools(self) -> list[str]:
        """Requested tools that use a model."""
        wanted = self.available_tools or (() if self.names_resources else self.default_tools)
        tool_names = {name.replace(":", "_") for name in wanted}
        return [name for name in MODEL_TOOLS if name in tool_names]

    @property
    def default_tools(self) -> tuple[str, ...]:
        """Tools if the settings name neither a tool nor a resource: the bundled corpus does not answer other tasks."""
        if self.data_path is None or self._offline(self._agent_models.values()):
            return CORPUS_TOOLS
        here = self.sandbox_server_url is None
        return tuple(name for name in USUAL_TOOLS if here or name not in MODEL_TOOLS)

    @property
    def models(self) -> "dict[str, ModelSettings]":
        """Model of each role."""
        return {role: self.model_for(role) for role in self.role_models}

    @property
    def turns(self) -> int:
        """Maximum number of turns of an episode."""
        return TURNS.get(self.agent, DEFAULT_TURNS) if self.max_turns is None else self.max_turns

    @property
    def workers(self) -> int:
        """Number of concurrent episodes."""
        return PARALLEL if self.parallel and "max_workers" not in self.model_fields_set else self.max_workers

    @property
    def instructions(self) -> str:
        """First part of the prompt of the planner or the agent.

        :raises ConfigurationError: if the file can't be read.
        """
        if self.system_prompt_file is None:
            return self.system_prompt
        try:
            return Path(self.system_prompt_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigurationError(
                f"system_prompt_file: {self.system_prompt_file} can't be read: {why}; name another"
            ) from None

    @property
    def episode(self) -> "EpisodeSettings":
        """Settings of an episode; the assignment decides about abstaining."""
        from agentflow.engine import EpisodeSettings  # loads the sandbox

        context_tokens = self.context_tokens
        if context_tokens is None:
            is_usual = self.memory_chars == type(self).model_fields["memory_chars"].default
            quarter = max(MIN_CONTEXT_TOKENS, self.memory_chars // CHARS_PER_TOKEN)
            context_tokens = CONTEXT_TOKENS if is_usual else quarter
        return EpisodeSettings(
            max_turns=self.turns,
            max_seconds=self.episode_seconds,
            max_tokens=self.episode_tokens,
            max_cost=self.episode_cost,
            memory_chars=self.memory_chars,
            context_tokens=context_tokens,
            max_observation_chars=self.max_observation_chars,
            verify=self.verify,
            instructions=self.instructions,
        )

    def identity(self) -> dict[str, object]:
        """Return what affects the content of the files."""
        identity = super().identity()
        if self.abstain is None:
            # Runs of earlier versions have no such setting.
            identity.pop("abstain", None)
        for name in ("max_observation_chars", "context_tokens", "planner_format", "branching"):
            if getattr(self, name) == type(self).model_fields[name].default:
                identity.pop(name, None)
        return {**identity, "max_turns": self.turns, "system_prompt": self.instructions}


def _over(model: RoleModel, below: RoleModel) -> RoleModel:
    """Return the settings of a role, those that it does not have from another one."""
    mine = model.model_dump(exclude_none=True)
    return RoleModel.model_validate({**below.model_dump(exclude_none=True), **mine})


def _default(name: str) -> object:
    return RolloutConfig.model_fields[name].get_default(call_default_factory=True, validated_data={})


def load_rollout_config(
    config_path: str | PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    arguments: Mapping[str, object] | None = None,
) -> RolloutConfig:
    """Load settings from a file, `.env`, the environment and `key=value` overrides; later sources win.

    :param arguments: settings that override all sources.
    :raises ConfigurationError: one line, if a setting can't be used.

    Example::

        config = load_rollout_config("config.yaml", ["max_workers=8"])
    """
    return load_settings(RolloutConfig, config_path, overrides, arguments=arguments)
