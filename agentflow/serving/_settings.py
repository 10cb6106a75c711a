"""What is said about a model that is to be served."""

import sys
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from agentflow.errors import ConfigurationError
from agentflow.settings import Settings

__all__ = ["Device", "ServingSettings"]

Device: TypeAlias = Literal["auto", "cpu", "gpu"]
"""What computes; `auto`: a GPU where the environment's vLLM was built for one."""

_OWN = Path(".venv-vllm/bin/python")


class ServingSettings(Settings):
    """One model, served by vLLM."""

    model_config = SettingsConfigDict(env_prefix="AGENTFLOW_SERVING_")

    model: str = Field(min_length=1)
    """A folder with its weights and tokenizer, or a name on the hub."""
    name: str = ""
    """What requests call it; empty: as `model`."""
    python: Path | None = None
    """The Python of the environment that vLLM is installed in; none: `.venv-vllm` here, else this one."""
    host: str = "127.0.0.1"
    """The address it listens at."""
    port: int = Field(default=0, ge=0, le=65535)
    """The port; 0: any that is free."""
    key: SecretStr = SecretStr("")
    """What requests must carry; empty: a new one that only this user can read."""
    device: Device = "auto"
    """What computes."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type of its numbers; `auto`: that of the weights."""
    context: int | None = Field(default=None, ge=1)
    """The most tokens of a prompt and its answer; none: the model's own, on a CPU 8,192 of them."""
    cache_gib: float = Field(default=1.0, gt=0)
    """Memory for what it has read, on a CPU."""
    memory_share: float = Field(default=0.9, gt=0, le=1)
    """The share of a GPU's memory that it takes."""
    trains: bool = False
    """Its weights can be changed while it runs; whoever reaches its port can do that, so it listens on loopback only."""
    start_seconds: float = Field(default=600.0, gt=0)
    """How long it may take until it answers."""
    log: Path | None = None
    """Where its words go; none: a temporary file, the end of which is shown when it fails."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further options of vLLM by their names, `max-num-seqs: 64`; `true` for one that takes no value."""

    @property
    def called(self) -> str:
        """What requests call it."""
        return self.name or self.model

    def interpreter(self) -> Path:
        """The Python that runs vLLM.

        :raises ConfigurationError: if it is not there.
        """
        if self.python is None:
            return _OWN.absolute() if _OWN.exists() else Path(sys.executable)
        if not self.python.exists():
            raise ConfigurationError(f"python: there is no {self.python}; make it, or name another one")
        return self.python.absolute()
