# pyright: basic, reportMissingImports=false
"""A verl trainer that accepts requests (`trainer.v1.trainer_mode=agentflow`), and its export of the weights."""

import os
import shutil
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed
import transfer_queue as tq
from omegaconf import open_dict
from safetensors.torch import save_file
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.utils.device import get_device_name
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from agentflow.learner._exchange import TrainerRequest, TrainerResponse
from agentflow.learner.losses import merge_figures
from agentflow.learner.packing import Row
from agentflow.learner.verl._inside._losses import LARGEST, MEANS, OURS, RowLoss, VerlObject

REFERENCE = "reference"
TODAY = "today"


def _refuse_another_run() -> None:
    """Refuse a Ray cluster on which another run of verl trains.

    TransferQueue has one controller for a cluster: a second run would use the first one's, and kill it at its end.
    """
    with suppress(ValueError):
        controller = ray.get_actor("TransferQueueController", namespace="transfer_queue")
        if controller._actor_id.job_id.hex() != ray.get_runtime_context().get_job_id():
            raise RuntimeError("another run of verl trains on this Ray cluster; wait for its end")


class Finished(Exception):
    """There are no more requests."""


class VerlActor(DetachActorWorker):
    """verl's worker. On the CPU it joins its group first: verl would name a device twice (`cpu:gloo,cpu:gloo`)."""

    def init_model(self) -> None:
        if get_device_name() == "cpu" and not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
            )
        super().init_model()

    @property
    def copy_handler(self) -> VerlObject:
        """Saving of weights: verl uses `.cpu()`, which does not copy tensors on the CPU."""
        put_aside = super().copy_handler

        def copied(module: torch.nn.Module) -> VerlObject:
            shards, spec = put_aside(module)
            return {name: (shard.clone(), its) for name, (shard, its) in shards.items()}, spec

        return copied

    # verl's dispatch information is an attribute of the function.
    init_model.__dict__.update(DetachActorWorker.init_model.__dict__)


class Tasks(torch.utils.data.Dataset):
    """The prompts of verl's data loader, which are ignored."""

    def __init__(self, config: VerlObject, **_given: VerlObject) -> None:
        self._number = int(config.train_batch_size)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"raw_prompt": [{"role": "user", "content": ""}], "index": place}


@register_trainer("agentflow")
class RequestTrainer(PPOTrainer):
    """Makes steps on request, with the given rows."""

    # Nothing is generated on the machines that train.
    _enable_hybrid_replicas = False

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self.role_worker_mapping[Role.Actor] = ray.remote(VerlActor)

    def on_init_end(self) -> None:
        self.actor_rollout_wg.save_model_to_cpu(REFERENCE)

    def fit(self, agent_loop_manager: VerlObject) -> None:
        agent_loop_manager.ready()
        try:
            super().fit(agent_loop_manager)
        except Finished:
            return

    def prepare_step(self) -> dict[str, Any]:
        """Handle requests until one is a step."""
        manager = self.agent_loop_manager
        while True:
            request, rows = manager.next_request()
            if request.kind == "step":
                self._at_temperature(rows)
                self.actor_rollout_wg.set_loss_fn(RowLoss(request.loss))
                return super().prepare_step()
            if request.kind == "close":
                manager.answer(TrainerResponse())
                raise Finished
            try:
                arrays = self._do(request, rows)
            # boundary: any error of verl is returned as the response.
            except Exception as error:
                manager.answer(
                    TrainerResponse(error=f"{type(error).__name__}: {error}".splitlines()[0][:300])
                )
            else:
                manager.answer(TrainerResponse(), arrays)

    def _do(self, request: TrainerRequest, rows: list[Row]) -> dict[str, Any]:
        match request.kind:
            case "log_probs":
                self._at_temperature(rows)
                return {"log_probs": self._log_probs(rows, request.reference)}
            case "export":
                ray.get(
                    self.actor_rollout_wg.update_weights(global_steps=self.global_steps, mode="agentflow")
                )
            case "save":
                with open_dict(self.config):
                    self.config.trainer.default_local_dir = request.folder
                self._save_checkpoint()
                # The data loader and the queue have no state worth keeping.
                for part in ("data.pt", "transfer_queue"):
                    for path in Path(request.folder).glob(f"global_step_*/{part}"):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
            case "load":
                self._go_on_from(Path(request.folder))
        return {}

    def _at_temperature(self, rows: list[Row]) -> None:
        with open_dict(self.config):
            self.config.actor_rollout_ref.rollout.temperature = rows[0].temperature

    def _log_probs(self, rows: list[Row], reference: bool) -> np.ndarray:
        if not reference:
            return self._scored(rows)
        self.actor_rollout_wg.save_model_to_cpu(TODAY)
        self.actor_rollout_wg.restore_model_from_cpu(REFERENCE)
        try:
            return self._scored(rows)
        finally:
            self.actor_rollout_wg.restore_model_from_cpu(TODAY)
            self.actor_rollout_wg.clear_cpu_model(TODAY)

    def _scored(self, rows: list[Row]) -> np.ndarray:
        keys, tags = self.agent_loop_manager.put(uuid.uuid4().hex, rows, self.global_steps)
        extra = {
            "calculate_entropy": False,
            "compute_loss": False,
            "temperature": self.config.actor_rollout_ref.rollout.temperature,
        }
        batch = KVBatchMeta(partition_id="train", keys=keys, tags=tags, extra_info=extra)
        self.actor_rollout_wg.compute_log_prob(batch)
        names = ["log_probs", "response_mask"]
        data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=names)
        tq.kv_clear(keys=keys, partition_id="train")
        lines = zip(data["log_probs"].unbind(), data["response_mask"].unbind(), strict=True)
        # The entry at a token belongs to the next one; rows added as padding come last and have no token.
        return torch.cat([line[-len(mask) - 1 : -1][mask.bool()] for line, mask in lines]).numpy()

    def _go_on_from(self, folder: Path) -> None:
        (step,) = folder.glob("global_step_*")
        with open_dict(self.config):
            self.config.trainer.resume_mode = "resume_path"
            self.config.trainer.resume_from_path = str(step)
        self._load_checkpoint()
        # The next step is being prepared.
        self.global_steps += 1

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Make one optimizer step, whatever the number of rows."""
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.ppo_mini_batch_size = len(batch)
        done = super()._update_actor(batch, metrics)
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.ppo_mini_batch_size = 1
        return done

    def _step_once(
        self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int
    ) -> KVBatchMeta:
        batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        self.agent_loop_manager.answer(TrainerResponse(figures=_figures(metrics)))
        return batch

    def on_step_end(self) -> None: ...

    def on_sample_end(self) -> None: ...


def _figures(metrics: dict[str, Any]) -> dict[str, float]:
    """Return verl's figures under AgentFlow's names."""

    def of(name: str) -> float:
        return float(metrics[f"actor/{name}"])

    length, tokens = of("grad_norm"), of(f"{OURS}tokens")
    if not np.isfinite(length):
        return {"step/skipped": 1.0}
    means = {name: of(OURS + name) / max(tokens, 1.0) for name in MEANS}
    largest = {name: of(OURS + name) for name in LARGEST}
    return {
        **merge_figures([{"loss/tokens": tokens, **means, **largest}]),
        "step/loss": of(f"{OURS}loss"),
        "step/gradient_norm": length,
        "step/rate": of("lr"),
        "step/skipped": 0.0,
    }


@CheckpointEngineRegistry.register("agentflow")
class FolderWeights(CheckpointEngine):
    """Writes the weights it is asked to send; there is no receiver in verl."""

    def __init__(self, bucket_size: int, is_master: bool = False, folder: str = "", model: str = "") -> None:
        self.is_master = is_master
        self.folder = Path(folder)
        self.model = Path(model)

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Write the weights; every process takes part in gathering each tensor."""
        tensors = dict[str, torch.Tensor]()
        for name, tensor in weights:
            if self.is_master:
                tensors[name] = tensor.detach().cpu().contiguous().clone()
        if self.is_master:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            for path in self.model.iterdir():
                if (
                    path.is_file()
                    and path.suffix in {".json", ".txt", ".jinja", ".model"}
                    and "index" not in path.name
                ):
                    shutil.copy(path, self.folder)
            save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[Any]:
        raise NotImplementedError
        yield

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(cls, *_given: VerlObject) -> tuple[dict[str, Any], dict[str, Any]]:
        raise NotImplementedError

    def init_process_group(self, **_given: VerlObject) -> None: ...

    def finalize(self) -> None: ...


EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(
    FSDPEngineWithLMHead
)
# Nothing is generated here, so no replica is ever made.
RolloutReplicaRegistry.register("agentflow", lambda: RolloutReplica)
_refuse_another_run()
