"""What the settings of every run have: tools, models, budgets, a journal."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, cast

import yaml
from pydantic import BeforeValidator, Field, SecretStr

from agentflow.models import RENAMED_MODEL_KEYS, ApiName, Prices, StructuredOutput, TokenMode
from agentflow.runs._secrets import masked
from agentflow.settings import Section, Settings, load_settings

if TYPE_CHECKING:
    from agentflow.models import ModelSettings
    from agentflow.sandbox import SandboxSettings

__all__ = ["Prose", "RoleModel", "RunConfig", "render_config"]


def _joined(value: object) -> object:
    if isinstance(value, list):
        lines = cast("list[object]", value)
        return "\n".join(map(str, lines)) if all(isinstance(line, str) for line in lines) else lines
    return value


Prose = Annotated[str, BeforeValidator(_joined, json_schema_input_type=str | list[str])]
"""A long text: a string, or a list of its lines."""


class RoleModel(Section):
    """A model of a role's own: what is not said here is that of all roles."""

    renamed: ClassVar[dict[str, str]] = RENAMED_MODEL_KEYS

    model_name: str | None = None
    """Its name."""
    base_url: str | None = None
    """Its endpoint; where one is named, its key must be too: keys of other endpoints are not sent there."""
    api: ApiName | None = None
    """API of that endpoint."""
    api_key: SecretStr | None = None
    """The key for it."""
    temperature: float | None = Field(default=None, ge=0)
    """Higher is more varied."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The longest answer."""
    max_text_chars: int | None = Field(default=None, ge=1)
    """Characters of each text in an answer with a schema, held by the endpoint."""
    seed: int | None = None
    """For endpoints that can repeat themselves."""
    extra_body: dict[str, object] | None = None
    """Further fields of each request."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Calls at once at most."""
    call_seconds: float | None = Field(default=None, gt=0)
    """Time for a call, all attempts together."""
    max_attempts: int | None = Field(default=None, ge=1, le=10)
    """Requests for a call at most."""
    structured: StructuredOutput | None = None
    """How the form of answers is asked for."""
    tokens: TokenMode | None = None
    """Whether its answers bring their tokens along."""
    vision: bool | None = None
    """It takes pictures."""
    prices: Prices | None = None
    """What it costs."""


class RunConfig(Settings):
    """The settings that every run has."""

    renamed: ClassVar[dict[str, str]] = RENAMED_MODEL_KEYS

    DEFAULT_OUTPUT: ClassVar[str] = "results"
    """Where the files go, if nothing says it."""
    NOT_CONTENT: ClassVar[frozenset[str]] = frozenset()
    """Fields that don't decide what the files hold, of those that a kind of run adds."""

    output_dir: str | None = None
    """Where the files go; `None`: a folder that is called after what is done."""

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
    sandbox_token: SecretStr = SecretStr("")
    """The token for it; empty: that of the user's own server on this machine, if it has one."""
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
    """Its endpoint; empty: that of the provider that its name begins with, else OpenAI's."""
    api: ApiName = "auto"
    """API of the endpoint at `base_url`; `auto`: OpenAI's."""
    temperature: float | None = Field(default=None, ge=0)
    """Higher is more varied; `None`: the endpoint's own."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling; `None`: the endpoint's own."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The longest answer; `None`: the endpoint's own."""
    max_text_chars: int | None = Field(default=None, ge=1)
    """Characters of each text in an answer with a schema, in plain letters, held by the endpoint; `None`: not bounded."""
    seed: int | None = None
    """For endpoints that can repeat themselves."""
    extra_body: dict[str, object] = Field(default_factory=dict[str, object])
    """Further fields of each request, sent as they are."""
    vision: bool = True
    """The model takes pictures."""
    max_concurrency: int = Field(default=256, ge=1)
    """Model calls at once at most; how many there really are is adapted to the endpoint."""
    call_seconds: float = Field(default=120, gt=0)
    """Time for a model call, all attempts together."""
    max_attempts: int = Field(default=4, ge=1, le=10)
    """HTTP requests for a model call at most."""
    structured: StructuredOutput = "auto"
    """How the form of answers is asked for; `auto`: by schema, else as the endpoint can."""
    tokens: TokenMode = False
    """Answers bring the tokens that were read and written along, only from vLLM; `exact`: what was said before is sent as
    the tokens that it was, too."""
    prices: Prices | None = None
    """What the model costs, for the report and `max_cost`."""

    max_total_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the run may use, read and written; then it ends cleanly and can be resumed."""
    max_cost: float | None = Field(default=None, gt=0)
    """Money that the run may use, by `prices`."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Time that the run may take."""

    journal: str | None = None
    """The journal's address, `sqlite:///…` or `postgresql://…`; `None`: a file in `output_dir`."""
    run_name: str = Field(default="run", min_length=1)
    """The run's name in its journal."""

    @property
    def role_models(self) -> Mapping[str, RoleModel]:
        """What is different about the model of each role that may ask one."""
        raise NotImplementedError

    @cached_property
    def offline(self) -> bool:
        """Nothing names a model, so the engine without one is used."""
        named = "model_name" in self.model_fields_set or any(
            role.model_name or role.base_url for role in self.role_models.values()
        )
        return not (named or self.base_url or self.api_key.get_secret_value())

    @property
    def model(self) -> "ModelSettings":
        """The model of all roles."""
        return self._model(RoleModel())

    def model_for(self, role: str) -> "ModelSettings":
        """The model of that role."""
        return self._model(self.role_models[role])

    def _model(self, own: RoleModel) -> "ModelSettings":
        from agentflow.models import ModelSettings  # brings HTTP along

        if self.offline:
            return ModelSettings(
                name="offline", vision=False, tokens=self._shared(own, "tokens") is not False
            )
        chosen: dict[str, object] = {name: self._shared(own, name) for name in _OF_MODELS}
        chosen["name"] = chosen.pop("model_name")
        return ModelSettings.model_validate(chosen)

    def _shared(self, own: RoleModel, name: str) -> object:
        """What the role says, else what holds for all."""
        mine: object = getattr(own, name)
        if mine is None and own.base_url is not None and name in _OF_PLACES:
            return _OF_PLACES[name]
        return getattr(self, name) if mine is None else mine

    @property
    def output(self) -> Path:
        """Where the files go."""
        return Path(self.output_dir or self.DEFAULT_OUTPUT)

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
            if self.sandbox_token.get_secret_value():
                own["token"] = self.sandbox_token
            own |= {"server_config": Path(path)} if path else {}
        if self.resources:
            own["backends"] = {
                **below.backend_settings,
                **SandboxSettings(backends=self.resources).backend_settings,
            }
        return below.model_copy(update=own)

    def identity(self) -> dict[str, object]:
        """What decides the content of the files: nothing of keys, addresses, limits, budgets and places."""
        left_out = _NOT_CONTENT | self.NOT_CONTENT | {f"{role}_model" for role in self.role_models}
        said = cast("dict[str, object]", masked(self.model_dump(mode="json", exclude=set(left_out))))
        return {**said, "models": {role: self._model_identity(own) for role, own in self.role_models.items()}}

    def _model_identity(self, own: RoleModel) -> dict[str, object]:
        if self.offline:
            return {"model_name": "offline"}
        return {key: masked(self._shared(own, name)) for name, key in _OF_ANSWERS.items()}


_OF_PLACES: Final[dict[str, object]] = {"api_key": SecretStr(""), "api": "auto", "tokens": False}
"""What holds for one endpoint does not for another."""
_OF_MODELS: Final = (
    "model_name", "base_url", "api", "api_key", "temperature", "top_p", "max_tokens", "max_text_chars", "seed", "max_concurrency",
    "call_seconds", "max_attempts", "structured", "tokens", "extra_body", "vision", "prices",
)  # fmt: skip
_OF_ANSWERS: Final = {
    "model_name": "model_name",
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_tokens",
    "max_text_chars": "longest_text",
    "seed": "seed",
    "extra_body": "extra_body",
    "vision": "sees",
    "tokens": "tokens",
}
"""Settings that decide a model's answers, with the keys under which a run stores them."""
_NOT_CONTENT: Final = frozenset({
    "output_dir", "sandbox_server_url", "sandbox_token", "sandbox_auto_start", "sandbox_timeout", "max_sandboxes",
    "model_name", "api_key", "base_url", "api", "temperature", "top_p", "max_tokens", "max_text_chars", "seed", "extra_body",
    "vision", "max_concurrency", "call_seconds", "max_attempts", "structured", "tokens", "prices", "max_total_tokens", "max_cost",
    "max_seconds", "journal", "run_name",
})  # fmt: skip


_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Ten times as quick where libyaml is there."""


def render_config(config: Settings) -> str:
    """The settings as YAML, secrets masked."""
    said = masked(config.model_dump())
    return yaml.dump(said, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
