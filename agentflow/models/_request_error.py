"""One HTTP request that did not bring an answer."""

from collections.abc import Mapping

from agentflow.errors import ModelFailureKind

__all__ = ["Setback"]


class Setback(Exception):
    """Why a request brought nothing that can be used, and whether another may."""

    def __init__(
        self,
        kind: ModelFailureKind,
        message: str,
        *,
        again: bool = False,
        pushed_back: bool = False,
        backs_off: bool = True,
        after: float | None = None,
        unreachable: bool = False,
        status: int = 0,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.again = again
        """Another try may go better."""
        self.pushed_back = pushed_back
        """The endpoint has too much to do."""
        self.backs_off = backs_off
        """Waiting makes another try better."""
        self.after = after
        """Seconds after which the endpoint wants to be asked again, if it said so."""
        self.unreachable = unreachable
        """Nobody was there: no such host, nobody who listens."""
        self.status = status
        """The answer's HTTP status; 0: there was no answer."""
        self.headers = headers or {}
        """Its headers."""
        self.body = body
        """Its body."""
        self.attempts = 0
        """Requests that were made when this one was the last."""
