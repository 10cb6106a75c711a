"""Failure of one HTTP request to a model: kind, retry and delay."""

import email.utils
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

import msgspec

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow._secrets import mask_text
from agentflow._terminal import printable
from agentflow._typeguards import is_object
from agentflow.errors import ModelFailureKind

_DENIED = {401, 402, 403, 404}
_AGAIN = {408, 409, 425, 429}
_TOO_LONG = re.compile(
    r"context.length|maximum context|too many tokens|prompt is too long|exceeds the maximum number of tokens"
    r"|maximum model length",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content_filter|content_policy|content management policy", re.IGNORECASE)
_FORMAT = re.compile(
    rb"response_format|json_schema|json_object|structured.output|guided.json|output_config|tool_choice"
    rb"|response_?mime_?type|response_?(json_?)?schema|schema in format|grammar",
    re.IGNORECASE,
)
_NO_KEY = re.compile(r"API_KEY_INVALID|API key not valid|credit balance is too low", re.IGNORECASE)
_SOON = re.compile(rb'"retryDelay":\s*"(\d+(?:\.\d+)?)s"')
_MAX_MESSAGE = 300


@dataclass(eq=False)
class RequestError(Exception):
    """A request without a usable answer."""

    kind: ModelFailureKind
    message: str
    _: KW_ONLY
    retry: bool = False
    """Another attempt can succeed."""
    overloaded: bool = False
    """The endpoint reported overload."""
    backs_off: bool = True
    """Wait before another attempt."""
    retry_after: float | None = None
    """Seconds to wait that the endpoint asked for."""
    unreachable: bool = False
    """Nothing could be reached: unknown host, or connection refused."""
    status: int = 0
    """HTTP status of the answer; 0 if there was none."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    attempts: int = 0
    """Number of attempts, including this one."""

    def __post_init__(self) -> None:
        # An endpoint may repeat the key, and what it sends ends up in journals and on terminals.
        self.message = printable(mask_text(self.message))

    def __str__(self) -> str:
        return self.message


def unusable(message: str, body: bytes = b"") -> RequestError:
    """Return the error for an answer that can't be used; another attempt follows at once."""
    return RequestError(ModelFailureKind.GARBAGE, message, retry=True, backs_off=False, status=200, body=body)


def undecodable(error: Exception, body: bytes) -> RequestError:
    """Return the error for an answer that is not of the endpoint's API, such as the page of a proxy in front of it."""
    page = body.lstrip()[:1] == b"<"
    message = (
        "a web page instead of JSON"
        if page
        else f"the endpoint's answer can't be decoded: {decode_reason(error)}"
    )
    if not page and b'"error"' in body and (described := _error_of(body)[1]):
        message = f"{message}: {described}"
    return RequestError(ModelFailureKind.UNAVAILABLE, message, retry=True, status=200, body=body)


def timed_out() -> RequestError:
    """Return the error for a request without an answer in time."""
    return RequestError(ModelFailureKind.TIMEOUT, "no answer in time", retry=True, overloaded=True)


def error_of_response(status: int, headers: Mapping[str, str], body: bytes, now: float) -> RequestError:
    """Return the error for an HTTP answer.

    :param now: time of day, in seconds since 1970.
    """
    code, described = _error_of(body)
    message = f"HTTP {status}: {described}" if described else f"HTTP {status}"
    again = False
    if status == 429 and code == "insufficient_quota":
        kind = ModelFailureKind.DENIED
    elif status in _AGAIN or status >= 500:
        kind = ModelFailureKind.RATE_LIMITED if status == 429 else ModelFailureKind.UNAVAILABLE
        again = True
    elif status < 400:
        # A redirect, as to the login page of a gateway.
        kind = ModelFailureKind.UNAVAILABLE
    elif status in _DENIED or (status == 400 and _NO_KEY.search(f"{code} {described}")):
        kind = ModelFailureKind.DENIED
    elif status == 413 or _TOO_LONG.search(f"{code} {described}"):
        kind = ModelFailureKind.TOO_LONG
    elif _FILTERED.search(f"{code} {described}"):
        kind = ModelFailureKind.REFUSED
    else:
        kind = ModelFailureKind.BAD_REQUEST
    return RequestError(
        kind,
        message,
        retry=again,
        overloaded=status in {429, 503, 529},
        retry_after=_retry_after(headers, body, now),
        status=status,
        headers=headers,
        body=body,
    )


def names_response_format(error: RequestError) -> bool:
    """Return true if the endpoint refused the answer format of the request."""
    return error.status in {400, 422} and bool(_FORMAT.search(error.body))


def _error_of(body: bytes) -> tuple[str, str]:
    """Return code and message of an error body; of an unknown shape, its first characters."""
    try:
        decoded: object = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return "", _one_line(body[: 4 * _MAX_MESSAGE].decode(errors="replace"))
    if not is_object(decoded):
        return "", _one_line(str(decoded))
    error = decoded.get("error", decoded)
    if is_object(error):
        return str(error.get("code") or ""), _one_line(str(error.get("message") or error.get("detail") or ""))
    return "", _one_line(str(error))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_MESSAGE]


def _retry_after(headers: Mapping[str, str], body: bytes, now: float) -> float | None:
    """Return the seconds to wait, from the headers or the body."""
    milliseconds, seconds = headers.get("retry-after-ms"), headers.get("retry-after")
    for text, unit in ((milliseconds, 0.001), (seconds, 1.0)):
        try:
            if text is not None:
                return max(0.0, float(text) * unit)
        except ValueError:
            continue
    if seconds is None:
        match = _SOON.search(body)
        return float(match[1]) if match else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(seconds).timestamp() - now)
    except (ValueError, OverflowError):
        return None
