"""Readers of the run files of other programs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# wandb makes its messages at run time; tensorboard is not typed.

import struct
from pathlib import Path


def wandb_steps(folder: Path) -> list[tuple[int, float]]:
    """Return step and `reward/mean` of each point in wandb's files: messages after a short header each, in one block."""
    from wandb.proto import wandb_internal_pb2

    found: list[tuple[int, float]] = []
    for path in folder.glob("offline-run-*/run-*.wandb"):
        data, place = path.read_bytes(), 7
        assert len(data) < 32 * 1024, "one block"
        while place < len(data):
            _, length, _ = struct.unpack_from("<IHB", data, place)
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data[place + 7 : place + 7 + length])
            place += 7 + length
            items = {(item.key or item.nested_key[0]): item.value_json for item in record.history.item}
            if items:
                found.append((int(items["_step"]), float(items["reward/mean"])))
    return found


def tensorboard_points(folder: Path, name: str) -> list[tuple[int, float]]:
    """Return step and value of each point of a TensorBoard curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(folder))
    curves.Reload()
    return [(point.step, point.value) for point in curves.Scalars(name)]
