"""Errors for HTTP answers other than 200."""

import pytest

from agentflow.errors import ModelFailureKind
from agentflow.models._request_error import error_of_response

NOON = 1_800_000_000.0


@pytest.mark.promise("models:retry_after")
@pytest.mark.parametrize(
    ("headers", "retry_after"),
    [
        ({"retry-after": "12"}, 12),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "Fri, 15 Jan 2027 08:01:40 GMT"}, 100),
        ({"retry-after": "Fri, 15 Jan 2020 08:00:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({}, None),
    ],
)
def test_retry_after_is_parsed_in_every_format(headers: dict[str, str], retry_after: float | None) -> None:
    assert error_of_response(429, headers, b"", NOON).retry_after == retry_after


@pytest.mark.promise("models:failure_kinds")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too\\n many", "code": "x"}}', "HTTP 400: too many"),
        (b'{"error": "plain words"}', "HTTP 400: plain words"),
        (b'{"object": "error", "message": "as vLLM says it"}', "HTTP 400: as vLLM says it"),
        (b'{"detail": "as FastAPI says it"}', "HTTP 400: as FastAPI says it"),
        (b'["odd"]', "HTTP 400: ['odd']"),
        (b"<html>\n<h1>Bad</h1>\xff", "HTTP 400: <html> <h1>Bad</h1>\ufffd"),
        (b"", "HTTP 400"),
        (b"x" * 5000, "HTTP 400: " + "x" * 300),
    ],
)
def test_an_error_body_of_any_shape_becomes_one_line(body: bytes, message: str) -> None:
    error = error_of_response(400, {}, body, NOON)
    assert (error.kind, error.message) == (ModelFailureKind.BAD_REQUEST, message)
