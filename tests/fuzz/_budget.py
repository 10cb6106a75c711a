"""Number of cases of a fuzzer, and mutations of bytes.

The short form runs a fixed number of fixed cases. The long form (`-m soak`) runs new cases for AGENTFLOW_FUZZ_SECONDS
seconds, 60 by default, and prints their number. A failure carries the seed of its case; AGENTFLOW_FUZZ_SEED repeats that
case alone.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from random import Random, SystemRandom
from types import TracebackType
from typing import Self

import pytest

_INTERESTING = (
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b'"',
    b"\\",
    b"[",
    b"{",
    b"\n",
    b"-1",
    b"1e999",
)


class FuzzCase(Random):
    """Random numbers of one case. As a context manager it adds its seed to a failure."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seed = seed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"repeat this case with AGENTFLOW_FUZZ_SEED={self._seed}")

    def mutated(self, data: bytes, times: int = 4) -> bytes:
        """Return data with up to `times` pieces flipped, cut, repeated, moved or inserted."""
        changed = bytearray(data)
        for _ in range(self.randint(1, times)):
            start = self.randint(0, len(changed))
            end = min(len(changed), start + self.choice((1, 2, 4, 16, 256)))
            match self.randrange(5):
                case 0 if start < len(changed):
                    changed[start] ^= 1 << self.randrange(8)
                case 1:
                    del changed[start:end]
                case 2:
                    changed[start:start] = changed[start:end] * self.choice((1, 2, 50))
                case 3:
                    piece = changed[start:end]
                    del changed[start:end]
                    place = self.randint(0, len(changed))
                    changed[place:place] = piece
                case _:
                    changed[start:start] = self.choice(_INTERESTING)
        return bytes(changed)

    def pieces(self, data: bytes) -> list[bytes]:
        """Cut data into a few pieces, as a stream may deliver it."""
        edges: Sequence[int] = sorted(
            {0, len(data), *(self.randint(0, len(data)) for _ in range(self.randrange(5)))}
        )
        return [data[a:b] for a, b in pairwise(edges)]


class FuzzBudget:
    """Source of the cases of one fuzzer."""

    def __init__(self, *, long: bool) -> None:
        self._long = long

    def cases(self, short: int) -> Iterator[FuzzCase]:
        """Yield the cases: `short` of them in the short form.

        Example::

            @fuzzed
            def test_malformed_input_is_refused(budget: FuzzBudget) -> None:
                for case in budget.cases(short=200):
                    with case:
                        parse(case.mutated(VALID))
        """
        if seed := os.environ.get("AGENTFLOW_FUZZ_SEED"):
            yield FuzzCase(int(seed))
        elif not self._long:
            yield from map(FuzzCase, range(short))
        else:
            end = time.monotonic() + float(os.environ.get("AGENTFLOW_FUZZ_SECONDS", "60"))
            start = SystemRandom().randrange(1 << 48)
            for seed in count(start):
                if time.monotonic() >= end:
                    sys.stdout.write(f"{seed - start} cases\n")
                    return
                yield FuzzCase(seed)


fuzzed = pytest.mark.parametrize(
    "budget",
    [
        pytest.param(FuzzBudget(long=False), id="short"),
        pytest.param(FuzzBudget(long=True), id="long", marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
    ],
)
"""Run a test in the short form and, with `-m soak`, in the long form; its argument is `budget`."""
