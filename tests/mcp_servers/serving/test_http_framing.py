"""Ends of HTTP messages in a stream of bytes, compared with those that h11 finds."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.serving._http_framing import (
    HEAD_END,
    ChunkedBody,
    FramingError,
    MessageHead,
    OpenBody,
    SizedBody,
)

pytestmark = pytest.mark.promise("mcp:workers:framing")

HOST = b"POST /mcp HTTP/1.1\r\nhost: x\r\n"


def length_of_message(data: bytes, pieces: list[int]) -> int:
    """Return the size of the first request in `data`, whose body arrives in pieces."""
    end = data.index(HEAD_END)
    body = MessageHead.parse(data[:end]).request_body()
    at = end + len(HEAD_END)
    for piece in [*pieces, len(data)]:
        taken = body.take(data[at : at + piece])
        at += taken
        if body.complete:
            break
    assert body.complete
    return at


def h11_length_of_message(data: bytes) -> int:
    """Return the size of the first request in `data` by h11."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    while not isinstance(connection.next_event(), h11.EndOfMessage):
        continue
    return len(data) - len(connection.trailing_data[0])


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    after=st.binary(max_size=40),
    pieces=st.lists(st.integers(1, 9), max_size=60),
    trailer=st.sampled_from([b"", b"x-sum: 1\r\n"]),
)
def test_a_chunked_body_ends_where_h11_finds_its_end(
    chunks: list[bytes], after: bytes, pieces: list[int], trailer: bytes
) -> None:
    body = (
        b"".join(b"%x;a=b\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n" + trailer + b"\r\n"
    )
    data = HOST + b"transfer-encoding: chunked\r\n\r\n" + body
    assert length_of_message(data + after, pieces) == len(data) == h11_length_of_message(data + after)


@given(
    body=st.binary(max_size=60), after=st.binary(max_size=40), pieces=st.lists(st.integers(1, 9), max_size=60)
)
def test_a_sized_body_ends_where_h11_finds_its_end(body: bytes, after: bytes, pieces: list[int]) -> None:
    data = HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert length_of_message(data + after, pieces) == len(data) == h11_length_of_message(data + after)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_a_framing_error(data: bytes) -> None:
    try:
        MessageHead.parse(data).request_body()
    except FramingError as error:
        assert "\n" not in str(error)


@given(st.binary(max_size=200))
def test_any_bytes_are_chunks_or_a_framing_error(data: bytes) -> None:
    body = ChunkedBody()
    try:
        assert 0 <= body.take(data) <= len(data)
    except FramingError:
        assert not body.complete


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 3\r\ncontent-length: 4",
        b"content-length: 3\r\ntransfer-encoding: chunked",
        b"content-length: +3",
        b"content-length: 0x3",
        b"content-length: ",
        b"transfer-encoding: gzip, chunked",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
        b"no colon",
        b" folded: x",
        b"space : x",
        b": x",
        b"bare: x\ncontent-length: 3",
        b"bare: x\rcontent-length: 3",
        b"content-length: 0\r\ntransfer-encoding: chunked",
    ],
)
def test_a_head_that_can_be_read_in_two_ways_is_refused(headers: bytes) -> None:
    with pytest.raises(FramingError):
        MessageHead.parse(HOST + headers).request_body()


@given(
    headers=st.lists(st.sampled_from([b"X-A: b\r\n", b"Mcp-Name: t \r\n", b"HOST: x\r\n"]), max_size=4),
    body=st.binary(max_size=60),
    cut=st.integers(1, 20),
)
def test_only_a_whole_message_has_the_head_of_a_whole_message(
    headers: list[bytes], body: bytes, cut: int
) -> None:
    data = HOST + b"".join(headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body
    whole = MessageHead.of_whole(data)
    assert whole is not None
    parsed = MessageHead.parse(data[: data.index(HEAD_END)])
    assert (whole.line, whole.fields, whole.size) == (parsed.line, parsed.fields, len(body))
    assert MessageHead.of_whole(data + b"x" * cut) is None
    assert MessageHead.of_whole(data[: -min(cut, len(body) + len(HEAD_END))]) is None


@pytest.mark.parametrize("size", [b"-1", b"0x1", b"", b"1_0", b"f" * 16, b"g"])
def test_a_malformed_size_of_a_chunk_is_refused(size: bytes) -> None:
    with pytest.raises(FramingError, match="the size of a chunk is malformed"):
        ChunkedBody().take(size + b"\r\n")


@pytest.mark.parametrize(
    ("head", "of_head", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3", False, SizedBody),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3", True, SizedBody),
        (b"HTTP/1.1 204 No Content", False, SizedBody),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked", False, ChunkedBody),
        (b"HTTP/1.1 200 OK", False, OpenBody),
    ],
)
def test_the_body_of_a_response_depends_on_its_head(head: bytes, of_head: bool, kind: type) -> None:
    body = MessageHead.parse(head).response_body(of_head=of_head)
    assert isinstance(body, kind)
    assert body.complete == (of_head or b"204" in head)
