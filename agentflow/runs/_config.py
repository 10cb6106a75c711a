"""Settings that all runs share (tools, models, budgets, journal), and their output without secrets."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, SecretStr, model_validator

from agentflow._secrets import mask_settings
from agentflow._typeguards import is_list, is_object
from agentflow.models import RENAMED_MODEL_KEYS, ApiName, Prices, StructuredOutput, TokenMode
from agentflow.settings import EndpointUrl, Section, Settings, SettingsByName, load_settings, read_environment

if TYPE_CHECKING:
    from agentflow.models import ModelSettings
    from agentflow.sandbox import SandboxSettings


def _joined(value: object) -> object:
    return "\n".join(value) if is_list(value) and all(isinstance(line, str) for line in value) else value


Prose = Annotated[str, BeforeValidator(_joined, json_schema_input_type=str | list[str])]
"""Long text: a string or a list of lines."""


class RoleModel(Section):
    """Model of one role. A setting that is not given has the value that applies to all roles."""

    renamed: ClassVar[dict[str, str]] = RENAMED_MODEL_KEYS

    model_name: str | None = None
    """Model name."""
    base_url: EndpointUrl | None = None
    """Endpoint. It needs its own `api_key`: keys of other endpoints are not sent to it."""
    api: ApiName | None = None
    """API of that endpoint."""
    api_key: SecretStr | None = None
    """API key."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of completion tokens."""
    max_text_chars: int | None = Field(default=None, ge=1)
    """Maximum length of each text in structured output, enforced by the endpoint."""
    seed: int | None = None
    """Sampling seed, for endpoints that support one."""
    extra_body: dict[str, object] | None = None
    """Additional fields of each request."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Maximum number of concurrent calls."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Rate limit of the key for this model."""
    call_seconds: float | None = Field(default=None, gt=0)
    """Time limit of a call, including retries."""
    max_attempts: int | None = Field(default=None, ge=1, le=10)
    """Maximum number of requests per call."""
    response_bytes: int | None = Field(default=None, ge=1024)
    """Maximum size of an answer."""
    structured: StructuredOutput | None = None
    """Method of requesting structured output."""
    tokens: TokenMode | None = None
    """Completions include their tokens."""
    vision: bool | None = None
    """The model accepts images."""
    prices: Prices | None = None
    """Prices of its tokens."""


CORPUS_TOOLS: Final = ("rag_search", "rag_get")
"""Search in the bundled corpus."""
USUAL_TOOLS: Final = ("base_generator", "python_coder", "web_search", "web_wikipedia", "web_read")
"""Tools for questions about the world."""


class RunConfig(Settings):
    """Settings that all runs share."""

    renamed: ClassVar[dict[str, str]] = RENAMED_MODEL_KEYS
    aliases: ClassVar[dict[str, str]] = {"tools": "available_tools"}

    DEFAULT_OUTPUT: ClassVar[str] = "results"
    """Default output directory."""
    NOT_CONTENT: ClassVar[frozenset[str]] = frozenset()
    """Fields of a subclass that do not affect the content of the files."""

    output_dir: str | None = None
    """Output directory; `None`: one named after the kind of run."""
    imports: list[str] = Field(default_factory=list[str])
    """Modules or files, such as `tools.py`, that register tools; they are imported first."""

    available_tools: list[str] = Field(default_factory=list[str])
    """Tools that may be called, by any of their names; empty: all tools of the resources, or without any `default_tools`."""
    on_missing_tool: Literal["refuse", "drop"] = "refuse"
    """Handling of a tool that does not exist or does not work: `refuse` to start, or `drop` the tool."""
    resource_types: list[str] = Field(default_factory=list[str])
    """Backends, by any of their names."""
    resource_init_configs: SettingsByName = Field(default_factory=dict[str, dict[str, object]])
    """Settings by backend, flat or under `content`."""
    sandbox_server_url: str | None = None
    """URL of a running tool server; `None`: tools run in this process."""
    sandbox_token: SecretStr = SecretStr("")
    """Token for it; empty: that of the user's own server on this machine."""
    sandbox_auto_start: bool = True
    """Start a server if none answers at `sandbox_server_url`."""
    sandbox_config_path: str | None = None
    """Settings file of the sandbox."""
    sandbox_timeout: float = Field(default=120, gt=0)
    """Time limit of a tool call, in seconds."""
    max_sandboxes: int = Field(default=128, ge=1)
    """Maximum number of concurrent sandboxes."""

    model_name: str = "gpt-4.1-2025-04-14"
    """Model of all roles. If neither it nor `base_url` nor `api_key` is set, the offline engine is used; this default only for
    settings that name resources, if `OPENAI_API_KEY` is set. `offline` is always the offline engine."""
    api_key: SecretStr = SecretStr("")
    """API key; empty: that of the environment."""
    base_url: EndpointUrl = ""
    """Endpoint; empty: that of the provider in the prefix of its name, otherwise OpenAI's."""
    api: ApiName = "auto"
    """API of the endpoint at `base_url`; `auto`: OpenAI's."""
    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; `None`: the endpoint's default."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling; `None`: the endpoint's default."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of completion tokens; `None`: the endpoint's default."""
    max_text_chars: int | None = Field(default=None, ge=1)
    """Maximum length of each text in structured output, enforced by the endpoint; `None`: unlimited."""
    seed: int | None = None
    """Sampling seed, for endpoints that support one."""
    extra_body: dict[str, object] = Field(default_factory=dict[str, object])
    """Additional fields of each request, sent unchanged."""
    vision: bool = True
    """The model accepts images."""
    max_concurrency: int = Field(default=256, ge=1)
    """Maximum number of concurrent model calls; the actual number adapts to the endpoint."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Rate limit of the key for this model, kept by all processes that share the journal; `None`: no limit is known."""
    call_seconds: float = Field(default=120, gt=0)
    """Time limit of a model call, including retries."""
    max_attempts: int = Field(default=4, ge=1, le=10)
    """Maximum number of HTTP requests per model call."""
    response_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Maximum size of a model's answer; a larger one fails the call."""
    structured: StructuredOutput = "auto"
    """Method of requesting structured output; `auto`: by schema, otherwise what the endpoint supports."""
    tokens: TokenMode = False
    """Completions include prompt and completion tokens, only from vLLM; `exact`: earlier turns are sent as their exact
    tokens, too."""
    prices: Prices | None = None
    """Prices of tokens, for the report and `max_cost`."""

    max_total_tokens: int | None = Field(default=None, ge=1)
    """Budget of prompt and completion tokens; when it is used up, the run stops and can be resumed."""
    max_cost: float | None = Field(default=None, gt=0)
    """Budget of money, by `prices`."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Time limit of the run."""

    tracing: bool | EndpointUrl | None = None
    """Address of a collector of traces and metrics (OTLP over HTTP); `true`: the one of the `OTEL_*` variables, or this machine's;
    `None`: the one of the variables, if they name one; `false`: none."""

    save_prompts: bool = True
    """Store the prompt of each model call in the journal, for the live view; each message is stored once."""
    journal: str | None = None
    """URL of the journal, `sqlite:///…` or `postgresql://…`; `None`: a file in `output_dir`."""
    run_name: str = Field(default="run", min_length=1)
    """Name of the run in its journal."""
    host_name: str | None = Field(default=None, min_length=1)
    """Name of this host in the journal's records of who worked on a seed; `None`: the system's."""
    launch_id: str | None = Field(default=None, min_length=1)
    """Id that all processes of a launch share, also those that are restarted: `agentflow ctl stop` ends it for good; `None`: this
    process is a launch by itself."""

    @model_validator(mode="after")
    def _known_backends(self) -> Self:
        """Import the user's tools; refuse unknown backends, and unknown names among their settings."""
        if not (self.imports or self.resource_types or self.resource_init_configs):
            return self
        from agentflow.sandbox import check_backends, import_tools  # loads the servers

        import_tools(self.imports)
        remote = self.sandbox_server_url is not None
        check_backends("resource_types", {name: {} for name in self.resource_types}, remote=remote)
        settings = {name: self.resources[name] for name in self.resource_init_configs}
        check_backends("resource_init_configs", settings, remote=remote)
        return self

    @property
    def default_tools(self) -> tuple[str, ...]:
        """Tools if the settings name neither a tool nor a resource."""
        return CORPUS_TOOLS

    @property
    def role_models(self) -> Mapping[str, RoleModel]:
        """Model settings of each role that uses a model."""
        raise NotImplementedError

    @property
    def offline(self) -> bool:
        """True if the offline engine is used: no setting names another model, and resources have no key."""
        return self._offline(self.role_models.values())

    def _offline(self, roles: Collection[RoleModel]) -> bool:
        shared_names = [self.model_name] if "model_name" in self.model_fields_set else []
        if any(role.base_url for role in roles):
            return False
        if names := {*shared_names, *(role.model_name for role in roles if role.model_name)}:
            return names == {_OFFLINE}
        if self.base_url or self.api_key.get_secret_value():
            return False
        return not (self.names_resources and read_environment().get("OPENAI_API_KEY"))

    @property
    def names_resources(self) -> bool:
        """True if a setting names something else to explore than the bundled corpus."""
        return bool(self.resources or self.sandbox_server_url or self.sandbox_config_path)

    @property
    def model(self) -> "ModelSettings":
        """Model of all roles."""
        return self._model(RoleModel())

    def model_for(self, role: str) -> "ModelSettings":
        """Return the model of that role."""
        return self._model(self.role_models[role])

    def _model(self, role_model: RoleModel) -> "ModelSettings":
        from agentflow.models import ModelSettings  # loads HTTP

        if self.offline:
            return ModelSettings(
                name=_OFFLINE, vision=False, tokens=self._shared(role_model, "tokens") is not False
            )
        chosen: dict[str, object] = {name: self._shared(role_model, name) for name in RoleModel.model_fields}
        chosen["name"] = chosen.pop("model_name")
        return ModelSettings.model_validate(chosen)

    def _shared(self, role_model: RoleModel, name: str) -> object:
        """Return the role's value of a setting, or else the shared one."""
        role_value: object = getattr(role_model, name)
        if role_value is None and role_model.base_url is not None and name in _ENDPOINT_DEFAULTS:
            return _ENDPOINT_DEFAULTS[name]
        return getattr(self, name) if role_value is None else role_value

    @property
    def output(self) -> Path:
        """Output directory."""
        return Path(self.output_dir or self.DEFAULT_OUTPUT)

    @property
    def resources(self) -> dict[str, dict[str, object]]:
        """Settings of each backend in `resource_types` or `resource_init_configs`, by the names given there."""
        named: dict[str, dict[str, object]] = {name: {} for name in self.resource_types}
        for name, settings in self.resource_init_configs.items():
            content = settings.get("content")
            named[name] = content if is_object(content) and len(settings) == 1 else settings
        return named

    @property
    def sandbox(self) -> "SandboxSettings":
        """Sandbox settings: those of `sandbox_config_path`, overridden by these."""
        from agentflow.sandbox import SandboxSettings, split_settings  # loads the servers

        path = self.sandbox_config_path
        below = (
            load_settings(SandboxSettings, path)
            if path and not self.sandbox_server_url
            else SandboxSettings()
        )
        changes: dict[str, object] = {"timeout": self.sandbox_timeout}
        if self.sandbox_server_url is not None:
            changes |= {"server_url": self.sandbox_server_url, "auto_start": self.sandbox_auto_start}
            if self.sandbox_token.get_secret_value():
                changes["token"] = self.sandbox_token
            changes |= {"server_config": Path(path)} if path else {}
        changes["imports"] = [*below.imports, *self.imports]
        if self.resources:
            apis, backends = split_settings(self.resources)
            changes |= {"backends": below.backend_settings | backends, "apis": below.apis | apis}
        return below.model_copy(update=changes)

    def identity(self) -> dict[str, object]:
        """Return what affects the content of the files: no keys, addresses, limits, budgets or directories."""
        left_out = _NOT_CONTENT | self.NOT_CONTENT | {f"{role}_model" for role in self.role_models}
        content = {
            name: mask_settings(value, name)
            for name, value in self.model_dump(mode="json", exclude=set(left_out)).items()
        }
        stored = {new: old for old, new in type(self).renamed.items()}  # journals have the old names
        models = {role: self._model_identity(role_model) for role, role_model in self.role_models.items()}
        return {**{stored.get(name, name): value for name, value in content.items()}, "models": models}

    def _model_identity(self, role_model: RoleModel) -> dict[str, object]:
        if self.offline:
            return {"model_name": "offline"}
        stored = {new: old for old, new in RENAMED_MODEL_KEYS.items()}
        return {
            stored.get(name, name): mask_settings(self._shared(role_model, name), name)
            for name in _ANSWER_KEYS
        }


_OFFLINE: Final = "offline"
"""Name of the offline engine."""


_ENDPOINT_DEFAULTS: Final[dict[str, object]] = {"api_key": SecretStr(""), "api": "auto", "tokens": False}
"""Defaults of settings that belong to an endpoint, for a role with another endpoint."""


_ANSWER_KEYS: Final = (
    "model_name", "temperature", "top_p", "max_tokens", "max_text_chars", "seed", "extra_body", "vision", "tokens",
)  # fmt: skip
"""Settings that decide a model's answers."""
_NOT_CONTENT: Final = frozenset({
    *RoleModel.model_fields, "imports", "output_dir", "sandbox_server_url", "sandbox_token", "sandbox_auto_start", "sandbox_timeout",
    "max_sandboxes", "max_total_tokens", "max_cost", "max_seconds", "journal", "run_name", "save_prompts",
    "tracing", "host_name", "launch_id",
})  # fmt: skip


_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Ten times faster if libyaml is installed."""


def render_config(config: Settings) -> str:
    """Return the settings as YAML, secrets masked. See docs/synthesis.md."""
    masked = mask_settings(config.model_dump())
    return yaml.dump(masked, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
