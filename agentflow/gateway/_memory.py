"""Conversations of an agent, and the token tree of its recorded calls."""

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from agentflow.gateway._types import RecordedCall
from agentflow.models import ConversationIndex, ToolSpec
from agentflow.trace import TokenCall, Tokens, TokenTree, Voice

_ENCODER = msgspec.json.Encoder(order="sorted")


class AgentConversations(ConversationIndex):
    """Conversations of one agent in one attempt at an episode. See docs/gateway.md."""

    def __init__(self, agent: str = "", *, trained: bool = True) -> None:
        """Start empty.

        :param agent: name of the agent.
        :param trained: the agent is trained.
        """
        super().__init__()
        self.agent = agent
        """Name of the agent."""
        self.trained = trained
        """The agent is trained."""
        self._prompts: Counter[bytes] = Counter()

    def draw(self, prompt: bytes) -> str:
        """Return a name for a call with this prompt: its digest, and the number of earlier calls with it."""
        digest = blake2b(prompt, digest_size=16).digest()
        self._prompts[digest] += 1
        return f"{digest.hex()}/{self._prompts[digest] - 1}"


def trained_tokens(calls: Iterable[RecordedCall]) -> dict[str, list[tuple[str, Tokens]]]:
    """Return id and tokens of each delivered call of a trained agent, by agent. See docs/gateway.md.

    :param calls: calls of one episode; parents before the calls that continue them.
    :raises ValueError: if a parent is missing.
    """
    whole: dict[str, tuple[int, ...]] = {"": ()}
    found: dict[str, list[tuple[str, Tokens]]] = {}
    for call in calls:
        if call.tokens is None:
            continue
        if call.parent not in whole:
            raise ValueError(f"call {call.id!r} continues {call.parent!r}, which is missing")
        # Calls share the integers of a common prefix, which those of a token tree's paths do not.
        tokens = replace(call.tokens, prompt=whole[call.parent] + call.tokens.prompt)
        whole[call.id] = tokens.prompt + tokens.sampled
        if call.trained and call.delivered:
            found.setdefault(call.agent, []).append((call.id, tokens))
    return found


def token_tree(calls: Iterable[RecordedCall], *, episode: str = "") -> TokenTree:
    """Return the token tree of an episode's calls; agents and sets of tools are voices of their own. See docs/gateway.md.

    Calls that no client received are left out. If one was continued all the same, its tokens are context.

    :param calls: calls of one episode; parents before the calls that continue them.
    :raises ValueError: if a parent is missing.
    """
    tree = TokenTree()
    for call in calls:
        if call.tokens is None:
            continue
        if call.parent:
            tree.extend(call.parent, call.id, call.tokens, listed=call.delivered)
        else:
            tools = _digest_of_tools(call.tools or ())
            voice = Voice(agent=call.agent, tools=tools, episode=episode)
            tree.add(TokenCall(id=call.id, voice=voice, tokens=call.tokens), listed=call.delivered)
    return tree


def _digest_of_tools(tools: Sequence[ToolSpec]) -> str:
    return blake2b(_ENCODER.encode(tools), digest_size=6).hexdigest() if tools else ""
