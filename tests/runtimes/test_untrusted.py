"""JSON from untrusted peers: bounded before it is decoded."""

import json
import tracemalloc
from typing import TypeAlias

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from runtimes import FrameError, JsonLimits, check_json, decode_object, decode_untrusted

pytestmark = pytest.mark.promise("runtime:untrusted")

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | bool | None"

TEXT = st.text(st.sampled_from('a,[{"\\\n\u00e9\U0001f600'), max_size=12)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def values_of(value: Json) -> int:
    """Count a value and the values inside; an empty container counts as if it held one."""
    if isinstance(value, dict):
        return 1 + (sum(map(values_of, value.values())) or 1)
    if isinstance(value, list):
        return 1 + (sum(map(values_of, value)) or 1)
    return 1


def accepts(payload: bytes, limits: JsonLimits) -> bool:
    try:
        check_json(payload, limits)
    except FrameError:
        return False
    return True


@given(VALUES, st.booleans(), st.integers(1, 5))
def test_values_are_counted_exactly_whatever_their_text_and_wherever_the_payload_is_cut(
    value: Json, ascii_only: bool, piece: int
) -> None:
    payload = json.dumps(value, ensure_ascii=ascii_only).encode()
    count = values_of(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtimes._framing._PIECE_BYTES", piece)
        assert accepts(payload, JsonLimits(max_values=count))
        assert not accepts(payload, JsonLimits(max_values=count - 1))


BOMBS = {
    "lists": b"[],",
    "dictionaries": b"{},",
    "pairs": b'{"":0},',
    "numbers": b"1,",
    "texts": b'"",',
    "nested": b'[{"":[]}],',
    "deep": b"[",
    "adjacent texts": b'""',
    "after a false escape": b'\\"[],',
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_is_refused_without_creating_its_values(bomb: str) -> None:
    payload = b"[" + BOMBS[bomb] * (4_000_000 // len(BOMBS[bomb])) + b"1]"
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            await decode_untrusted(payload, json.loads)
        with pytest.raises(FrameError):
            decode_object(payload)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_payload_over_its_size_is_refused_with_both_numbers() -> None:
    with pytest.raises(FrameError, match="a message of 11 bytes is over the limit of 10"):
        check_json(b"[1,2,3,4,5]", JsonLimits(max_bytes=10))
    with pytest.raises(FrameError, match="more than 5 values"):
        check_json(b"[1,2,3,4,5]", JsonLimits(max_values=5))


@pytest.mark.parametrize("size", [10, 2_000_000], ids=["small", "large"])
async def test_a_payload_within_its_limits_is_decoded(size: int) -> None:
    payload = json.dumps({"text": "a,[" * size}).encode()
    assert await decode_untrusted(payload, json.loads) == {"text": "a,[" * size}
    assert await decode_untrusted(payload, TypeAdapter(dict[str, str]).validate_json) == {
        "text": "a,[" * size
    }


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[" * 100_000, b'{"text": 1}'])
async def test_what_the_decoder_refuses_is_a_frame_error(payload: bytes) -> None:
    with pytest.raises(FrameError, match="a message was refused"):
        await decode_untrusted(payload, TypeAdapter(dict[str, str]).validate_json)


async def test_an_error_is_short_however_many_problems_and_however_long_the_values_are() -> None:
    numbers = TypeAdapter(dict[str, list[int]]).validate_json
    for payload in (
        b'{"a":[' + b'"x",' * 200_000 + b'"x"]}',
        json.dumps({"k" * 5_000_000: ["x"]}).encode(),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(FrameError, match="a message was refused: ") as refused:
                await decode_untrusted(payload, numbers)
            assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
        finally:
            tracemalloc.stop()
        assert len(str(refused.value)) < 1_000
        assert "\n" not in str(refused.value)


async def test_the_event_loop_runs_while_large_payloads_are_decoded() -> None:
    payload = json.dumps("a" * 3_000_000).encode()
    turns, decoded = 0, 0

    async def decode() -> None:
        nonlocal decoded
        await decode_untrusted(payload, json.loads)
        decoded += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(decode)
        while decoded < 8:
            await anyio.lowlevel.checkpoint()
            turns += 1
    assert turns > 8
