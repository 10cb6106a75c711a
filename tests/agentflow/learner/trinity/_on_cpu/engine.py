# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202
"""A training engine for Trinity on the CPU: its batches, its loss and its checkpoints, without verl's workers."""

import logging
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from trinity.algorithm import POLICY_LOSS_FN
from trinity.trainer.trainer import TrainEngineWrapper
from trinity.trainer.verl.utils import to_data_proto


class VERLTrainer(TrainEngineWrapper):
    def __init__(self, config) -> None:
        self.config = config
        self.job = Path(config.checkpoint_job_dir)
        self.step_number = 0
        self.log = logging.getLogger(__name__)
        algorithm = config.algorithm
        self.loss = POLICY_LOSS_FN.get(algorithm.policy_loss_fn)(
            backend="verl", **algorithm.policy_loss_fn_args
        )
        given = algorithm.optimizer
        self.model = AutoModelForCausalLM.from_pretrained(config.model.model_path, dtype=torch.float32)
        self.clip = config.trainer.grad_clip
        epsilon = config.trainer.trainer_config["actor"]["optim"]["override_optimizer_config"]["eps"]
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=given.lr,
            betas=tuple(given.betas),
            weight_decay=given.weight_decay,
            eps=epsilon,
        )

    @property
    def train_step_num(self):
        return self.step_number

    async def prepare(self):
        latest = self.job / "latest_checkpointed_iteration.txt"
        if latest.exists():
            self.step_number = int(latest.read_text())
            state = torch.load(self._folder() / "state.pt", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

    async def train_step(self, batch_exps):
        batch = to_data_proto(batch_exps, 0, self.model, self.log).batch
        self.step_number += 1
        if (self.job.parent / "fail").exists():
            raise RuntimeError("CUDA out of memory")
        width = batch["responses"].shape[1]
        self.optimizer.zero_grad()
        # Three micro-batches: their losses are summed, as verl does.
        for part in torch.arange(len(batch["input_ids"])).tensor_split(3):
            ids, mask = batch["input_ids"][part], batch["attention_mask"][part]
            logits = self.model(
                input_ids=ids, attention_mask=mask, position_ids=batch["position_ids"][part]
            ).logits[:, -width - 1 : -1]
            logits = logits / self.config.model.temperature
            found = logits.log_softmax(-1).gather(-1, ids[:, -width:, None])[..., 0]
            loss, _ = self.loss(
                log_prob=found,
                old_log_probs=batch["rollout_log_probs"][part],
                response_mask=batch["response_mask"][part],
                advantages=batch["advantages"][part],
            )
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return {"actor/grad_norm": norm, "rows": len(batch_exps)}

    async def save_checkpoint(self, block_until_saved=False, save_as_hf=False):
        folder = self._folder()
        shutil.rmtree(folder, ignore_errors=True)
        self.model.save_pretrained(folder / "actor" / "huggingface")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / "state.pt")
        (self.job / "latest_checkpointed_iteration.txt").write_text(str(self.step_number))

    def _folder(self):
        return self.job / f"global_step_{self.step_number}"

    def sync_weight_nccl(self): ...
    async def upload_state_dict(self): ...
    async def save_state_dict(self): ...
    async def get_weight_sync_info(self): ...
    async def setup_weight_sync_group(self, *args, **kwargs): ...
    async def teardown_weight_sync_group(self): ...
