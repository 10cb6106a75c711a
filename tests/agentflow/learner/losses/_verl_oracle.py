"""Run verl's own functions on cases: `_verl_oracle.py CASES ANSWERS`, with the Python of verl's environment.

Cases are a JSON list in `cases.json` and their arrays in `arrays.npz`; the answers are one file of arrays.
"""

# pyright: basic, reportMissingImports=false

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.workers.config import ActorConfig


def main() -> None:
    """Answer every case."""
    cases, answers = Path(sys.argv[1]), Path(sys.argv[2])
    asked: list[dict[str, Any]] = json.loads((cases / "cases.json").read_text())
    found: dict[str, np.ndarray] = {}
    with np.load(cases / "arrays.npz") as arrays:
        for number, case in enumerate(asked):
            given = {
                name.partition("/")[2]: torch.from_numpy(arrays[name])
                for name in arrays.files
                if name.startswith(f"{number}/")
            }
            for name, value in (_loss if case["what"] == "loss" else _advantages)(case, given).items():
                found[f"{number}/{name}"] = value.detach().numpy()
    np.savez(answers, allow_pickle=False, **found)


def _config(case: dict[str, Any]) -> ActorConfig:
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        ppo_mini_batch_size=1,
        use_dynamic_bsz=False,
        clip_ratio_low=case["clip_ratio_low"],
        clip_ratio_high=case["clip_ratio_high"],
        # Whatever stands here bounds; a loss without a bound is one that never reaches it.
        clip_ratio_c=case["clip_ratio_c"] or 1e30,
    )
    config.global_batch_info["loss_scale_factor"] = case["length_scale"]
    return config


def _loss(case: dict[str, Any], given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    log_prob = given["log_prob"].requires_grad_()
    config = _config(case)
    factor = given.get("weights")
    if case["correction"] is not None:
        today = given["old"] if case["fixed"] else log_prob.detach()
        corrected, _ = compute_rollout_correction_weights(
            today - given["behaviour"],
            given["mask"],
            rollout_is=case["correction_level"],
            rollout_is_threshold=case["correction"],
        )
        factor = corrected if factor is None else factor * corrected
    parts = {
        "log_prob": log_prob,
        "advantages": given["advantages"],
        "response_mask": given["mask"],
        "loss_agg_mode": case["loss_agg_mode"],
        "config": config,
        "rollout_is_weights": factor,
    }
    if case["mode"] == "reinforce":
        loss, _ = core_algos.compute_policy_loss_reinforce(rollout_log_prob=given["behaviour"], **parts)
    else:
        loss, _ = core_algos.get_policy_loss_fn(case["mode"])(old_log_prob=given["old"], **parts)
    if case["kl_coef"]:
        apart = core_algos.kl_penalty(log_prob, given["reference"], case["kl_estimator"])
        loss = loss + case["kl_coef"] * core_algos.agg_loss(
            apart, given["mask"], case["loss_agg_mode"], **config.global_batch_info
        )
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return {"loss": loss, "gradient": gradient}


def _advantages(case: dict[str, Any], given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    data = DataProto.from_dict(
        tensors={"token_level_rewards": given["rewards"], "response_mask": given["mask"]},
        non_tensors={"uid": np.array(case["tasks"], dtype=object)},
    )
    done = compute_advantage_for_multi_trajectories(
        data,
        case["keys"],
        core_algos.AdvantageEstimator(case["estimator"]),
        norm_adv_by_std_in_grpo=case["divide_by_std"],
    )
    return {"advantages": done.batch["advantages"]}


if __name__ == "__main__":
    main()
