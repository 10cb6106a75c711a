"""Files and directories that only this user can read."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_blocks = 0
_before = 0


@contextmanager
def private_files() -> Generator[None]:
    """Create all files in the block for this user alone (0600, directories 0700), also those of libraries and children.

    It sets the umask of the process, and restores it after the last of overlapping blocks.
    """
    global _blocks, _before
    with _lock:
        before = os.umask(0o077)
        if _blocks == 0:
            _before = before
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                os.umask(_before)
