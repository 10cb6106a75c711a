"""Settings of a run, which never change: equality and differences."""

from collections.abc import Iterator, Mapping
from typing import cast

import msgspec

from agentflow.errors import ConfigurationError

_LONGEST = 60
_NOTHING = msgspec.Raw(b"nothing")


def encode(settings: Mapping[str, object]) -> bytes:
    """Encode settings; equal settings give equal bytes."""
    return msgspec.json.encode(settings, order="deterministic")


def check_same(run: str, before: bytes, now: bytes) -> None:
    """Refuse settings other than those the run was created with.

    :raises ConfigurationError: one line that names each difference.
    """
    if before != now:
        told = "; ".join(_differences("", msgspec.json.decode(before), msgspec.json.decode(now)))
        raise ConfigurationError(
            f"run {run!r} was made with other settings ({told}); choose another output_dir or run_name, "
            "or go back to the old settings"
        )


def _differences(path: str, before: object, now: object) -> Iterator[str]:
    old, new = _entries(before), _entries(now)
    if old is not None and new is not None:
        for key in sorted(old.keys() | new.keys()):
            inner = f"{path}.{key}" if path else key
            yield from _differences(inner, old.get(key, _NOTHING), new.get(key, _NOTHING))
    elif (was := _text(before)) != (is_now := _text(now)):
        yield f"{path}: {_short(was)} -> {_short(is_now)}"


def _entries(value: object) -> dict[str, object] | None:
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _text(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
