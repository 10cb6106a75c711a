"""HTTP transport that turns a failed request into the failure of its one call."""

import json
from typing import Final, cast

import httpx2
import mcp_types as types

from agentflow.errors import ErrorKind

KEEPALIVE_SECONDS: Final = 2.0
"""Seconds after which idle connections are dropped, before a server does: a call must not use a dying connection."""

KIND_KEY: Final = "agentflow/kind"
"""Key in an error's `data` for the `ErrorKind` of an error made here."""

_REFUSALS: Final = {
    401: ErrorKind.DENIED,
    403: ErrorKind.DENIED,
    413: ErrorKind.BAD_ARGUMENTS,
    421: ErrorKind.DENIED,
    429: ErrorKind.BUSY,
    502: ErrorKind.UNAVAILABLE,
    503: ErrorKind.UNAVAILABLE,
}
"""Kinds of the statuses with which a server refuses a request before any tool sees it."""


class SteadyTransport(httpx2.AsyncHTTPTransport):
    """Answers in place of a failed server.

    The protocol's client ends, with all calls in flight, when a request raises; with this transport it receives an error for
    that request and continues. Nothing is sent twice: the caller must find out whether the call has run.
    """

    def __init__(self) -> None:
        super().__init__(
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE_SECONDS
            )
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, once."""
        try:
            response = await super().handle_async_request(request)
            refusal = _REFUSALS.get(response.status_code)
            if refusal or response.headers.get("content-type", "").startswith("application/json"):
                await response.aread()
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return _failure(ErrorKind.UNAVAILABLE, "no server answers.")
        except httpx2.TransportError as error:
            lost = f"the connection was lost ({type(error).__name__}); the call may have run or not."
            return _failure(ErrorKind.UNAVAILABLE, lost)
        return _failure(refusal, _reason(response)) if refusal else response


def _reason(response: httpx2.Response) -> str:
    """Return the reason of a server's refusal."""
    try:
        body = cast("dict[str, dict[str, object]]", json.loads(response.content))
        return f"the server refuses: {body['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return f"the server refuses with status {response.status_code}."


def _failure(kind: ErrorKind, message: str) -> httpx2.Response:
    error = types.ErrorData(code=types.CONNECTION_CLOSED, message=message, data={KIND_KEY: kind})
    body = types.JSONRPCError(jsonrpc="2.0", id=None, error=error)
    return httpx2.Response(
        503, headers={"content-type": "application/json"}, content=body.model_dump_json(by_alias=True)
    )
