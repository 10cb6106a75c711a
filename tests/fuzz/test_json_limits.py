"""JSON limits: no decoder creates more values than `check_json` has counted."""

import json
from contextlib import suppress
from typing import TypeAlias

import msgspec
import pydantic_core
import pytest

from runtimes import FrameError, JsonLimits, check_json
from tests.fuzz._budget import FuzzBudget, fuzzed

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | None"

CORPUS = [
    b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a, \\"b\\" [c] {d}"}]}}',
    b'["\\\\","\\\\\\"",{"a\\u0022,":[1,2,[3,[4,[]]]],"":{"":{"":null}}}]',
    b'[[],[],[],{},{},"",-1.5e3,true]',
    b'{"a":"\\\\\\\\","b":"\\"\\\\","c":[",[{","]"]}',
]
DECODERS = (json.loads, msgspec.json.decode, pydantic_core.from_json)


def values_of(value: Json) -> int:
    """Count a value and the values inside."""
    if isinstance(value, dict):
        return 1 + sum(map(values_of, value.values()))
    return 1 + sum(map(values_of, value)) if isinstance(value, list) else 1


def is_checked(payload: bytes, most: int) -> bool:
    with suppress(FrameError):
        check_json(payload, JsonLimits(max_values=most))
        return True
    return False


@fuzzed
@pytest.mark.promise("runtime:untrusted")
def test_no_decoder_creates_more_values_than_were_counted(budget: FuzzBudget) -> None:
    for case in budget.cases(short=1500):
        with case, pytest.MonkeyPatch.context() as patch:
            patch.setattr("runtimes._framing._PIECE_BYTES", case.randint(1, 40))
            payload = case.mutated(case.choice(CORPUS))
            most = case.randint(1, 20)
            if not is_checked(payload, most):
                continue
            for decode in DECODERS:
                with suppress(ValueError, RecursionError):
                    # Of several equal keys only the last value is kept.
                    assert values_of(decode(payload)) <= most
