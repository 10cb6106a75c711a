"""Render the tokens of a call for a terminal or as an HTML page."""

import html
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from agentflow.tokens._calls import Piece

if TYPE_CHECKING:
    from rich.text import Text


_STYLES = {"trained": "green", "context": "dim", "other": "blue"}
_UNLIKELY = -3.0
_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px/1.5 monospace; white-space: pre-wrap; }}
.context {{ color: #888; }}
.other {{ color: #06c; }}
.trained {{ background: rgba(0, 160, 60, var(--p)); }}
</style>
{body}
"""


def coloured(pieces: Sequence[Piece], decode: Callable[[Sequence[int]], str]) -> "Text":
    """Render pieces for a terminal: trained tokens green (underlined below a log-probability of -3), other voices blue.

    See docs/tokens.md.

    :param decode: converts tokens to text.
    """
    from rich.text import Text

    text = Text()
    for piece in pieces:
        style = _STYLES[piece.kind]
        if piece.kind != "trained":
            text.append(decode(piece.ids), style)
            continue
        for part, logprob in _decoded(piece, decode):
            text.append(part, f"{style} underline" if logprob < _UNLIKELY else style)
    return text


def as_html(pieces: Sequence[Piece], decode: Callable[[Sequence[int]], str], *, title: str = "") -> str:
    """Render pieces as a standalone HTML page: trained tokens green, darker if likelier, log-probability as a tooltip.

    See docs/tokens.md.

    :param decode: converts tokens to text.
    """
    spans: list[str] = []
    for piece in pieces:
        if piece.kind != "trained":
            by = f' title="{html.escape(piece.call)}"' if piece.call else ""
            spans.append(f'<span class="{piece.kind}"{by}>{html.escape(decode(piece.ids))}</span>')
            continue
        for part, logprob in _decoded(piece, decode):
            depth = max(0.1, min(0.6, 0.6 + logprob / 10))
            title_text = html.escape(f"{piece.call}: {logprob:.3f}")
            spans.append(
                f'<span class="trained" style="--p:{depth:.2f}" title="{title_text}">{html.escape(part)}</span>'
            )
    return _PAGE.format(title=html.escape(title), body="".join(spans))


def _decoded(piece: Piece, decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[str, float]]:
    """Yield the text and log-probability of each token; tokens that form one character are joined."""
    pending: list[int] = []
    logprob = 0.0
    for place, (id, own) in enumerate(zip(piece.ids, piece.logprobs, strict=True), 1):
        pending.append(id)
        logprob += own
        part = decode(pending)
        if not part.endswith("\N{REPLACEMENT CHARACTER}") or place == len(piece.ids):
            yield part, logprob
            pending, logprob = [], 0.0
