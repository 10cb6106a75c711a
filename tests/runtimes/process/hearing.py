"""Wait for the output of a running program, so that tests synchronize on it and not on the clock."""

from typing import Literal

import anyio


class Ear:
    """An output sink that hears a word."""

    def __init__(self, word: bytes) -> None:
        self._word = word
        self.said = b""
        """Everything so far, both streams in the order of arrival."""
        self.heard = anyio.Event()
        """Set when the word has come."""

    def __call__(self, name: Literal["stdout", "stderr"], data: bytes) -> None:
        """Take in a piece of output."""
        self.said += data
        if self._word in self.said:
            self.heard.set()
