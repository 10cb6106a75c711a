"""Settings of a served model, and the command line and environment of vLLM that follow from them."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._import_path import own_environment
from agentflow.errors import ConfigurationError
from agentflow.serving._engine_environment import ENVIRONMENT
from agentflow.serving._weights import Weights
from agentflow.settings import Settings

_INSIDE = Path(__file__).parent / "_inside"
_FEW_CORES = 4
"""Number of cores of which all compute."""
_CPU_CONTEXT = 8192
"""Maximum number of tokens that a CPU can handle."""

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json")
_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
_PARSERS = (
    ("<function=", "qwen3_xml"),
    ("<arg_key>", "glm45"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|tool▁calls▁begin|>", "deepseek_v3"),
)
"""Texts in chat templates with tools, and the parser of each; the first one that is found counts."""

Device: TypeAlias = Literal["auto", "cpu", "gpu"]
"""Device to compute on; `auto` takes a GPU if the environment's vLLM was built for one."""


class ServingSettings(Settings):
    """One model served by vLLM. See docs/serving.md."""

    model_config = SettingsConfigDict(env_prefix="AGENTFLOW_SERVING_")

    renamed: ClassVar[dict[str, str]] = {"memory_share": "gpu_memory_utilization", "context": "max_model_len"}

    model: str = Field(min_length=1)
    """Folder with weights and tokenizer, or a name on the hub."""
    name: str = ""
    """Name of the model in requests; defaults to `model`."""
    python: Path | None = None
    """The Python of the environment that vLLM is installed in; none: `.venv-vllm` of the checkout, or beside this environment; else this one."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port; 0 for any free one."""
    key: SecretStr = SecretStr("")
    """Key that requests must carry; if empty, a new one that only this user can read."""
    device: Device = "auto"
    """Device to compute on."""
    gpus: list[int] | None = None
    """Numbers of the GPUs to use; `None`: those that vLLM chooses among the visible ones."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the weights; `auto` keeps that of the files."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of a prompt and its answer; `None`: the model's own, on a CPU at most 8,192."""
    cache_gib: float | None = Field(default=None, gt=0)
    """Memory for the KV cache on a CPU, in GiB; `None`: an eighth of the machine's, from 1 to 8."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Fraction of the GPU memory that vLLM uses."""
    tool_parser: str = "auto"
    """Parser of tool calls, by vLLM's name; `auto`: the one that fits the chat template of a model on disk; empty: none."""
    reasoning_parser: str = ""
    """Parser of reasoning, by vLLM's name; empty: reasoning is recognised in the text."""
    trains: bool = False
    """Let clients with the key change the weights at runtime."""
    start_seconds: float = Field(default=600.0, gt=0)
    """Time limit for the start, in seconds."""
    log: Path | None = None
    """Log file; by default a temporary one, whose end is shown after a failure."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further options of vLLM by name, such as `max-num-seqs: 64`; `true` for an option without a value."""

    @property
    def called(self) -> str:
        """Name of the model in requests."""
        return self.name or self.model

    def interpreter(self) -> Path:
        """Return the Python that runs vLLM.

        :raises ConfigurationError: if it does not exist.
        """
        if self.python is None:
            environment_python = own_environment(ENVIRONMENT)
            return environment_python if environment_python.exists() else Path(sys.executable)
        if not self.python.exists():
            raise ConfigurationError(f"python: there is no {self.python}; create it, or name another one")
        return self.python.absolute()


def command_of(
    settings: ServingSettings, port: int, *, cpu: bool, weights: Weights | None = None
) -> list[str]:
    """Return the command line. It does not contain the key, because other users can read command lines."""
    options: dict[str, object] = {
        "model": weights.folder if weights else settings.model,
        "tokenizer": _tokenizer_of(settings, weights),
        "served-model-name": settings.called,
        "host": settings.host,
        "port": port,
        "dtype": settings.dtype,
        # Training needs the log-probabilities of the distribution that was sampled from, not the raw ones.
        "logprobs-mode": "processed_logprobs",
        # vLLM takes the backend of its first constrained request for all, and refuses tool calls if that is another one.
        "structured-outputs-config.backend": "xgrammar",
    }
    if not settings.model.endswith(".gguf"):
        # Other formats are pickles, which can run code.
        options["load-format"] = "safetensors"
    if settings.trains:
        # This API alone returns the weights version of each token.
        options["enable-scale-out"] = True
        # vLLM itself checks the key of some paths only.
        options["middleware"] = "_key_check.KeyCheck"
        options["worker-extension-cls"] = "_weight_loader.WeightLoader"
        # Tells whether a cache survived an update.
        options["enable-prompt-tokens-details"] = True
    if parser := tool_parser_of(settings):
        options |= {"enable-auto-tool-choice": True, "tool-call-parser": parser}
    if settings.reasoning_parser:
        options["reasoning-parser"] = settings.reasoning_parser
    context = settings.max_model_len or (_cpu_context(settings.model) if cpu else None)
    if context is not None:
        options["max-model-len"] = context
    if cpu:
        options["enforce-eager"] = True
        # With vLLM's 128 tokens, prompts with a common beginning of less share nothing.
        options["block-size"] = 32
        # A seeded request kills the engine when its prompt is read in chunks.
        options["no-enable-chunked-prefill"] = True
        options["max-num-batched-tokens"] = max(_CPU_CONTEXT, context or 0)
    else:
        options["gpu-memory-utilization"] = settings.gpu_memory_utilization
    words: list[str] = []
    for name, value in {**options, **settings.options}.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            words += [f"--{name}", str(value)]
    return [str(settings.interpreter()), "-m", "vllm.entrypoints.openai.api_server", *words]


def _tokenizer_of(settings: ServingSettings, weights: Weights | None) -> str:
    """Return the folder of the tokenizer: that of the weights, unless they came without one."""
    if weights is not None and any((weights.folder / name).is_file() for name in _TOKENIZERS):
        return str(weights.folder)
    return settings.model


def tool_parser_of(settings: ServingSettings) -> str:
    """Return the parser of tool calls; empty if the model has none, or its chat template is not on disk."""
    if settings.tool_parser != "auto":
        return settings.tool_parser
    template = _template_of(settings)
    return next((parser for mark, parser in _PARSERS if mark in template), "") if "tools" in template else ""


def _template_of(settings: ServingSettings) -> str:
    """Return the text that holds a model's chat template; empty if there is none on disk."""
    template = settings.options.get("chat-template")
    files = [Path(str(template))] if template else [Path(settings.model, name) for name in _TEMPLATES]
    return "".join(file.read_text(errors="replace") for file in files if file.is_file())


class _ModelConfig(Struct):
    max_position_embeddings: Annotated[int, Meta(ge=1)] = _CPU_CONTEXT


def _cpu_context(model: str) -> int | None:
    """Return a context length that a CPU can handle; `None` if the model's own is unknown here."""
    config = Path(model, "config.json")
    if not config.is_file():
        return None
    try:
        context = msgspec.json.decode(config.read_bytes(), type=_ModelConfig).max_position_embeddings
    except (OSError, *DECODE_ERRORS) as error:
        raise ConfigurationError(f"model: {config} can't be read: {decode_reason(error)}") from None
    return min(context, _CPU_CONTEXT)


def _cpu_cache_gib() -> int:
    """Return the default size of a KV cache on a CPU."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(memory // 2**33, 1), 8)


def environment_of(
    settings: ServingSettings, key: str, variables: Mapping[str, str], *, cpu: bool
) -> dict[str, str]:
    """Return the environment: that of this process, plus vLLM's variables."""
    environment = {name: value for name, value in variables.items() if not name.startswith("AGENTFLOW_")}
    environment["VLLM_API_KEY"] = key
    environment["VLLM_NO_USAGE_STATS"] = "1"
    # The default closes a connection after five idle seconds, possibly while a request is on its way.
    environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "60"
    if os.path.isdir(settings.model):
        # A model on disk needs no hub, and looking for one delays the start.
        environment["HF_HUB_OFFLINE"] = "1"
    if settings.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, settings.gpus))
    if cpu:
        environment["VLLM_TARGET_DEVICE"] = "cpu"
        environment["VLLM_CPU_KVCACHE_SPACE"] = f"{settings.cache_gib or _cpu_cache_gib():g}"
        if (os.cpu_count() or 1) <= _FEW_CORES:
            # vLLM would leave one to its scheduler, which is half of the machine.
            environment.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    if settings.trains:
        environment["VLLM_SERVER_DEV_MODE"] = "1"
        paths = (str(_INSIDE), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment
