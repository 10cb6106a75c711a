"""The record of the rounds of a synthesis and a training, and the tips that follow from it."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec
from msgspec import Struct

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._folder_files import read_lines
from agentflow._private_files import replace_file
from agentflow.errors import ConfigurationError
from agentflow.synthesis import PAIRS

ROUNDS: Final = "rounds.json"
"""File of the rounds in the output directory."""
TRAINING: Final = "training"
"""Folder of the training in it."""


class FlywheelRound(Struct, frozen=True, kw_only=True):
    """A finished round."""

    number: int
    """Number of the round, from 1."""
    version: int
    """Version of the weights that grew its trees and were measured at its pairs."""
    seeds: int
    """Number of its seeds."""
    pairs: int
    """Number of pairs that its synthesis kept."""
    shared: int
    """Number of them that need a document of a held-out pair; they are not used."""
    rates: dict[str, float]
    """Mean reward of the episodes of that version at each of the others, by id."""
    chosen: tuple[str, ...]
    """Ids of those within `difficulty.window`. The steps draw from those of all rounds so far."""
    steps: int
    """Number of steps of the training at its end."""
    next_version: int
    """Version of the weights at its end."""
    held_out: float
    """Mean reward of the weights at its end, over the held-out pairs."""
    gain: tuple[float, float, float]
    """Its difference to version 0 over the same pairs, and the ends of the 95 % interval."""


class FlywheelResult(Struct, frozen=True, kw_only=True):
    """The rounds of a run, as they are stored."""

    held_out_pairs: int = 0
    """Number of held-out pairs."""
    baseline: float = 0.0
    """Mean reward of version 0 over them."""
    rounds: tuple[FlywheelRound, ...] = ()
    """The finished rounds."""


def read_rounds(folder: Path) -> FlywheelResult:
    """Return the finished rounds of a run; without its file, none. See docs/supervisor.md.

    :raises ConfigurationError: one line, if the file can't be read.
    """
    file = folder / ROUNDS
    try:
        return msgspec.json.decode(file.read_bytes(), type=FlywheelResult)
    except FileNotFoundError:
        return FlywheelResult()
    except (OSError, *DECODE_ERRORS) as error:
        reason = error.strerror if isinstance(error, OSError) else decode_reason(error)
        raise ConfigurationError(
            f"{file}: can't be read: {reason}; remove it to run its rounds again"
        ) from None


def write_rounds(folder: Path, result: FlywheelResult) -> None:
    """Store the finished rounds in one step."""
    replace_file(folder / ROUNDS, msgspec.json.format(msgspec.json.encode(result)) + b"\n")


class _AskedPair(Struct):
    qa_id: str
    question: str


def round_name(number: int) -> str:
    """Return the name of the folder of a round."""
    return f"round-{number}"


def questions_of_round(folder: Path, number: int) -> dict[str, str]:
    """Return the questions of the pairs of a round, by id. See docs/supervisor.md.

    :param folder: output directory of the rounds.
    :raises OSError: if they can't be read.
    """
    lines = read_lines(folder / round_name(number) / PAIRS, folder)
    pairs = (msgspec.json.decode(line, type=_AskedPair) for line in lines)
    return {pair.qa_id: pair.question for pair in pairs}


def steps_of_pairs(folder: Path, steps: int) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the steps that used each pair, by its id. See docs/supervisor.md.

    :param folder: output directory of the rounds.
    :param steps: number of steps of the training.
    """
    from agentflow.learner._checkpoints import RolloutStore  # loads numpy, which no synthesis needs

    store = RolloutStore(folder / TRAINING / "rollouts", root=folder)
    used: dict[str, list[int]] = defaultdict(list)
    for step in range(1, steps + 1):
        batch = store.read(step)
        for id in dict.fromkeys(
            () if batch is None else (group.name.rpartition("@")[0] for group in batch.groups)
        ):
            used[id].append(step)
    return {id: tuple(numbers) for id, numbers in used.items()}


def guidance(rates: Sequence[tuple[str, int, float]], window: tuple[float, float]) -> list[str]:
    """Return tips for the next trees: the kinds of questions of each rate, by kind and number of documents.

    >>> guidance([("bridge", 2, 1.0), ("order", 3, 0.5)], (0.25, 0.75))
    ['Look for more of: order over 3 documents.', 'Too easy, look for what leads further: bridge over 2 documents.']

    :param rates: kind, number of documents and mean reward of each pair.
    """
    low, high = window
    groups: dict[tuple[str, int], list[float]] = {}
    for kind, hops, rate in rates:
        groups.setdefault((kind, hops), []).append(rate)
    names: dict[str, list[str]] = {
        "Look for more of": [],
        "Too easy, look for what leads further": [],
        "Too hard, look for simpler ones": [],
    }
    right, easy, hard = names.values()
    for (kind, hops), of_group in sorted(groups.items()):
        mean = fmean(of_group)
        chosen = easy if mean > high else hard if mean < low else right
        chosen.append(f"{kind.replace('_', ' ')} over {hops} document{'s' * (hops != 1)}")
    return [f"{begin}: {', '.join(kinds)}." for begin, kinds in names.items() if kinds]
