"""Command line and environment of vLLM."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from agentflow.serving._settings import ServingSettings
from agentflow.serving._weights import Weights

_BEARABLE = 8192


class _ModelConfig(Struct):
    max_position_embeddings: int = _BEARABLE


def command_of(
    settings: ServingSettings, port: int, *, cpu: bool, weights: Weights | None = None
) -> list[str]:
    """Return the command line. It does not contain the key, because other users can read command lines."""
    options: dict[str, object] = {
        "model": weights.folder if weights else settings.model,
        # A trainer's checkpoint has no tokenizer.
        "tokenizer": settings.model,
        "served-model-name": settings.called,
        "host": settings.host,
        "port": port,
        "dtype": settings.dtype,
        # Training needs the log-probabilities of the distribution that was sampled from, not the raw ones.
        "logprobs-mode": "processed_logprobs",
    }
    if settings.trains:
        # This API alone returns the weights version of each token.
        options["enable-scale-out"] = True
    context = settings.max_model_len or (_bearable(settings.model) if cpu else None)
    if context is not None:
        options["max-model-len"] = context
    if cpu:
        options["enforce-eager"] = True
        # A seeded request kills the engine when its prompt is read in chunks.
        options["no-enable-chunked-prefill"] = True
        options["max-num-batched-tokens"] = max(_BEARABLE, context or 0)
    else:
        options["gpu-memory-utilization"] = settings.gpu_memory_utilization
    words: list[str] = []
    for name, value in {**options, **settings.options}.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            words += [f"--{name}", str(value)]
    return [str(settings.interpreter()), "-m", "vllm.entrypoints.openai.api_server", *words]


def _bearable(model: str) -> int | None:
    """Return a context length that a CPU can handle; `None` if the model's own is unknown here."""
    config = Path(model, "config.json")
    if not config.is_file():
        return None
    own = msgspec.json.decode(config.read_bytes(), type=_ModelConfig).max_position_embeddings
    return min(own, _BEARABLE)


def environment_of(
    settings: ServingSettings, key: str, given: Mapping[str, str], *, cpu: bool
) -> dict[str, str]:
    """Return the environment: that of this process, plus vLLM's variables."""
    environment = {name: value for name, value in given.items() if not name.startswith("AGENTFLOW_")}
    environment["VLLM_API_KEY"] = key
    environment["VLLM_NO_USAGE_STATS"] = "1"
    # The default closes a connection after five idle seconds, possibly while a request is on its way.
    environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "60"
    if os.path.isdir(settings.model):
        # A model on disk needs no hub, and looking for one delays the start.
        environment["HF_HUB_OFFLINE"] = "1"
    if cpu:
        environment["VLLM_TARGET_DEVICE"] = "cpu"
        environment["VLLM_CPU_KVCACHE_SPACE"] = f"{settings.cache_gib:g}"
    if settings.trains:
        environment["VLLM_SERVER_DEV_MODE"] = "1"
    return environment
