"""Settings of a served model."""

import sys
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from agentflow.errors import ConfigurationError
from agentflow.settings import Settings

Device: TypeAlias = Literal["auto", "cpu", "gpu"]
"""Device to compute on; `auto` takes a GPU if the environment's vLLM was built for one."""

_OWN = Path(".venv-vllm/bin/python")


class ServingSettings(Settings):
    """One model served by vLLM. See docs/serving.md."""

    model_config = SettingsConfigDict(env_prefix="AGENTFLOW_SERVING_")

    renamed: ClassVar[dict[str, str]] = {"memory_share": "gpu_memory_utilization", "context": "max_model_len"}

    model: str = Field(min_length=1)
    """Folder with weights and tokenizer, or a name on the hub."""
    name: str = ""
    """Name of the model in requests; defaults to `model`."""
    python: Path | None = None
    """The Python of the environment that vLLM is installed in; none: `.venv-vllm` here, else this one."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port; 0 for any free one."""
    key: SecretStr = SecretStr("")
    """Key that requests must carry; if empty, a new one that only this user can read."""
    device: Device = "auto"
    """Device to compute on."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the weights; `auto` keeps that of the files."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of a prompt and its answer; `None`: the model's own, on a CPU at most 8,192."""
    cache_gib: float = Field(default=1.0, gt=0)
    """Memory for the KV cache on a CPU, in GiB."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Fraction of the GPU memory that vLLM uses."""
    trains: bool = False
    """Let clients change the weights at runtime. Anyone who reaches the port can do so, so it listens on loopback only."""
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
            return _OWN.absolute() if _OWN.exists() else Path(sys.executable)
        if not self.python.exists():
            raise ConfigurationError(f"python: there is no {self.python}; create it, or name another one")
        return self.python.absolute()
