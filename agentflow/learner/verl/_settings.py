"""What is said about training with verl."""

from pathlib import Path
from typing import Any

from pydantic import Field

from agentflow.errors import ConfigurationError
from agentflow.learner._policy import OptimiserSettings, PolicySettings
from agentflow.settings import Section

__all__ = ["INSIDE", "VerlSettings", "words_of"]

INSIDE = "agentflow.learner.verl._inside"
"""What verl loads of ours."""
_OWN = Path(".venv-verl/bin/python")
_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"


class VerlSettings(Section):
    """Where verl runs, and on what."""

    python: Path | None = None
    """The Python of the environment that verl is installed in; none: `.venv-verl` here."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of this machine that are trained on; 0: the CPU."""
    start_seconds: float = Field(default=900.0, gt=0)
    """How long it may take until it is ready."""
    log: Path | None = None
    """Where its words go; none: a temporary file, the end of which is shown when it fails."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further settings of verl by their names, `actor_rollout_ref.actor.fsdp_config.param_offload: true`; they win."""

    def interpreter(self) -> Path:
        """The Python that runs verl.

        :raises ConfigurationError: if it is not there.
        """
        python = _OWN if self.python is None else self.python
        if not python.exists():
            raise ConfigurationError(
                f"python: there is no {python}; make it with `make .venv-verl/.stamp`, or name another one"
            )
        return python.absolute()


def words_of(
    policy: PolicySettings,
    optimiser: OptimiserSettings,
    settings: VerlSettings,
    folder: Path,
    temporary: Path,
) -> list[str]:
    """Everything as verl's command takes it.

    :param folder: where orders are found.
    :param temporary: where Ray keeps its files; a short path, for its sockets' sake.
    :raises ConfigurationError: if verl can't do what is wanted.
    """
    processes = max(settings.gpus, 1)
    model = _folder_of(policy)
    said = {
        **_of_the_loop(folder, processes),
        **_of_the_model(policy, model),
        **_of_the_optimiser(optimiser),
        **_of_the_weights(folder, model),
        "ray_kwargs.ray_init._temp_dir": temporary,
        **({} if settings.gpus else _ON_A_CPU),
        **settings.options,
    }
    # `++`: whether verl's own configuration names it or not.
    return [f"++{name}={_word(value)}" for name, value in said.items()]


def _folder_of(policy: PolicySettings) -> Path:
    model = Path(policy.model).absolute()
    if not (model / "config.json").exists():
        raise ConfigurationError(
            f"policy.model: verl starts from a folder, and {policy.model} has no config.json"
        )
    return model


def _of_the_loop(folder: Path, processes: int) -> dict[str, Any]:
    """What makes verl take orders, and one step of each."""
    return {
        "trainer.v1.trainer_mode": "agentflow",
        "trainer.agentflow.folder": folder,
        f"{_ROLLOUT}.agent.agent_loop_manager_class": f"{INSIDE}._manager.EpisodeManager",
        "algorithm.adv_estimator": "flow_grpo",
        # Rows bring the probabilities that they were sampled with.
        "algorithm.rollout_correction.bypass_mode": True,
        "data.custom_cls.path": f"pkg://{INSIDE}._trainer",
        "data.custom_cls.name": "Tasks",
        "data.train_batch_size": processes,
        "data.dataloader_num_workers": 0,
        "data.shuffle": False,
        "reward.num_workers": 0,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": processes,
        "trainer.n_gpus_per_node": processes,
        "trainer.logger": "[console]",
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        # It ends when it is told to.
        "trainer.total_epochs": 1_000_000_000,
        "trainer.total_training_steps": 1_000_000_000,
        "ray_kwargs.ray_init.include_dashboard": False,
        "ray_kwargs.ray_init.runtime_env.env_vars": f"{{VERL_USE_EXTERNAL_MODULES: {INSIDE}}}",
        "hydra.run.dir": folder,
        "hydra.output_subdir": None,
    }


def _of_the_model(policy: PolicySettings, model: Path) -> dict[str, Any]:
    short = {"float32": "fp32", "bfloat16": "bf16"}[policy.dtype]
    checkpointing = policy.gradient_checkpointing
    said: dict[str, Any] = {
        f"{_MODEL}.path": model,
        f"{_MODEL}.trust_remote_code": policy.trust_code,
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
        modules = policy.lora.modules
        said |= {
            f"{_MODEL}.lora_rank": policy.lora.rank,
            f"{_MODEL}.lora_alpha": policy.lora.alpha,
            f"{_MODEL}.target_modules": modules if isinstance(modules, str) else f"[{','.join(modules)}]",
            # An engine gets whole weights.
            f"{_MODEL}.lora.merge": True,
        }
    return said


def _of_the_optimiser(optimiser: OptimiserSettings) -> dict[str, Any]:
    if optimiser.schedule == "linear":
        raise ConfigurationError("optimiser.schedule: verl has no linear one; set constant or cosine")
    return {
        f"{_ACTOR}.optim.lr": optimiser.rate,
        f"{_ACTOR}.optim.weight_decay": optimiser.weight_decay,
        f"{_ACTOR}.optim.betas": f"[{optimiser.betas[0]},{optimiser.betas[1]}]",
        f"{_ACTOR}.optim.override_optimizer_config": f"{{eps: {optimiser.epsilon}}}",
        f"{_ACTOR}.optim.lr_warmup_steps": optimiser.warmup,
        f"{_ACTOR}.optim.lr_scheduler_type": optimiser.schedule,
        f"{_ACTOR}.optim.min_lr_ratio": optimiser.floor,
        f"{_ACTOR}.grad_clip": optimiser.clip,
        f"{_ACTOR}.optim.clip_grad": optimiser.clip,
        **({"trainer.total_training_steps": optimiser.steps} if optimiser.schedule == "cosine" else {}),
    }


def _of_the_weights(folder: Path, model: Path) -> dict[str, Any]:
    engine = f"{_ROLLOUT}.checkpoint_engine"
    return {
        f"{_ROLLOUT}.name": "agentflow",
        f"{_ROLLOUT}.n": 1,
        # Only a manager of servers that serves nothing asks for it.
        f"{_ROLLOUT}.nnodes": 1,
        f"{_ACTOR}.ppo_mini_batch_size": 1,
        f"{engine}.backend": "agentflow",
        f"{engine}.engine_kwargs.agentflow.folder": folder / "weights",
        f"{engine}.engine_kwargs.agentflow.model": model,
    }


_ON_A_CPU: dict[str, Any] = {
    "trainer.device": "cpu",
    # Ray counts GPUs in verl; here each stands for a process.
    "ray_kwargs.ray_init.num_cpus": 16,
    "ray_kwargs.ray_init.num_gpus": 1,
    "ray_kwargs.ray_init.object_store_memory": 100_000_000,
    f"{_MODEL}.use_remove_padding": False,
    f"{_MODEL}.enable_gradient_checkpointing": False,
    f"{_MODEL}.override_config.attn_implementation": "sdpa",
    f"{_ACTOR}.use_torch_compile": False,
    f"{_ACTOR}.fsdp_config.use_torch_compile": False,
}


def _word(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
