"""Settings of training with Trinity-RFT, and their translation to Trinity's configuration."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from agentflow._import_path import own_environment
from agentflow._typeguards import is_object
from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.learner._policy import LoraSettings, OptimizerSettings, PolicySettings
from agentflow.learner.losses import LossSettings
from agentflow.settings import Section

INSIDE = "agentflow.learner.trinity._inside"
"""Package that runs in Trinity's environment."""
JOB = "job"
"""Folder of checkpoints, below the base folder."""
_CLIPPED = frozenset({"flow_grpo", "grpo", "dapo", "dr_grpo"})
"""Losses that Trinity's `ppo` computes; they differ in advantages and weights, which rows bring along."""
_NO_CLIP = 1e9
_KL_FUNCTIONS = {"k1": "k1", "k2": "k2", "k3": "low_var_kl"}
"""Trinity's names of the estimators of the KL divergence."""


class ExplorerSettings(Section):
    """Trinity's explorer: an OpenAI server beside the trainer. Each checkpoint updates its weights while steps go on."""

    engines: int = Field(default=1, ge=1)
    """Number of vLLM engines."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs of each engine, besides those of the trainer."""
    port: int = Field(default=8010, ge=1, le=65535)
    """Port of the server, which listens on loopback."""


class TrinitySettings(Section):
    """Environment and devices of Trinity. See docs/trinity.md."""

    python: Path | None = None
    """Python of Trinity's environment; `None`: `.venv-trinity` of the checkout, or beside this environment."""
    gpus: int = Field(default=1, ge=1)
    """Number of GPUs to train on; Trinity has no step on a CPU."""
    explorer: ExplorerSettings | None = None
    """Also serve the policy by Trinity's asynchronous explorer; `None`: only by AgentFlow's engine."""
    max_rows: int = Field(default=512, ge=1)
    """Rows of a step. Trinity's batches have one size, so smaller steps are filled up with rows that add nothing."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Time limit for the start."""
    step_seconds: float = Field(default=3600.0, gt=0)
    """Time limit for a step and its checkpoint."""
    log: Path | None = None
    """Log file; `None`: a temporary file, whose end is shown on failure."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further settings of Trinity by name, `trainer.param_offload: true`; they take precedence."""

    def interpreter(self) -> Path:
        """Return the Python that runs Trinity.

        :raises ConfigurationError: if it does not exist.
        """
        python = own_environment(".venv-trinity") if self.python is None else self.python
        if not python.exists():
            raise ConfigurationError(
                f"python: {python} does not exist; make it with `make .venv-trinity/.stamp`, or name another one"
            )
        return python.absolute()


def refuse_unsupported(
    policy: PolicySettings, optimizer: OptimizerSettings, settings: TrinitySettings
) -> None:
    """Refuse settings that Trinity does not support.

    :raises ConfigurationError: one line.
    """
    if not (Path(policy.model) / "config.json").exists():
        raise ConfigurationError(
            f"policy.model: Trinity starts from a folder, and {policy.model} has no config.json"
        )
    if policy.lora is not None and find_spec("peft") is None:
        raise ConfigurationError(missing_extra("policy.lora with backbone=trinity", "train"))
    if policy.lora is not None and not isinstance(policy.lora.target_modules, str):
        raise ConfigurationError(
            "policy.lora.target_modules: Trinity takes one name or pattern; set all-linear, or a regular expression"
        )
    if optimizer.lr_scheduler_type == "linear":
        raise ConfigurationError(
            "optimizer.lr_scheduler_type: Trinity does not support linear; set constant or cosine"
        )
    if settings.max_rows % settings.gpus:
        raise ConfigurationError(
            f"trinity.max_rows: {settings.max_rows} rows can't be divided among {settings.gpus} GPUs; "
            f"set a multiple of {settings.gpus}"
        )


def unsupported_loss(loss: LossSettings) -> str:
    """Return the reason for which Trinity can't compute a loss from rows, one line; empty: it can.

    See docs/trinity.md.
    """
    if loss.name not in _CLIPPED:
        return f"loss.name: backbone=trinity computes {', '.join(sorted(_CLIPPED))}, not {loss.name}; use one of them"
    if loss.entropy_coef:
        return "loss.entropy_coef: backbone=trinity has no entropy bonus; set it to 0"
    if loss.correction == "mask":
        return "loss.correction: backbone=trinity can't mask tokens; set truncate or none"
    return ""


def algorithm_options(loss: LossSettings) -> dict[str, Any]:
    """Return the part of Trinity's `algorithm` section that depends on the loss.

    Example::

        assert algorithm_options(LossSettings(name="dapo"))["policy_loss_fn_args"]["clip_range_high"] == 0.28
    """
    arguments: dict[str, Any] = {
        "clip_range_low": loss.clip_ratio_low,
        "clip_range_high": loss.clip_ratio_high,
        "clip_ratio_c": _NO_CLIP if loss.clip_ratio_c is None else loss.clip_ratio_c,
    }
    if not loss.kl_coef:
        return {
            "algorithm_type": "dapo",
            "policy_loss_fn": f"{INSIDE}.WeightedSumLoss",
            "policy_loss_fn_args": arguments,
        }
    return {
        # Of the two algorithms, this one has a reference policy.
        "algorithm_type": "grpo",
        "policy_loss_fn": f"{INSIDE}.WeightedSumLossWithKL",
        "policy_loss_fn_args": arguments
        | {"kl_fn": _KL_FUNCTIONS[loss.kl_estimator], "kl_coef": loss.kl_coef},
    }


def trinity_configuration(
    policy: PolicySettings,
    optimizer: OptimizerSettings,
    loss: LossSettings,
    settings: TrinitySettings,
    base: Path,
    *,
    temperature: float = 1.0,
) -> dict[str, Any]:
    """Return Trinity's configuration of the trainer, which reads steps from its SQL buffer.

    :param base: base folder; checkpoints, buffer and figures are below it.
    """
    configuration: dict[str, Any] = {
        # Trinity's own advantages are computed by its explorer, which does not run: those of the rows stay.
        "mode": "train",
        "project": "",
        "group": "",
        "name": JOB,
        "checkpoint_root_dir": str(base),
        "continue_from_checkpoint": True,
        "algorithm": {
            **algorithm_options(loss),
            "advantage_fn": "grpo",
            "kl_penalty_fn": "none",
            # The policy loss contains it: alone it would be a mean that differs by micro-batch.
            "kl_loss_fn": "none",
            "entropy_loss_fn": "none",
            # The old probabilities are those of the engine, as the rows have them.
            "bypass_old_logprobs": True,
            "optimizer": {
                "lr": optimizer.learning_rate,
                "lr_warmup_steps": optimizer.warmup_steps,
                "min_lr_ratio": optimizer.min_lr_ratio,
                "lr_scheduler_type": optimizer.lr_scheduler_type,
                "betas": list(optimizer.betas),
                "weight_decay": optimizer.weight_decay,
                "clip_grad": optimizer.max_grad_norm,
            },
        },
        "model": {
            "model_path": str(Path(policy.model).absolute()),
            "trust_remote_code": policy.trust_remote_code,
            "temperature": temperature,
            # Read by the explorer's engine.
            "max_model_len": policy.token_budget,
            "lora_configs": None if policy.lora is None else [_lora_options(policy.lora)],
        },
        # Both numbers are given: Trinity changes the mode where it finds a single GPU itself.
        "cluster": {"ray_address": "local", "node_num": 1, "gpu_per_node": settings.gpus},
        "buffer": {
            "train_batch_size": settings.max_rows,
            "trainer_input": {
                "experience_buffer": {
                    "name": "rows",
                    "storage_type": "sql",
                    "path": f"sqlite:///{base / 'rows.db'}",
                    # An episode takes as long as it takes.
                    "max_read_timeout": 1e9,
                }
            },
        },
        "trainer": {
            "trainer_type": "verl",
            "trainer_strategy": "fsdp2",
            "save_interval": 1,
            "save_hf_checkpoint": "always",
            "max_checkpoints_to_keep": 2,
            "grad_clip": optimizer.max_grad_norm,
            "max_token_len_per_gpu": policy.token_budget,
            "trainer_config": {
                "actor": {
                    "optim": {
                        "override_optimizer_config": {"eps": optimizer.adam_epsilon},
                        **({"total_training_steps": optimizer.decay_steps} if optimizer.decay_steps else {}),
                    },
                    "fsdp_config": {
                        "dtype": "float32" if policy.dtype == "float32" else "bfloat16",
                        "seed": policy.seed,
                    },
                }
            },
        },
        "synchronizer": _synchronizer(settings),
        "monitor": {"monitor_type": f"{INSIDE}.FigureMonitor"},
    }
    for name, value in settings.options.items():
        _set(configuration, name, value)
    return configuration


def explorer_configuration(trainer: dict[str, Any], settings: ExplorerSettings) -> dict[str, Any]:
    """Return Trinity's configuration of the explorer beside a trainer: the same job in another mode.

    See docs/trinity.md.

    :param trainer: result of `trinity_configuration`.
    """
    engine = {
        "engine_num": settings.engines,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "dtype": trainer["trainer"]["trainer_config"]["actor"]["fsdp_config"]["dtype"],
    }
    return trainer | {
        "mode": "serve",
        "cluster": trainer["cluster"] | {"gpu_per_node": settings.engines * settings.tensor_parallel_size},
        "explorer": {
            "rollout_model": engine,
            "listen_address": "127.0.0.1",
            "proxy_port": settings.port,
            "eval_on_startup": False,
        },
    }


def _lora_options(lora: LoraSettings) -> dict[str, Any]:
    return {
        "name": "policy",
        "lora_rank": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": lora.target_modules,
    }


def _synchronizer(settings: TrinitySettings) -> dict[str, Any]:
    shared = {"sync_method": "checkpoint", "sync_interval": 1}
    # Neither side waits for the other.
    return shared if settings.explorer is None else shared | {"sync_style": "fully_async"}


def _set(configuration: dict[str, Any], name: str, value: object) -> None:
    *path, last = name.split(".")
    section = configuration
    for key in path:
        below: object = section.setdefault(key, {})
        if not is_object(below):
            raise ConfigurationError(
                f"trinity.options: {name} is not a setting of Trinity; {key} has no settings below it"
            )
        section = below
    section[last] = value
