"""The token tree: what an engine read and wrote in many calls, each token kept once, by its exact id.

Turns, branches, parallel calls, sub-agents, memory put in short, calls made again: all of them are calls in one tree.

- A call is kept as what it adds. Tokens that several calls begin with stand once, whoever read them.
- `path` gives every call back exactly: the prompt that was read, the tokens that were drawn, their log-probabilities.
- A call goes on from another one only where its prompt begins with all that the other read and wrote, and both have the
  same voice: episode, agent, role, tools. Equal tokens of another voice are context.
- Every drawn token is delivered once, in one row. Where it can't be told which of several calls a prompt goes on from,
  the call is set apart: it has a row of its own, and the tree says so.
- What is delivered is a function of the set of calls. The order in which they come decides nothing.
- Adding costs as much as what is new; nothing recurses.
"""

from agentflow.tokens._calls import Delivered, Figures, Fork, ForkReason, Piece, TokenCall, TokenRow, Voice
from agentflow.tokens._episodes import calls_of
from agentflow.tokens._text import as_html, coloured
from agentflow.tokens._tree import TokenTree

__all__ = [
    "Delivered",
    "Figures",
    "Fork",
    "ForkReason",
    "Piece",
    "TokenCall",
    "TokenRow",
    "TokenTree",
    "Voice",
    "as_html",
    "calls_of",
    "coloured",
]
