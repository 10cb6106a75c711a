"""Settings of training with verl, and their translation to verl's configuration."""

import socket
from pathlib import Path
from typing import Any

from pydantic import Field

from agentflow._import_path import own_environment
from agentflow.errors import ConfigurationError
from agentflow.learner._policy import OptimizerSettings, PolicySettings
from agentflow.settings import Section

INSIDE = "agentflow.learner.verl._inside"
"""Package that verl loads."""
_CONNECT_SECONDS = 10.0
"""Time in which a Ray cluster must accept a connection."""
_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"
_RAY = "ray_kwargs.ray_init"


class VerlSettings(Section):
    """Environment and devices of verl. See docs/verl.md."""

    python: Path | None = None
    """Python of verl's environment; `None`: `.venv-verl` of the checkout, or beside this environment."""
    gpus: int = Field(default=0, ge=0)
    """Number of GPUs to train on, of each machine; 0: the CPU."""
    ray_address: str = ""
    """Running Ray cluster, `HOST:PORT` or `auto`; empty: verl starts its own Ray on this machine."""
    shared_folder: Path | None = None
    """Existing folder that all machines of the Ray cluster see under this path; required with `ray_address`."""
    nodes: int = Field(default=1, ge=1)
    """Number of machines of the Ray cluster to train on."""
    start_seconds: float = Field(default=900.0, gt=0)
    """Time limit for the start."""
    log: Path | None = None
    """Log file; `None`: a temporary file, whose end is shown on failure."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further settings of verl by name, `actor_rollout_ref.actor.fsdp_config.param_offload: true`; they take precedence."""

    def interpreter(self) -> Path:
        """Return the Python that runs verl.

        :raises ConfigurationError: if it does not exist.
        """
        python = own_environment(".venv-verl") if self.python is None else self.python
        if not python.exists():
            raise ConfigurationError(
                f"python: {python} does not exist; make it with `make .venv-verl/.stamp`, or name another one"
            )
        return python.absolute()

    def check_cluster(self) -> None:
        """Check that the Ray cluster answers and has a shared folder.

        :raises ConfigurationError: if it does not, or if a setting needs a cluster and none is named.
        """
        if not self.ray_address:
            if self.shared_folder is not None or self.nodes > 1:
                raise ConfigurationError(
                    "shared_folder, nodes: only a Ray cluster uses them; set ray_address"
                )
            return
        if self.shared_folder is None or not self.shared_folder.is_dir():
            raise ConfigurationError(
                f"shared_folder: {self.shared_folder or 'none'} is not a folder; "
                "name one that all machines of the Ray cluster see"
            )
        if self.ray_address == "auto":
            return
        host, _, port = self.ray_address.rpartition(":")
        try:
            # Ray would wait for minutes.
            socket.create_connection((host, int(port)), min(self.start_seconds, _CONNECT_SECONDS)).close()
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                f"ray_address: no Ray cluster answers at {self.ray_address}: {error}; use HOST:PORT or auto"
            ) from None


def command_arguments(
    policy: PolicySettings,
    optimizer: OptimizerSettings,
    settings: VerlSettings,
    base: Path,
) -> list[str]:
    """Return the arguments of verl's command.

    :param base: folder of `trainer_folder`.
    :raises ConfigurationError: if verl does not support the settings.
    """
    model = _folder_of(policy)
    options = {
        **_loop_options(base / "orders", max(settings.gpus, 1), settings.nodes),
        **_model_options(policy, model),
        **_optimizer_options(optimizer),
        **_weight_options(base / "orders", model),
        **_ray_options(settings, base),
        **({} if settings.gpus else _CPU_OPTIONS),
        **settings.options,
    }
    # `++` sets a key whether or not verl's configuration has it.
    return [f"++{name}={_text(value)}" for name, value in options.items()]


def _folder_of(policy: PolicySettings) -> Path:
    model = Path(policy.model).absolute()
    if not (model / "config.json").exists():
        raise ConfigurationError(
            f"policy.model: verl starts from a folder, and {policy.model} has no config.json"
        )
    return model


def _loop_options(folder: Path, per_node: int, nodes: int) -> dict[str, Any]:
    """Return the settings that make verl accept requests, with one step each."""
    processes = per_node * nodes
    return {
        "trainer.v1.trainer_mode": "agentflow",
        "trainer.agentflow.folder": folder,
        f"{_ROLLOUT}.agent.agent_loop_manager_class": f"{INSIDE}._manager.EpisodeManager",
        "algorithm.adv_estimator": "flow_grpo",
        # Rows have the log-probabilities of the sampling policy.
        "algorithm.rollout_correction.bypass_mode": True,
        "data.custom_cls.path": f"pkg://{INSIDE}._trainer",
        "data.custom_cls.name": "Tasks",
        "data.train_batch_size": processes,
        "data.dataloader_num_workers": 0,
        "data.shuffle": False,
        "reward.num_workers": 0,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": processes,
        "trainer.n_gpus_per_node": per_node,
        "trainer.nnodes": nodes,
        "trainer.logger": "[console]",
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        # It ends on request.
        "trainer.total_epochs": 1_000_000_000,
        "trainer.total_training_steps": 1_000_000_000,
        "hydra.run.dir": folder,
        "hydra.output_subdir": None,
    }


def _ray_options(settings: VerlSettings, base: Path) -> dict[str, Any]:
    """Return the settings of Ray. A running cluster refuses resources and folders, and its workers get verl's Python."""
    variables = {
        "VERL_USE_EXTERNAL_MODULES": INSIDE,
        "AGENTFLOW_VERL_DEVICE": "gpu" if settings.gpus else "cpu",
        "PYTHONPATH": base / "code",
    }
    options = {f"{_RAY}.runtime_env.env_vars.{name}": value for name, value in variables.items()}
    if settings.ray_address:
        return options | {
            f"{_RAY}.address": settings.ray_address,
            f"{_RAY}.runtime_env.py_executable": settings.interpreter(),
        }
    options |= {f"{_RAY}.include_dashboard": False, f"{_RAY}._temp_dir": base / "ray"}
    return options if settings.gpus else options | _OWN_RAY_ON_CPU


def _model_options(policy: PolicySettings, model: Path) -> dict[str, Any]:
    short = "fp32" if policy.dtype == "float32" else "bf16"
    checkpointing = policy.gradient_checkpointing
    options: dict[str, Any] = {
        f"{_MODEL}.path": model,
        f"{_MODEL}.trust_remote_code": policy.trust_remote_code,
        f"{_MODEL}.enable_gradient_checkpointing": True if checkpointing is None else checkpointing,
        f"{_ACTOR}.strategy": "fsdp2",
        f"{_ACTOR}.fsdp_config.mixed_precision": f"{{param_dtype: {short}, reduce_dtype: fp32, buffer_dtype: fp32}}",
        f"{_ACTOR}.fsdp_config.seed": policy.seed,
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": policy.token_budget,
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz": True,
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": policy.token_budget,
    }
    if policy.lora is not None:
        modules = policy.lora.target_modules
        options |= {
            f"{_MODEL}.lora_rank": policy.lora.rank,
            f"{_MODEL}.lora_alpha": policy.lora.alpha,
            f"{_MODEL}.target_modules": modules if isinstance(modules, str) else f"[{','.join(modules)}]",
            # The engine gets merged weights.
            f"{_MODEL}.lora.merge": True,
        }
    return options


def _optimizer_options(optimizer: OptimizerSettings) -> dict[str, Any]:
    if optimizer.lr_scheduler_type == "linear":
        raise ConfigurationError(
            "optimizer.lr_scheduler_type: verl does not support linear; set constant or cosine"
        )
    return {
        f"{_ACTOR}.optim.lr": optimizer.learning_rate,
        f"{_ACTOR}.optim.weight_decay": optimizer.weight_decay,
        f"{_ACTOR}.optim.betas": f"[{optimizer.betas[0]},{optimizer.betas[1]}]",
        f"{_ACTOR}.optim.override_optimizer_config": f"{{eps: {optimizer.adam_epsilon}}}",
        f"{_ACTOR}.optim.lr_warmup_steps": optimizer.warmup_steps,
        f"{_ACTOR}.optim.lr_scheduler_type": optimizer.lr_scheduler_type,
        f"{_ACTOR}.optim.min_lr_ratio": optimizer.min_lr_ratio,
        f"{_ACTOR}.grad_clip": optimizer.max_grad_norm,
        f"{_ACTOR}.optim.clip_grad": optimizer.max_grad_norm,
        **(
            {"trainer.total_training_steps": optimizer.decay_steps}
            if optimizer.lr_scheduler_type == "cosine"
            else {}
        ),
    }


def _weight_options(folder: Path, model: Path) -> dict[str, Any]:
    engine = f"{_ROLLOUT}.checkpoint_engine"
    return {
        f"{_ROLLOUT}.name": "agentflow",
        f"{_ROLLOUT}.n": 1,
        # Read only by a server manager, which serves nothing here.
        f"{_ROLLOUT}.nnodes": 1,
        f"{_ACTOR}.ppo_mini_batch_size": 1,
        f"{engine}.backend": "agentflow",
        f"{engine}.engine_kwargs.agentflow.folder": folder / "weights",
        f"{engine}.engine_kwargs.agentflow.model": model,
    }


_OWN_RAY_ON_CPU: dict[str, Any] = {
    # verl counts GPUs in Ray; here each stands for a process.
    f"{_RAY}.num_cpus": 16,
    f"{_RAY}.num_gpus": 1,
    f"{_RAY}.object_store_memory": 100_000_000,
}
_CPU_OPTIONS: dict[str, Any] = {
    "trainer.device": "cpu",
    f"{_MODEL}.use_remove_padding": False,
    f"{_MODEL}.enable_gradient_checkpointing": False,
    f"{_MODEL}.override_config.attn_implementation": "sdpa",
    f"{_ACTOR}.use_torch_compile": False,
    f"{_ACTOR}.fsdp_config.use_torch_compile": False,
}


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
