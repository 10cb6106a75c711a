# pyright: basic, reportMissingImports=false
"""An agent loop manager for verl without agent loops: the episodes were run by AgentFlow."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agentflow.learner._exchange import (
    READY,
    Arrays,
    TrainerRequest,
    TrainerResponse,
    read_message,
    unpack_rows,
    write_message,
)
from agentflow.learner.packing import PER_TRAINED_TOKEN, Row
from agentflow.learner.verl._inside._losses import OURS, VerlObject

SECONDS = 0.02


class EpisodeManager:
    """Receives requests, and puts the rows of a step into verl's queue of generated sequences."""

    def __init__(self, config: VerlObject) -> None:
        self._folder = Path(config.trainer.agentflow.folder)
        self._processes = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
        self._number = 0
        self._rows: list[Row] = []

    @classmethod
    def create(cls, config: VerlObject, **_given: VerlObject) -> "EpisodeManager":
        """Make it, ignoring verl's servers and reward workers."""
        return cls(config)

    def next_request(self) -> tuple[TrainerRequest, list[Row]]:
        """Wait for the next request."""
        place = self._folder / f"{self._number:08d}.order"
        while not place.exists():
            time.sleep(SECONDS)
        request, arrays = read_message(place, TrainerRequest)
        self._rows = unpack_rows(arrays) if arrays else []
        return request, self._rows

    def ready(self) -> None:
        """Signal that requests are accepted."""
        (self._folder / READY).touch()

    def answer(self, answer: TrainerResponse, arrays: Arrays | None = None) -> None:
        """Answer the last request."""
        write_message(self._folder / f"{self._number:08d}.answer", answer, arrays or {})
        self._number += 1

    def generate_sequences(self, prompts: VerlObject) -> None:
        """Put the rows of the request into the queue, as the result of the prompts."""
        names = [str(name) for name in prompts["uid"]]
        self.put(names[0], self._rows, int(prompts["global_steps"]))
        for name in names:
            tq.kv_put(key=name, partition_id="train", tag={"status": "finished"})

    def put(self, uid: str, rows: Sequence[Row], step: int) -> tuple[list[str], list[dict[str, Any]]]:
        """Put rows into the queue; return their keys and tags.

        Every process gets the same number: rows without a trained token are added.
        """
        rows = [*rows, *[_empty(rows[0])] * (-len(rows) % self._processes)]
        keys = [f"{uid}_{place}_0" for place in range(len(rows))]
        fields = [_fields(row, uid, place, step) for place, row in enumerate(rows)]
        tags = [
            {
                "status": "success",
                "is_padding": not row.trained.any(),
                "prompt_len": len(one["prompts"]),
                "response_len": len(one["responses"]),
                "seq_len": len(one["input_ids"]),
                "global_steps": step,
                "min_global_steps": step - 1,
                "max_global_steps": step - 1,
            }
            for row, one in zip(rows, fields, strict=True)
        ]
        tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train")
        return keys, tags


def _empty(like: Row) -> Row:
    """Return a row without a trained token, with the same optional arrays."""
    arrays = {name: getattr(like, name) for name in PER_TRAINED_TOKEN}
    none = {name: values[:0] for name, values in arrays.items() if values is not None}
    return replace(like, ids=like.ids[:2], trained=np.zeros(2, np.bool_), **none)


def _fields(row: Row, uid: str, place: int, step: int) -> dict[str, Any]:
    """Return a row in verl's format. Values of tokens have one entry per response token, 0 where it is not trained."""
    trained = np.flatnonzero(row.trained)
    first = int(trained[0]) if len(trained) else len(row.ids) - 1
    mask = row.trained[first:]

    def spread(values: VerlObject, kind: VerlObject) -> torch.Tensor:
        full = np.zeros(len(mask), kind)
        full[mask] = values
        return torch.from_numpy(full)

    ids = torch.from_numpy(row.ids.astype(np.int64))
    which = torch.from_numpy(mask.astype(np.int64))
    fields = {
        "prompts": ids[:first],
        "responses": ids[first:],
        "response_mask": which,
        "loss_mask": which,
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "rollout_log_probs": spread(row.behaviour, np.float32),
        # The reward is contained in the advantages.
        "rm_scores": spread(row.advantages, np.float32),
        "multi_modal_inputs": {},
        "num_turns": 1,
        "uid": uid,
        "session_id": place,
        "global_steps": step,
        "extra_fields": {},
        OURS + "weights": spread(row.weights, np.float64),
        OURS + "units": spread(row.units, np.int64),
    }
    for name in ("reference", "proximal"):
        if (values := getattr(row, name)) is not None:
            fields[OURS + name] = spread(values, np.float32)
    return fields
