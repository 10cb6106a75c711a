"""HTTP client for calls to other programs: their answers are bounded in size, and neither requested nor accepted compressed.

A compressed answer hides its size: 2.5 MB can be 2.5 GB. No redirect is followed: another host would get the request.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, TraceRequestRedirectParams

MAX_ANSWER_BYTES: Final = 64 << 20
"""Maximum size of an answer, for clients that set none of their own."""
NO_COMPRESSION: Final[Mapping[str, str]] = {"Accept-Encoding": "identity"}
"""Header that requests an uncompressed answer."""


class HttpAnswer(NamedTuple):
    """Answer of a server, as it was read."""

    method: str
    """Method of the request."""
    url: str
    """Address of the request."""
    status: int
    """Status of the answer."""
    body: bytes
    """Body of the answer."""


_observed: ContextVar[list[HttpAnswer] | None] = ContextVar("observed", default=None)


@contextmanager
def observe_answers() -> Generator[list[HttpAnswer]]:
    """Collect the answers that are read inside, also by tasks that begin there.

    Example::

        with observe_answers() as answers:
            await client.search("boats")
    """
    answers: list[HttpAnswer] = []
    token = _observed.set(answers)
    try:
        yield answers
    finally:
        _observed.reset(token)


def observe(response: "ClientResponse", body: bytes) -> None:
    """Add an answer to those that are collected, if any are. See `observe_answers`."""
    if (answers := _observed.get()) is not None:
        answers.append(HttpAnswer(response.method, str(response.url), response.status, body))


class AnswerRefused(ValueError):
    """An answer that is compressed, too large, or a redirect. One line."""


class AnswerTooLarge(AnswerRefused):
    """An answer that is larger than its maximum size."""


def open_session(*, headers: Mapping[str, str] | None = None, **options: Any) -> "ClientSession":  # noqa: ANN401
    """Return a session whose answers `read_answer` or `answer_lines` reads.

    aiohttp itself limits the head of an answer: 128 fields of 8,190 bytes.

    Example::

        async with open_session() as session, session.get(url) as response:
            body = await read_answer(response)

    A request that is redirected raises `AnswerRefused`, unless it has `allow_redirects=False` and reads the redirect.

    :param options: further options of aiohttp's session.
    """
    from aiohttp import ClientSession, TraceConfig  # heavy: most commands call nothing

    redirects = TraceConfig()
    redirects.on_request_redirect.append(_refuse_redirect)
    return ClientSession(
        headers={**(headers or {}), **NO_COMPRESSION},
        auto_decompress=False,
        trace_configs=[redirects],
        **options,
    )


async def _refuse_redirect(session: object, context: object, redirect: "TraceRequestRedirectParams") -> None:
    redirect.response.close()
    raise AnswerRefused(f"it answered with a redirect ({redirect.response.status}); use its new address")


async def read_answer(response: "ClientResponse", max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Return the body of an answer.

    :raises AnswerRefused: if it is compressed or too large. Its connection is then closed, not used again.
    """
    refuse_compressed(response.headers)
    body = await read_parts(response.content.iter_any(), max_bytes)
    observe(response, body)
    return body


async def answer_lines(
    response: "ClientResponse", max_bytes: int = MAX_ANSWER_BYTES
) -> AsyncGenerator[bytes]:
    """Yield the lines of an answer, such as a stream of events, without their ends.

    :raises AnswerRefused: if it is compressed, or too large as a whole.
    """
    refuse_compressed(response.headers)
    pending = bytearray()
    async with aclosing(_bounded(response.content.iter_any(), max_bytes)) as parts:
        async for part in parts:
            pending += part
            if b"\n" in part:
                *lines, pending = pending.split(b"\n")
                for line in lines:
                    yield bytes(line)
    if pending:
        yield bytes(pending)


def refuse_compressed(headers: Mapping[str, str]) -> None:
    """Check the headers of an answer: `refuse_compressed({"Content-Encoding": "gzip"})` raises.

    :raises AnswerRefused: if it is compressed.
    """
    if headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise AnswerRefused("the answer is compressed although no compression was requested")


async def read_parts(parts: AsyncIterable[bytes], max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Return the body of an answer that arrives in parts, as `read_answer` does.

    :raises AnswerTooLarge: if it is too large.
    """
    body = bytearray()
    async with aclosing(_bounded(parts, max_bytes)) as bounded:
        async for part in bounded:
            # Not collected: millions of tiny parts take twenty times their size.
            body += part
    return bytes(body)


async def _bounded(parts: AsyncIterable[bytes], max_bytes: int) -> AsyncGenerator[bytes]:
    size = 0
    async for part in parts:
        size += len(part)
        if size > max_bytes:
            limit = f"{max_bytes >> 20} MiB" if max_bytes % (1 << 20) == 0 else f"{max_bytes:,} bytes"
            raise AnswerTooLarge(f"the answer is larger than {limit}")
        yield part
