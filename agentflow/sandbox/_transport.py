"""HTTP that turns what goes wrong with a request into the failure of the one call that made it."""

import json
from typing import Final, cast

import httpx2
import mcp_types as types

from agentflow.errors import ErrorKind

__all__ = ["KIND_KEY", "SteadyTransport"]

KEEPALIVE_SECONDS: Final = 2.0
"""Idle connections are dropped before a server drops them: a call must not go out on a dying one."""

KIND_KEY: Final = "agentflow/kind"
"""Where the `data` of an error made here says which `ErrorKind` it is."""

_REFUSALS: Final = {
    401: ErrorKind.DENIED,
    403: ErrorKind.DENIED,
    413: ErrorKind.BAD_ARGUMENTS,
    421: ErrorKind.DENIED,
    429: ErrorKind.BUSY,
    502: ErrorKind.UNAVAILABLE,
    503: ErrorKind.UNAVAILABLE,
}
"""What the statuses mean by which a server refuses a request before any tool sees it."""


class SteadyTransport(httpx2.AsyncHTTPTransport):
    """Answers for a server that does not.

    The protocol's client ends, with all calls in flight, when a request raises; here it gets an error for that
    request instead, and goes on. Nothing is sent twice: whether the call has run is for the caller to find out.
    """

    def __init__(self) -> None:
        super().__init__(
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE_SECONDS
            )
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, once."""
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
    """Why the server refuses."""
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
