"""The token tree: every token that an engine read or sampled, stored once, by its exact id.

Turns, branches, parallel calls, sub-agents, summarised memory and retries are all calls in one tree.

- A call stores only the tokens it adds. Calls with a common prefix share it.
- `path` returns each call exactly: the prompt that was read, the tokens that were sampled, their log-probabilities.
- A call continues another only if its prompt starts with everything the other read and sampled, and both have the
  same voice: episode, agent, role, tools. Equal tokens of another voice are context.
- Every sampled token is trained in exactly one row. If several calls could be the one a prompt continues, the call
  gets a row of its own and the tree reports the ambiguity.
- The rows are a function of the set of calls, not of the order in which they were added.
- Adding a call costs time proportional to its new tokens; nothing recurses.

See docs/tokens.md.
"""

from agentflow.tokens._calls import (
    CallFork,
    ForkReason,
    Piece,
    TokenCall,
    TokenRow,
    TrainedSlice,
    TreeFigures,
    Voice,
    calls_of,
)
from agentflow.tokens._rendering import (
    Decode,
    TokenText,
    as_html,
    coloured,
    html_page,
    html_spans,
    token_texts,
)
from agentflow.tokens._spans import TokenSpan, path_ids, walk
from agentflow.tokens._tree import TokenTree

__all__ = [
    "CallFork",
    "Decode",
    "ForkReason",
    "Piece",
    "TokenCall",
    "TokenRow",
    "TokenSpan",
    "TokenText",
    "TokenTree",
    "TrainedSlice",
    "TreeFigures",
    "Voice",
    "as_html",
    "calls_of",
    "coloured",
    "html_page",
    "html_spans",
    "path_ids",
    "token_texts",
    "walk",
]
