"""Errors about journals whose content is damaged."""

from typing import TypeVar

import msgspec

from agentflow._decoding import DECODE_ERRORS, decode_reason
from agentflow.errors import RunStopped, StopCause

T = TypeVar("T")


def damaged_journal(shown: str, problem: str) -> RunStopped:
    """Return the error for a journal that lacks part of what was recorded.

    :param shown: its address.
    """
    remedy = "restore a copy of it, move it away to begin again, or name another"
    return RunStopped(StopCause.JOURNAL, f"{f'journal {shown}'.strip()}: {problem}; {remedy}")


def decode_record(body: bytes, kind: type[T], shown: str, record: str) -> T:
    """Return a record of a journal.

    :param shown: address of the journal.
    :param record: name of the record in errors.
    :raises RunStopped: if it is damaged.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except DECODE_ERRORS as error:
        problem = f"{record} is damaged ({decode_reason(error)}): it is lost, the rest can be read"
        raise damaged_journal(shown, problem) from error
