"""A call as the tree keeps it: where its prompt and its answer end, and what is said of the drawn tokens."""

from array import array

from agentflow.tokens._calls import TokenCall, Voice
from agentflow.tokens._spans import Span, ids_of, path_ids
from agentflow.trajectory import Tokens

__all__ = ["Held"]


class Held:
    """One call."""

    __slots__ = ("asked", "end", "finish", "id", "logprobs", "parent", "version", "versions", "voice")

    def __init__(self, call: TokenCall, asked: Span, end: Span) -> None:
        self.id = call.id
        self.voice: Voice = call.voice
        self.parent = call.parent
        self.asked = asked
        """Its prompt ends with this span."""
        self.end = end
        """Its answer ends with this one."""
        self.logprobs = array("d", call.tokens.logprobs)
        self.version = call.tokens.version
        self.versions = call.tokens.versions
        self.finish = call.tokens.finish

    @property
    def drew(self) -> bool:
        """It has an answer at all."""
        return self.end is not self.asked

    @property
    def order(self) -> tuple[int, tuple[float, ...], str, str]:
        """Its place among calls that end alike: by what they are, not by when they came."""
        return self.asked.stop, tuple(self.logprobs), self.version, self.id

    def tokens(self) -> Tokens:
        """What was read and written."""
        return Tokens(
            prompt=ids_of(path_ids(self.asked)),
            sampled=ids_of(path_ids(self.end, self.asked)),
            logprobs=tuple(self.logprobs),
            version=self.version,
            versions=self.versions,
            finish=self.finish,
        )
