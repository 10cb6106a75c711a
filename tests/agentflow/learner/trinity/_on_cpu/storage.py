# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false
"""`storage.py ROWS ALGORITHM DATABASE RESULT`: pass rows through Trinity's storage and compute its losses of them."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import torch
from trinity.algorithm import POLICY_LOSS_FN
from trinity.algorithm.sample_strategy.sample_strategy import DefaultSampleStrategy
from trinity.buffer.buffer import get_buffer_writer
from trinity.common.config import BufferConfig, ExperienceBufferConfig, TrainerInput
from trinity.common.experience import gather_action_masks, gather_response_attrs

import agentflow.learner.trinity._inside as inside
from agentflow.learner._exchange import TrainerRequest, read_message, unpack_rows

SIZE = 12


async def pass_through_storage(experiences: list, database: str) -> list:
    buffer = ExperienceBufferConfig(
        name="rows",
        storage_type="sql",
        path=f"sqlite:///{database}",
        schema_type="experience",
        batch_size=SIZE,
    )
    storage = buffer.to_storage_config()
    storage.wrap_in_ray = False
    await get_buffer_writer(storage).write(experiences)
    strategy = DefaultSampleStrategy(BufferConfig(trainer_input=TrainerInput(experience_buffer=buffer)))
    strategy.exp_buffer.wrap_in_ray = False
    found, _, _ = await strategy.sample(1)
    return sorted(found, key=lambda experience: int(experience.eid.task))


def main() -> None:
    _, arrays = read_message(Path(sys.argv[1]), TrainerRequest)
    algorithm = json.loads(Path(sys.argv[2]).read_text())
    name, arguments = algorithm["policy_loss_fn"], algorithm["policy_loss_fn_args"]
    plain = {key: value for key, value in arguments.items() if not key.startswith("kl_")}
    rows = unpack_rows(arrays)
    experiences = asyncio.run(pass_through_storage(inside.experiences_of(rows, 1, SIZE), sys.argv[3]))
    result = {
        f"{name}-{number}": getattr(experience, name).numpy()
        for number, experience in enumerate(experiences)
        for name in ("tokens", "logprobs", "action_mask", "advantages")
    }
    result |= {f"prompt-{number}": np.array(one.prompt_length) for number, one in enumerate(experiences)}
    width = max(len(one.action_mask) for one in experiences)
    current = torch.zeros(SIZE, width, dtype=torch.float64)
    for number, row in enumerate(rows):
        start = int(np.argmax(row.trained))
        current[number, np.flatnonzero(row.trained[start:])] = torch.from_numpy(row.reference.astype(float))
    mask = gather_action_masks(experiences, width)
    advantages = gather_response_attrs(experiences, "advantages", width).double()
    old = gather_response_attrs(experiences, "logprobs", width).double()
    weights = gather_response_attrs(experiences, "returns", width).double()
    for key, loss_name, given in (("ours", name, arguments), ("ppo", "ppo", plain)):
        loss = POLICY_LOSS_FN.get(loss_name)(backend="verl", **given)
        parts = [slice(0, 5), slice(5, SIZE)] if key == "ours" else [slice(0, SIZE)]
        values = [
            loss(
                log_prob=current[part],
                old_log_probs=old[part],
                response_mask=mask[part],
                advantages=advantages[part],
                # A reference that is known to the test, too.
                ref_log_prob=old[part] - 0.3,
                returns=weights[part],
            )[0]
            for part in parts
        ]
        result[key] = np.array(float(sum(values)))
    np.savez(sys.argv[4], **result)


main()
