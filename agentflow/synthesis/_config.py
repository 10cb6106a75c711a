"""The settings of a synthesis: every field, its default, and what follows from them."""

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import yaml
from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from agentflow.models import Prices, Structured
from agentflow.settings import Section, Settings, load_settings
from agentflow.synthesis._secrets import masked
from agentflow.synthesis._selection import find_strategy
from agentflow.trajectory import Example

if TYPE_CHECKING:
    from agentflow.growth import GrowthSettings
    from agentflow.models import ModelSettings
    from agentflow.sandbox import SandboxSettings

__all__ = ["Role", "RoleModel", "SynthesisConfig", "load_config", "render_config"]

Role = Literal["planner", "verifier", "generator"]
"""Who may ask a model."""


def _joined(value: object) -> object:
    if isinstance(value, list):
        lines = cast("list[object]", value)
        return "\n".join(map(str, lines)) if all(isinstance(line, str) for line in lines) else lines
    return value


Prose = Annotated[str, BeforeValidator(_joined, json_schema_input_type=str | list[str])]
"""A long text: a string, or a list of its lines."""
Share = Annotated[float, Field(ge=0, le=1)]


class RoleModel(Section):
    """A model of a role's own: what is not said here is that of all roles."""

    model_name: str | None = None
    """Its name."""
    base_url: str | None = None
    """Its endpoint; where one is named, its key must be too: keys of other endpoints are not sent there."""
    api_key: SecretStr | None = None
    """The key for it."""
    temperature: float | None = Field(default=None, ge=0)
    """Higher is more varied."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The longest answer."""
    seed: int | None = None
    """For endpoints that can repeat themselves."""
    extra_body: dict[str, object] | None = None
    """Further fields of each request."""
    max_in_flight: int | None = Field(default=None, ge=1)
    """Calls at once at most."""
    call_seconds: float | None = Field(default=None, gt=0)
    """Time for a call, all attempts together."""
    attempts: int | None = Field(default=None, ge=1, le=10)
    """Requests for a call at most."""
    structured: Structured | None = None
    """How the form of answers is asked for."""
    sees: bool | None = None
    """It takes pictures."""
    prices: Prices | None = None
    """What it costs."""


class SynthesisConfig(Settings):
    """The settings of a synthesis. Made directly they take nothing from their surroundings; `load_config` does."""

    seeds_file: str | None = None
    """The seeds: JSONL, one `{"content": …, "kwargs": {…}}` a line."""
    output_dir: str | None = None
    """Where the files go; `None`: `synthesis_results`."""
    number_of_seed: int | None = Field(default=None, ge=0)
    """How many seeds to take, from the first; `None`: all."""
    seed_description: Prose = ""
    """What the seeds are, for the planner and the generator."""

    available_tools: list[str] = Field(default_factory=list[str])
    """Tools that may be called, by any of their names; none: all that the resources have."""
    on_missing_tool: Literal["refuse", "drop"] = "refuse"
    """What to do about a tool that does not exist or can't work here: refuse to start, or go on without it."""
    resource_types: list[str] = Field(default_factory=list[str])
    """Backends to have, by any of their names."""
    resource_init_configs: dict[str, dict[str, object]] = Field(default_factory=dict[str, dict[str, object]])
    """Settings by backend, flat or under `content`."""
    sandbox_server_url: str | None = None
    """A running server of tools; `None`: they run in this process."""
    sandbox_auto_start: bool = True
    """Start a server when none answers at `sandbox_server_url`."""
    sandbox_config_path: str | None = None
    """A file with settings of the sandbox."""
    sandbox_timeout: float = Field(default=120, gt=0)
    """Seconds for a tool call."""
    max_sandboxes: int = Field(default=128, ge=1)
    """Sandboxes at once at most."""

    model_name: str = "gpt-4.1-2025-04-14"
    """The model of all roles. If neither it, `base_url` nor `api_key` is set anywhere, the offline engine is used."""
    api_key: SecretStr = SecretStr("")
    """The key for it; empty: that of the environment."""
    base_url: str = ""
    """Its OpenAI-compatible endpoint; empty: OpenAI's."""
    temperature: float | None = Field(default=None, ge=0)
    """Higher is more varied; `None`: the endpoint's own."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling; `None`: the endpoint's own."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The longest answer; `None`: the endpoint's own."""
    seed: int | None = None
    """For endpoints that can repeat themselves."""
    extra_body: dict[str, object] = Field(default_factory=dict[str, object])
    """Further fields of each request, sent as they are."""
    sees: bool = True
    """The model takes pictures."""
    max_in_flight: int = Field(default=256, ge=1)
    """Model calls at once at most; how many there really are is adapted to the endpoint."""
    call_seconds: float = Field(default=120, gt=0)
    """Time for a model call, all attempts together."""
    attempts: int = Field(default=4, ge=1, le=10)
    """HTTP requests for a model call at most."""
    structured: Structured = "auto"
    """How the form of answers is asked for; `auto`: by schema, else as the endpoint can."""
    prices: Prices | None = None
    """What the model costs, for the report and `max_cost`."""
    planner_model: RoleModel = RoleModel()
    """What is different about the planner's model."""
    verifier_model: RoleModel = RoleModel()
    """What is different about the verifier's model, with `verifier: model`."""
    generator_model: RoleModel = RoleModel()
    """What is different about the generator's model."""
    max_total_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the run may use, read and written; then it ends cleanly and can be resumed."""
    max_cost: float | None = Field(default=None, gt=0)
    """Money that the run may use, by `prices`."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Time that the run may take."""

    sampling_tips: Prose = ""
    """Guidance for exploring."""
    max_depth: int = Field(default=5, ge=1)
    """Actions from the root to the deepest leaf."""
    branching_factor: int = Field(default=2, ge=1)
    """Children of a node above `depth_threshold`."""
    depth_threshold: int = Field(default=3, ge=0)
    """From this depth on every node has one child."""
    verifier: Literal["rule", "model", "off"] = "rule"
    """Who says what an observation is worth; `off`: everything is new."""
    on_unforkable: Literal["chain", "refuse"] = "chain"
    """What to do where branches can't be kept apart: only the first child, or none."""
    action_similarity: float = Field(default=0.9, ge=0)
    """From here on two actions are the same; above 1: only if they are equal."""
    max_asks: int = Field(default=3, ge=1)
    """How often a node's planner is asked at most, until enough that it proposes is new."""

    min_depth: int = Field(default=2, ge=1)
    """Pieces of evidence that a path must have to be asked about."""
    max_selected_traj: int = Field(default=3, ge=0)
    """Paths selected per seed at most."""
    path_similarity_threshold: Share = 0.7
    """Paths that say the same to more than this share are one path."""
    selection_strategy: str = "novelty"
    """In which order paths are chosen: `novelty`, `documented`, `diverse`, or `module:function`."""

    synthesis_tips: Prose = ""
    """Guidance for questions."""
    qa_examples: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])
    """Examples of the style wanted, each with `question` and `answer`."""
    min_reasoning_steps: int = Field(default=3, ge=1)
    """Steps from question to answer at least."""
    max_tries: int = Field(default=3, ge=1)
    """Drafts per path at most; each is told what was wrong with those before."""
    check_answerability: bool = True
    """Drop what the model answers without the path."""
    max_question_words: int = Field(default=85, ge=1)
    """Words of a question at most; two characters of a script without spaces count as one."""
    question_similarity: Share = 0.85
    """From here on two questions with the same answer are one, over all seeds."""

    open_trees: int | None = Field(default=None, ge=1)
    """Trees that grow at once; `None`: as many as the tools allow."""
    journal: str | None = None
    """The journal's address, `sqlite:///…` or `postgresql://…`; `None`: a file in `output_dir`."""
    run_name: str = Field(default="synthesis", min_length=1)
    """The run's name in its journal."""
    control: bool | Annotated[int, Field(ge=0, le=65535)] = True
    """Whether the running program can be controlled, and at which port; `true`: any free one."""

    @field_validator("qa_examples")
    @classmethod
    def _complete(cls, examples: list[dict[str, str]]) -> list[dict[str, str]]:
        for number, example in enumerate(examples, 1):
            missing = [name for name in ("question", "answer") if not example.get(name, "").strip()]
            if missing:
                raise ValueError(f"example {number} has no {missing[0]}; add it")
        return examples

    @model_validator(mode="after")
    def _reachable(self) -> "SynthesisConfig":
        if self.min_depth > self.max_depth:
            raise ValueError(
                f"min_depth: no path is that deep; lower it to {self.max_depth}, or raise max_depth"
            )
        return self

    @cached_property
    def offline(self) -> bool:
        """Nothing names a model, so the engine without one is used."""
        roles = (self.planner_model, self.verifier_model, self.generator_model)
        named = "model_name" in self.model_fields_set or any(
            role.model_name or role.base_url for role in roles
        )
        return not (named or self.base_url or self.api_key.get_secret_value())

    @property
    def model(self) -> "ModelSettings":
        """The model of all roles."""
        return self._model(RoleModel())

    def model_for(self, role: Role) -> "ModelSettings":
        """The model of that role."""
        own = {
            "planner": self.planner_model,
            "verifier": self.verifier_model,
            "generator": self.generator_model,
        }
        return self._model(own[role])

    def _model(self, own: RoleModel) -> "ModelSettings":
        from agentflow.models import ModelSettings  # brings HTTP along

        if self.offline:
            return ModelSettings(name="offline", sees=False)
        chosen: dict[str, object] = {name: self._shared(own, name) for name in _OF_MODELS}
        chosen["name"] = chosen.pop("model_name")
        return ModelSettings.model_validate(chosen)

    def _shared(self, own: RoleModel, name: str) -> object:
        """What the role says, else what holds for all."""
        mine: object = getattr(own, name)
        if mine is None and name == "api_key" and own.base_url is not None:
            return SecretStr("")
        return getattr(self, name) if mine is None else mine

    @property
    def output(self) -> Path:
        """Where the files go."""
        return Path(self.output_dir or "synthesis_results")

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples for the generator."""
        return tuple(Example(example["question"], example["answer"]) for example in self.qa_examples)

    @property
    def growth(self) -> "GrowthSettings":
        """How trees grow."""
        from agentflow.growth import GrowthSettings, Unforkable  # brings the sandbox along

        return GrowthSettings(
            max_depth=self.max_depth,
            branching_factor=self.branching_factor,
            depth_threshold=self.depth_threshold,
            action_similarity=self.action_similarity,
            max_asks=self.max_asks,
            on_unforkable=Unforkable(self.on_unforkable),
            tips=self.sampling_tips,
            seed_description=self.seed_description,
        )

    @property
    def resources(self) -> dict[str, dict[str, object]]:
        """Settings by backend, for each that is named in `resource_types` or has settings; names as they stand there."""
        named: dict[str, dict[str, object]] = {name: {} for name in self.resource_types}
        for name, settings in self.resource_init_configs.items():
            content = settings.get("content")
            flat = set(settings) != {"content"} or not isinstance(content, dict)
            named[name] = settings if flat else cast("dict[str, object]", content)
        return named

    @property
    def sandbox(self) -> "SandboxSettings":
        """The sandbox: `sandbox_config_path`, and over it what is said here."""
        from agentflow.sandbox import SandboxSettings  # brings the servers along

        path = self.sandbox_config_path
        below = (
            load_settings(SandboxSettings, path)
            if path and not self.sandbox_server_url
            else SandboxSettings()
        )
        own: dict[str, object] = {"timeout": self.sandbox_timeout}
        if self.sandbox_server_url is not None:
            own |= {"server_url": self.sandbox_server_url, "auto_start": self.sandbox_auto_start}
            own |= {"server_config": Path(path)} if path else {}
        if self.resources:
            own["backends"] = {
                **below.backend_settings,
                **SandboxSettings(backends=self.resources).backend_settings,
            }
        return below.model_copy(update=own)

    def identity(self) -> dict[str, object]:
        """What decides the content of the files: nothing of keys, addresses, limits, budgets and places."""
        said = cast("dict[str, object]", masked(self.model_dump(mode="json", exclude=set(_NOT_CONTENT))))
        return {**said, "models": {role: self._model_identity(role) for role in _ROLES}}

    def _model_identity(self, role: Role) -> dict[str, object]:
        if self.offline:
            return {"model_name": "offline"}
        own: RoleModel = getattr(self, f"{role}_model")
        return {name: masked(self._shared(own, name)) for name in _OF_ANSWERS}


_ROLES: Final[tuple[Role, ...]] = ("planner", "verifier", "generator")
_OF_MODELS: Final = (
    "model_name", "base_url", "api_key", "temperature", "top_p", "max_tokens", "seed", "max_in_flight",
    "call_seconds", "attempts", "structured", "extra_body", "sees", "prices",
)  # fmt: skip
_OF_ANSWERS: Final = ("model_name", "temperature", "top_p", "max_tokens", "seed", "extra_body", "sees")
_NOT_CONTENT: Final = (
    "seeds_file", "output_dir", "number_of_seed", "sandbox_server_url", "sandbox_auto_start", "sandbox_timeout",
    "max_sandboxes", "model_name", "api_key", "base_url", "temperature", "top_p", "max_tokens", "seed", "extra_body",
    "sees", "max_in_flight", "call_seconds", "attempts", "structured", "prices", "planner_model", "verifier_model",
    "generator_model", "max_total_tokens", "max_cost", "max_seconds", "open_trees", "journal", "run_name", "control",
)  # fmt: skip


def load_config(config_path: Path | str | None = None, overrides: Iterable[str] = ()) -> SynthesisConfig:
    """The settings from a file, then `.env`, then the environment, then `key=value` words: the last one wins.

    The environment's `SEEDS_FILE` and `OUTPUT_DIR` count like `AGENTFLOW_SEEDS_FILE` and `AGENTFLOW_OUTPUT_DIR`.

    :raises ConfigurationError: one line, if anything in them can't be used.
    """
    short = [
        f"{name.lower()}={os.environ[name]}"
        for name in ("SEEDS_FILE", "OUTPUT_DIR")
        if os.environ.get(name) and not os.environ.get(f"AGENTFLOW_{name}")
    ]
    config = load_settings(SynthesisConfig, config_path, [*short, *overrides])
    find_strategy(config.selection_strategy)
    return config


_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Ten times as quick where libyaml is there."""


def render_config(config: SynthesisConfig) -> str:
    """The settings as YAML, secrets masked."""
    said = masked(config.model_dump() | {"api_key": config.api_key})
    return yaml.dump(said, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
