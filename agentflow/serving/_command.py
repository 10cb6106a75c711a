"""How vLLM is started."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from agentflow.serving._settings import ServingSettings
from agentflow.serving._weights import Weights

__all__ = ["command_of", "environment_of"]

_BEARABLE = 8192


class _ModelConfig(Struct):
    max_position_embeddings: int = _BEARABLE


def command_of(
    settings: ServingSettings, port: int, *, cpu: bool, weights: Weights | None = None
) -> list[str]:
    """The command; its key is not in it, for a command line can be read by all."""
    options: dict[str, object] = {
        "model": weights.folder if weights else settings.model,
        # What a trainer writes has no tokenizer.
        "tokenizer": settings.model,
        "served-model-name": settings.called,
        "host": settings.host,
        "port": port,
        "dtype": settings.dtype,
        # What a sampled token is trained with is the distribution it was drawn from, not the raw one.
        "logprobs-mode": "processed_logprobs",
    }
    if settings.trains:
        # The only door that says by which weights each token was drawn.
        options["enable-scale-out"] = True
    context = settings.context or (_bearable(settings.model) if cpu else None)
    if context is not None:
        options["max-model-len"] = context
    if cpu:
        options["enforce-eager"] = True
        # A seeded request kills the engine once a prompt is read in pieces.
        options["no-enable-chunked-prefill"] = True
        options["max-num-batched-tokens"] = max(_BEARABLE, context or 0)
    else:
        options["gpu-memory-utilization"] = settings.memory_share
    words: list[str] = []
    for name, value in {**options, **settings.options}.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False and value is not None:
            words += [f"--{name}", str(value)]
    return [str(settings.interpreter()), "-m", "vllm.entrypoints.openai.api_server", *words]


def _bearable(model: str) -> int | None:
    """As much context as a CPU can be asked for; `None`: the model's own is not known here."""
    config = Path(model, "config.json")
    if not config.is_file():
        return None
    own = msgspec.json.decode(config.read_bytes(), type=_ModelConfig).max_position_embeddings
    return min(own, _BEARABLE)


def environment_of(
    settings: ServingSettings, key: str, given: Mapping[str, str], *, cpu: bool
) -> dict[str, str]:
    """Its environment: that of this process, with what vLLM is told by variables."""
    environment = {name: value for name, value in given.items() if not name.startswith("AGENTFLOW_")}
    environment["VLLM_API_KEY"] = key
    environment["VLLM_NO_USAGE_STATS"] = "1"
    # By itself it closes what was idle for five seconds, while somebody may just be asking for more.
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
