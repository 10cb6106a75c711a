"""What a model is given: the tokens of several rows, each once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Packed"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Packed:
    """The tokens of several rows as a forest, laid out depth first, and where each row finds its log-probabilities.

    With `n` tokens, `p` lines of logits, `l` labels and `r` rows:

    - Two rows share a token if, and only if, they agree up to and including it. No token stands twice.
    - Token `i` comes before token `j` in some row, or is it, if and only if `i <= j < ends[i]`.
    - `positions[i]` is the number of tokens before it in every row that holds it: what rotary embeddings need.
    - Line `k` of the logits is what the model says after token `predicting[k]`, at `temperatures[k]`. No two lines are
      the same pair, and several labels are scored against one line: a fork costs no token.
    - `lines` ascends, so any run of lines has its labels in one run.
    - Trained token `t` of row `rows[k]` has the log-probability of label `gather[k, t]`; where `mask` is false the row
      has ended, and `gather` is 0.
    """

    ids: NDArray[np.int64]
    """(n) The tokens."""
    positions: NDArray[np.int64]
    """(n) Their depth."""
    ends: NDArray[np.int64]
    """(n) Where the subtree of each of them ends."""
    predicting: NDArray[np.int64]
    """(p) The token after which each line of logits is read."""
    temperatures: NDArray[np.float32]
    """(p) What the logits of each line are divided by."""
    lines: NDArray[np.int64]
    """(l) The line that each label is scored against."""
    labels: NDArray[np.int64]
    """(l) The token whose log-probability is asked for."""
    gather: NDArray[np.int64]
    """(r, longest) The label of each trained token of each row."""
    mask: NDArray[np.bool_]
    """(r, longest) Which entries are trained tokens."""
    rows: NDArray[np.int64]
    """(r) Which of the rows given to `pack` they are."""

    def __len__(self) -> int:
        """Tokens that are forwarded."""
        return len(self.ids)
