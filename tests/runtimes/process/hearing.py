"""Wait for the output of a running program, so that tests synchronize on it and not on the clock."""

from typing import Literal

import anyio


class Ear:
    """Output sink that waits for a word."""

    def __init__(self, word: bytes) -> None:
        self._word = word
        self.output = b""
        """All output so far, both streams in order of arrival."""
        self.heard = anyio.Event()
        """Set when the word has arrived."""

    def __call__(self, name: Literal["stdout", "stderr"], data: bytes) -> None:
        """Receive a piece of output."""
        self.output += data
        if self._word in self.output:
            self.heard.set()
