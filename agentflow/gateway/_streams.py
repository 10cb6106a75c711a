"""Answers that are sent as events, while they are being sampled."""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import anyio
from aiohttp import web

from agentflow.gateway._dialect import ModelApi, ParsedRequest
from agentflow.gateway._types import GatewayError
from agentflow.models import Completion

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream

_EVENTS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_LOG = logging.getLogger(__name__)

OnText: TypeAlias = Callable[[str, str], None]
"""Called with the id of an answer and a piece of its text, while it is being sampled."""


class StreamedAnswer:
    """A streamed response. It begins with the first event; until then an error has a status of its own."""

    def __init__(
        self, request: web.Request, api: ModelApi, parsed: ParsedRequest, headers: Mapping[str, str]
    ) -> None:
        self._request = request
        self._api = api
        self._reply = parsed.reply
        self._headers = {**_EVENTS, **headers}
        self._opened = False
        self._response: web.StreamResponse | None = None

    async def run(
        self, complete: Callable[[OnText], Awaitable[list[Completion[None]]]], ping_seconds: float
    ) -> bool:
        """Stream the answers; return false if the stream ended with an error.

        :raises GatewayError: if the call fails before the first event.
        """
        send, receive = anyio.create_memory_object_stream[tuple[str, str]](math.inf)
        answers: list[Completion[None]] = []
        failures: list[GatewayError] = []

        async def answer() -> None:
            with send:
                try:
                    answers.extend(await complete(lambda id, piece: send.send_nowait((id, piece))))
                except GatewayError as error:
                    failures.append(error)
                except Exception as error:
                    # The boundary of the server: the stream must end with an event in any case.
                    failures.append(unexpected(error))

        left: ConnectionError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(answer)
            try:
                with receive:
                    await self._forward(receive, ping_seconds)
            except ConnectionError as error:
                left = error
                group.cancel_scope.cancel()
        if left is not None:
            raise left
        try:
            if failures:
                raise failures[0]
            await self._write(self._ending(answers))
        except GatewayError as error:
            if self._response is None:
                raise
            await self._write([self._api.failure_event(error)])
            return False
        finally:
            if self._response is not None:
                await self._response.write_eof()
        return True

    async def _forward(
        self, pieces: "MemoryObjectReceiveStream[tuple[str, str]]", ping_seconds: float
    ) -> None:
        """Write text until the answer is complete, and a ping after each pause."""
        while True:
            try:
                with anyio.fail_after(ping_seconds):
                    answer, piece = await pieces.receive()
            except TimeoutError:
                await self._write([self._reply.ping])
            except anyio.EndOfStream:
                return
            else:
                await self._write([*self._opening(answer), *self._reply.piece(piece)])

    def _opening(self, answer: str) -> Iterator[bytes]:
        if not self._opened:
            self._opened = True
            yield from self._reply.opening(answer)

    def _ending(self, answers: Sequence[Completion[None]]) -> Iterator[bytes]:
        yield from self._opening(answers[0].id)
        yield from self._reply.ending(answers)

    async def _write(self, events: Iterable[bytes]) -> None:
        data = b"".join(events)
        if self._response is None:
            self._response = web.StreamResponse(headers=self._headers)
            await self._response.prepare(self._request)
        if data:
            await self._response.write(data)

    @property
    def response(self) -> web.StreamResponse:
        """The response, after `run`."""
        if self._response is None:
            raise RuntimeError("the stream has not begun")
        return self._response


def unexpected(error: Exception) -> GatewayError:
    """Log an error that nobody expects, and return the one that a client is told."""
    _LOG.error("a model call failed unexpectedly", exc_info=error)
    return GatewayError(
        500, f"internal error: {type(error).__name__}; see the log of the gateway", code="internal"
    )
