"""Framing between a process and its workers."""

import io
import json
import os
from collections.abc import Iterator
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes import (
    FrameDecoder,
    FrameError,
    FrameReader,
    LineDecoder,
    decode_object,
    pack_frame,
    read_frame,
    write_frame,
)

pytestmark = pytest.mark.promise("runtime:framing")

PAYLOADS = st.lists(st.binary(max_size=40), max_size=8)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Cut a stream into the pieces in which it arrives."""
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    return [stream[start:end] for start, end in pairwise(edges)]


@given(PAYLOADS, CUTS)
def test_a_decoder_returns_the_payloads_however_the_stream_is_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    decoder, received = FrameDecoder(40), list[bytes]()
    for piece in pieces(b"".join(map(pack_frame, payloads)), cuts):
        decoder.feed(piece)
        received += decoder
    assert received == payloads
    assert decoder.buffered == 0
    decoder.end()


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=8), CUTS)
def test_a_line_decoder_returns_the_lines_however_the_stream_is_cut(
    lines: list[bytes], cuts: list[int]
) -> None:
    decoder, received = LineDecoder(40), list[bytes]()
    for piece in pieces(b"".join(line + b"\n" for line in lines), cuts):
        decoder.feed(piece)
        received += decoder
    assert received == lines
    assert decoder.buffered == 0


@given(PAYLOADS, CUTS)
def test_an_asynchronous_reader_returns_the_payloads_and_then_the_end(
    payloads: list[bytes], cuts: list[int]
) -> None:
    async def read_all() -> list[bytes]:
        arriving = iter(pieces(b"".join(map(pack_frame, payloads)), cuts))

        async def receive() -> bytes:
            await anyio.lowlevel.checkpoint()
            return next(arriving, b"")

        reader, received = FrameReader(receive), list[bytes]()
        while (payload := await reader.read()) is not None:
            received.append(payload)
        return received

    assert anyio.run(read_all) == payloads


@given(PAYLOADS, st.integers(1, 7))
def test_a_blocking_reader_takes_one_frame_and_no_byte_more(payloads: list[bytes], most: int) -> None:
    stream = io.BytesIO(b"".join(map(pack_frame, payloads)) + b"rest")
    for payload in payloads:
        assert read_frame(lambda size: stream.read(min(size, most))) == payload
    assert stream.read() == b"rest"


@given(st.binary(max_size=40), st.data())
def test_a_stream_that_ends_inside_a_frame_is_an_error_at_both_ends(
    payload: bytes, data: st.DataObject
) -> None:
    frame = pack_frame(payload)
    cut = frame[: data.draw(st.integers(1, len(frame) - 1))]
    with pytest.raises(FrameError, match=f"ended inside a frame, after {len(cut)} bytes"):
        read_frame(io.BytesIO(cut).read)

    async def read() -> None:
        arriving = iter([cut])

        async def receive() -> bytes:
            return next(arriving, b"")

        await FrameReader(receive).read()

    with pytest.raises(FrameError, match=f"ended inside a frame, after {len(cut)} bytes"):
        anyio.run(read)


def test_a_frame_over_the_limit_is_refused_from_its_header_alone() -> None:
    header = (11).to_bytes(4, "big")
    decoder = FrameDecoder(10)
    decoder.feed(header)
    with pytest.raises(FrameError, match="a frame of 11 bytes is over the limit of 10"):
        decoder.next()
    with pytest.raises(FrameError, match="a frame of 11 bytes is over the limit of 10"):
        read_frame(io.BytesIO(header).read, 10)


def test_a_line_over_the_limit_is_refused_before_and_after_its_end_arrives() -> None:
    for line in (b"x" * 11, b"x" * 11 + b"\n"):
        decoder = LineDecoder(10)
        decoder.feed(line)
        with pytest.raises(FrameError, match="longer than the limit of 10 bytes"):
            decoder.next()


def test_an_exception_of_the_stream_can_mean_its_end() -> None:
    async def read() -> bytes | None:
        async def receive() -> bytes:
            raise anyio.EndOfStream

        return await FrameReader(receive, end_of_stream=anyio.EndOfStream).read()

    assert anyio.run(read) is None


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    readable, writable = os.pipe()
    yield readable, writable
    os.close(readable)
    os.close(writable)


def test_a_written_frame_is_read_from_the_other_end_of_a_pipe(pipe: tuple[int, int]) -> None:
    readable, writable = pipe
    write_frame(writable, b"payload")
    assert read_frame(lambda size: os.read(readable, size)) == b"payload"


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_an_object_is_decoded(fields: dict[str, int | str | None]) -> None:
    assert decode_object(json.dumps(fields).encode()) == fields


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"1", b'"text"', b"\xff", b"[" * 200_000])
def test_anything_but_an_object_is_a_frame_error(payload: bytes) -> None:
    with pytest.raises(FrameError, match="a message is"):
        decode_object(payload)
