"""Python session, seen from the server."""

import asyncio
import base64
import os
import signal
from collections.abc import Mapping

from agentflow.errors import CannotFork, InstanceGone, RuntimeFailure
from runtimes._protocol import Display, Limits, Outcome, PythonError, RunResult
from runtimes.process._channel import RequestChannel, socket_pair
from runtimes.process._control_socket import PythonControlSocket, PythonReply
from runtimes.process._live_session import LiveSession, make_pipes
from runtimes.process.trusted import _wire

_MOVE_DEADLINE = 20.0


class PythonSession(LiveSession[PythonReply]):
    """Session with a live interpreter."""

    language = "python"

    def __init__(self, client: RequestChannel, sandbox: str, limits: Limits, env: Mapping[str, str]) -> None:
        super().__init__(client, sandbox, limits)
        self._env = env
        self._number = 0
        self._awaited: int | None = None

    async def _launch(self) -> None:
        ours, theirs = socket_pair()
        pipes, ends = make_pipes(self._limits.output_bytes)
        control = PythonControlSocket(ours)
        ends.append(_wire.payload({"env": dict(self._env)}))
        try:
            reply = await self._client.ask(
                "python", [theirs.fileno(), *ends], on_exit=self._exit_reporter(), sandbox=self._sandbox_id
            )
        except BaseException:
            control.close()
            pipes.close()
            raise
        finally:
            theirs.close()
            for fd in ends:
                os.close(fd)
        self._awaited = None
        self._adopt(reply.fields["pid"], control, pipes)
        await self.wait_ready()

    def _ask(self, source: str, *, stdin_open: bool) -> None:
        assert isinstance(self._control, PythonControlSocket)
        self._number += 1
        self._awaited = self._number
        self._control.request({"op": "run", "source": source, "run": self._awaited})

    def _answered(self, answer: PythonReply) -> None:
        # Code inside can write replies too, but only to its own run: replies carry its number.
        if answer.get("run") == self._awaited:
            super()._answered(answer)

    async def _interrupt_run(self) -> None:
        await self._signal(signal.SIGINT)

    def _result(self, answer: PythonReply, outcome: Outcome, stdout: str, stderr: str) -> RunResult:
        error = answer["error"]
        return RunResult(
            outcome=outcome,
            stdout=stdout,
            stderr=stderr,
            value=_text(answer["value"]),
            error=None
            if error is None
            else PythonError(*(_text(error[k]) or "" for k in ("type", "message", "traceback"))),
            displays=tuple(
                Display(str(one["mime"]), base64.b64decode(one["data"])) for one in answer["displays"]
            ),
            cwd=_text(answer["cwd"]) or "",
        )

    async def fork_into(self, sandbox: str, uid: int) -> tuple["PythonSession", list[str]]:
        """Copy the live interpreter into another sandbox. The caller holds the lock.

        :raises CannotFork: if it can't be copied; this session keeps running.
        """
        ours, theirs = socket_pair()
        pipes, ends = make_pipes(self._limits.output_bytes)
        control = PythonControlSocket(ours)
        child = PythonSession(self._client, sandbox, self._limits, self._env)
        child._adopt(0, control, pipes)
        try:
            moved = self._client.expect_move(sandbox)
            await self._client.ask(
                "move_python", [theirs.fileno(), *ends], sandbox=self._sandbox_id, to=sandbox
            )
            answer = await self.answer_to(lambda: self._request_fork(uid), _MOVE_DEADLINE)
            if "error" in answer:
                raise CannotFork(str(answer["error"]))
            theirs.close()
            hello = await child._arrive(moved)
        except BaseException:
            child.close()
            raise
        finally:
            theirs.close()
            for fd in ends:
                os.close(fd)
        return child, [str(_text(line)) for line in hello.get("left_behind", [])]

    def _request_fork(self, uid: int) -> None:
        self._awaited = None
        # It may have ended since `alive` was checked.
        if isinstance(self._control, PythonControlSocket):
            self._control.request({"op": "fork", "uid": uid})

    async def _arrive(self, moved: asyncio.Future[int]) -> PythonReply:
        try:
            async with asyncio.timeout(_MOVE_DEADLINE):
                self._pid = await moved
        except TimeoutError:
            raise CannotFork("the interpreter's copy hung during its move") from None
        except InstanceGone:
            raise
        except RuntimeFailure as error:
            raise CannotFork(str(error)) from None
        return await self.answer_to(lambda: None, _MOVE_DEADLINE)


def _text(value: object) -> str | None:
    """Return text from inside without lone surrogates; `None` stays.

    :raises TypeError: if it is not text.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError("not text")
    return value.encode("utf-8", "replace").decode()
