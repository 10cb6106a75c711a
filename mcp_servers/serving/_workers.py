"""Several workers behind one port: supervised processes, each with a table of its own."""

import logging
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from agentflow.actors import (
    Backoff,
    ChildSpec,
    Context,
    Process,
    ProcessEnded,
    RestartLimitReached,
    StartFailed,
    Supervisor,
)
from agentflow.errors import AgentFlowError, ConfigurationError
from mcp_servers.core._session_tools import SESSIONS
from mcp_servers.serving._metrics import Metrics as Counts
from mcp_servers.serving._metrics import own_usage, together
from mcp_servers.serving._relay import Relay
from mcp_servers.serving._settings import ServerSettings
from mcp_servers.serving._worker_messages import (
    MESSAGE,
    Begin,
    End,
    Message,
    Metrics,
    Refused,
    To,
    Waiting,
    Written,
)
from mcp_servers.serving._worker_rpc import Asked, Line, LineBroken

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["Workers"]

logger = logging.getLogger(__name__)

RESTARTS, PERIOD = 10, 60.0
"""So many deaths of workers in so many seconds end the server."""
ASK_SECONDS = 5.0
"""How long a worker is waited for, when all are asked for something."""
END_SECONDS = 30.0
"""Time for the workers to end their sessions."""


class Hand:
    """One worker process, from its start to its end."""

    def __init__(self, workers: "Workers", number: int) -> None:
        self._workers = workers
        self.number = number
        """Which worker it is; one that is started again has the number of the one that died."""
        self.active = 0
        """Requests that it is answering, without streams that only listen."""
        self.sessions = 0
        """Sessions that it had when it last answered."""
        self.served = 0
        """Questions that it was asked so far."""
        self.waiting: Sequence[str] = ()
        """Its backends that are to be warm and are not yet."""
        self._line = Line[Message](MESSAGE, self._answer)

    async def run(self, context: Context) -> None:
        """Live, as a supervisor's child.

        :raises ProcessEnded: if the process has died.
        """
        ours, theirs = socket.socketpair()

        async def started() -> None:
            theirs.close()

        # Its number is there for people who look at the processes.
        process = Process(
            [sys.executable, "-m", "mcp_servers.serving._worker", str(self.number)],
            stdin=theirs.fileno(),
            ready=started,
        )
        failure: ProcessEnded | None = None
        try:
            async with anyio.create_task_group() as group:
                await group.start(self._talk, ours)
                group.start_soon(self._begin)
                try:
                    await process.run(context)
                except ProcessEnded as ended:
                    failure = ended
                group.cancel_scope.cancel()
        finally:
            theirs.close()
            self._workers.lost(self)
        if failure is not None:
            raise failure

    def ask(self, question: Message) -> AbstractAsyncContextManager[AsyncGenerator[Message]]:
        """Ask it."""
        self.served += 1
        return self._line.ask(question)

    async def _talk(self, ours: socket.socket, *, task_status: TaskStatus[None]) -> None:
        try:
            await self._line.run(ours, task_status=task_status)
        finally:
            # The line ends a little before the process does; in between nobody shall be sent to it.
            self._workers.lost(self)

    async def _begin(self) -> None:
        with suppress(LineBroken):
            async with self._line.ask(self._workers.begin(self.number)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Refused):
                        self._workers.refused_to_serve(self, piece)
                    elif isinstance(piece, Waiting):
                        self.waiting = piece.backends
                        self._workers.serves(self)

    async def _answer(self, question: Message, asked: Asked[Message]) -> None:
        """Ask others for it."""
        assert isinstance(question, To), "a worker asks for others only"
        async with asked.wanted():
            if question.worker:
                await self._workers.ask_one(question, asked)
            else:
                await self._workers.ask_others(self, question, asked)


class Workers:
    """So many workers as an HTTP server's inside."""

    def __init__(self, settings: ServerSettings, backends: Sequence[str]) -> None:
        """Get ready to start them.

        :param backends: the names of the served backends.
        """
        self.most = settings.workers
        """How many there are when all can answer."""
        self._settings = settings
        self._counts = Counts()
        self._relay = Relay(self, settings.calls.body_bytes)
        paths = ["/mcp", *(f"/{name}/mcp" for name in backends if name != SESSIONS)]
        self.by_path: Mapping[str, ASGIApp] = dict.fromkeys(paths, self._relay)
        """What answers at each path."""
        self._hands: dict[int, Hand] = {}
        self._refusal: AgentFlowError | None = None
        self._changed = anyio.Event()
        self._closing = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Keep them alive until `close`.

        :raises AgentFlowError: if they die again and again.
        """
        specs = [
            ChildSpec(id=f"worker-{number}", start=partial(Hand, self, number), shutdown=END_SECONDS)
            for number in range(1, self.most + 1)
        ]
        tree = Supervisor(specs, intensity=RESTARTS, period=PERIOD, backoff=Backoff(), name="workers")
        task_status.started()
        try:
            async with tree:
                await self._closing.wait()
        except (RestartLimitReached, StartFailed):
            raise AgentFlowError(
                "the server's workers die again and again; what they logged says why"
            ) from None

    async def warm(self, backends: Sequence[str], waiting: Callable[[Sequence[str]], object]) -> None:
        """Wait until every worker has got its backends ready.

        :raises AgentFlowError: if one of them can't.
        """
        while self._refusal is None:
            self._changed = anyio.Event()
            hands = self._hands.values()
            missing = backends if len(hands) < self.most else [name for one in hands for name in one.waiting]
            waiting([*dict.fromkeys(missing)])
            if len(hands) == self.most and not missing:
                return
            await self._changed.wait()
        raise self._refusal

    async def end_sessions(self) -> None:
        """End every session of every worker."""
        with anyio.move_on_after(END_SECONDS):
            async with anyio.create_task_group() as group:
                for hand in tuple(self._hands.values()):
                    group.start_soon(self._ask_all_of, hand, End())

    def close(self) -> None:
        """End every stream, then the workers."""
        self._relay.close()
        self._closing.set()

    def refused(self, status: int) -> None:
        """Count a request that was not let in."""
        self._counts.refused(status)

    async def counted(self) -> str:
        """What all have counted, each sample with its worker; those of this process with `front`."""
        memory, descriptors = own_usage()
        own = self._counts.render(
            {
                "agentflow_workers": ("Workers that can answer.", len(self._hands)),
                "process_resident_memory_bytes": ("Memory of the server's own process.", memory),
                "process_open_fds": ("Open descriptors of the server's own process.", descriptors),
            }
        )
        texts = {"front": own}

        async def ask(hand: Hand) -> None:
            with anyio.move_on_after(ASK_SECONDS):
                for piece in await self._ask_all_of(hand, Metrics()):
                    texts[str(hand.number)] = piece.text if isinstance(piece, Written) else ""

        async with anyio.create_task_group() as group:
            for hand in tuple(self._hands.values()):
                group.start_soon(ask, hand)
        return together(dict(sorted(texts.items())))

    def mate(self, number: int) -> Hand | None:
        """That worker, if it can answer now."""
        return self._hands.get(number)

    def least_busy(self, *, sessions: bool) -> Hand | None:
        """The one with the fewest requests, or sessions; `None`: nobody can answer now."""

        def load(hand: Hand) -> tuple[int, int]:
            return (hand.sessions + hand.active if sessions else hand.active), hand.served

        return min(self._hands.values(), key=load, default=None)

    def begin(self, number: int) -> Begin:
        """What a worker is to begin with: its share of what the whole server may."""
        given = self._settings.model_dump(mode="json", exclude_unset=True, exclude={"token", "tokens"})
        settings = self._settings
        given["sessions"] = {**given.get("sessions", {}), "most": ceil(settings.sessions.most / self.most)}
        given["calls"] = {
            **given.get("calls", {}),
            "at_once": ceil(settings.calls.at_once / self.most),
            "waiting": ceil(settings.calls.waiting / self.most),
        }
        scopes = {name: [*own] for name, own in settings.http_options(None).scopes.items()}
        return Begin(settings=given, scopes=scopes, number=number, workers=self.most)

    def serves(self, hand: Hand) -> None:
        """It can answer."""
        self._hands[hand.number] = hand
        self._changed.set()

    def refused_to_serve(self, hand: Hand, refusal: Refused) -> None:
        """It can't serve; at the start of the server this ends it."""
        logger.error("worker %d: %s", hand.number, refusal.message)
        self._refusal = (ConfigurationError if refusal.configuration else AgentFlowError)(refusal.message)
        self._changed.set()

    def lost(self, hand: Hand) -> None:
        """It has ended."""
        if self._hands.pop(hand.number, None) is not None and not self._closing.is_set():
            logger.warning("worker %d has ended, and its sessions with it; it is started again", hand.number)

    async def ask_one(self, question: To, asked: Asked[Message]) -> None:
        """Ask the worker that is named.

        :raises LineBroken: if it is gone.
        """
        hand = self._hands.get(question.worker)
        if hand is None:
            raise LineBroken
        async with hand.ask(question.question) as pieces:
            async for piece in pieces:
                await asked.answer(piece)

    async def ask_others(self, asker: Hand, question: To, asked: Asked[Message]) -> None:
        """Ask all but one; who does not answer in time is left out."""

        async def ask(hand: Hand) -> None:
            with anyio.move_on_after(ASK_SECONDS):
                for piece in await self._ask_all_of(hand, question.question):
                    await asked.answer(piece)

        async with anyio.create_task_group() as group:
            for hand in tuple(self._hands.values()):
                if hand is not asker:
                    group.start_soon(ask, hand)

    @staticmethod
    async def _ask_all_of(hand: Hand, question: Message) -> list[Message]:
        """A worker's whole answer; nothing, if it is gone."""
        try:
            async with hand.ask(question) as pieces:
                return [piece async for piece in pieces]
        except LineBroken:
            return []
