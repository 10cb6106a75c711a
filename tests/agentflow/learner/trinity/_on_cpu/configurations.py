# pyright: basic, reportMissingImports=false
"""`configurations.py FILE…`: check configurations with Trinity's own classes, and print what they and verl's make of them."""

import json
import sys

from trinity.common.config import load_config
from trinity.trainer.verl.config import build_verl_config
from trinity.trainer.verl.losses import build_trinity_loss


def main() -> None:
    found = []
    for path in sys.argv[1:]:
        config = load_config(path).check_and_update()
        verl = build_verl_config(config) if config.mode == "train" else None
        found.append(
            {
                "mode": config.mode,
                "lora": None if verl is None else [verl.model.lora_rank, verl.model.lora_alpha],
                "lora_in_engine": config.explorer.rollout_model.enable_lora,
                "loss": repr(build_trinity_loss(config.algorithm)),
                "kl_coef": config.algorithm.policy_loss_fn_args["kl_coef"],
                "sync_style": config.synchronizer.sync_style.value,
                "gpus": [config.cluster.trainer_gpu_num, config.cluster.explorer_gpu_num],
                "namespace": config.ray_namespace,
            }
        )
    sys.stdout.write("\n" + json.dumps(found))


main()
