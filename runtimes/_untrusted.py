"""Decoding of data from untrusted peers: sandboxes, external servers, readers of documents.

Decoders run in C and hold the interpreter's lock, so a thread alone would still stall the event loop. `check_json`
bounds size and number of values first, and with them the memory and the time of every decoder: at the default limits
about 100 MiB and 50 ms.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
from pydantic import ValidationError

from runtimes._framing import FrameError, JsonLimits, check_json

T = TypeVar("T")

INLINE_BYTES = 128 * 1024
"""Size up to which a payload is decoded at once: it takes at most about 3 ms."""

_MAX_PROBLEMS = 5
_MAX_CHARACTERS = 500
# Two at a time bound the memory; any number may wait.
_TURNS = anyio.CapacityLimiter(2)
_DEFAULT = JsonLimits()


async def decode_untrusted(payload: bytes, decode: Callable[[bytes], T], limits: JsonLimits = _DEFAULT) -> T:
    """Decode JSON from an untrusted peer with bounded memory and time, large payloads in a thread.

    :param decode: the decoder, for example `json.loads` or the `validate_json` of a pydantic adapter.
    :raises FrameError: if the payload exceeds a limit, is nested too deeply, or is refused by the decoder.

    Example::

        message = await decode_untrusted(line, adapter.validate_json, JsonLimits(max_values=50_000))
    """
    if len(payload) > limits.max_bytes:
        check_json(payload, limits)
    work = partial(_decode, payload, decode, limits)
    if len(payload) <= INLINE_BYTES:
        return work()
    return await anyio.to_thread.run_sync(work, limiter=_TURNS)


def _decode(payload: bytes, decode: Callable[[bytes], T], limits: JsonLimits) -> T:
    check_json(payload, limits)
    try:
        return decode(payload)
    # The errors of json, pydantic and msgspec are ValueErrors.
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message was refused: {_text_of(error)}") from error


def _text_of(error: Exception) -> str:
    """Describe a decoder's error briefly: the text of pydantic's repeats each of up to `max_values` problems."""
    if not isinstance(error, ValidationError):
        text = str(error)
    elif error.error_count() > _MAX_PROBLEMS:
        text = f"{error.error_count()} validation errors for {error.title}"
    else:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        paths = (".".join(map(str, problem["loc"])) for problem in problems)
        text = "; ".join(
            f"{path}: {problem['msg']}" if path else problem["msg"]
            for path, problem in zip(paths, problems, strict=True)
        )
    return " ".join(text[:_MAX_CHARACTERS].split())
