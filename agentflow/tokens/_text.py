"""A call's tokens to look at: in a terminal, or as a page."""

import html
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from agentflow.tokens._calls import Piece

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["as_html", "coloured"]

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
    """For a terminal: what is trained is green, and underlined where it was unlikely; other voices are blue, the rest is dim.

    :param decode: tokens as text.
    """
    from rich.text import Text

    text = Text()
    for piece in pieces:
        style = _STYLES[piece.kind]
        if piece.kind != "trained":
            text.append(decode(piece.ids), style)
            continue
        for word, chance in _words(piece, decode):
            text.append(word, f"{style} underline" if chance < _UNLIKELY else style)
    return text


def as_html(pieces: Sequence[Piece], decode: Callable[[Sequence[int]], str], *, title: str = "") -> str:
    """A page of its own: what is trained is green, the likelier the deeper, and tells its log-probability under the mouse.

    :param decode: tokens as text.
    """
    spans: list[str] = []
    for piece in pieces:
        if piece.kind != "trained":
            by = f' title="{html.escape(piece.call)}"' if piece.call else ""
            spans.append(f'<span class="{piece.kind}"{by}>{html.escape(decode(piece.ids))}</span>')
            continue
        for word, chance in _words(piece, decode):
            depth = max(0.1, min(0.6, 0.6 + chance / 10))
            told = html.escape(f"{piece.call}: {chance:.3f}")
            spans.append(
                f'<span class="trained" style="--p:{depth:.2f}" title="{told}">{html.escape(word)}</span>'
            )
    return _PAGE.format(title=html.escape(title), body="".join(spans))


def _words(piece: Piece, decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[str, float]]:
    """Each token's text with its log-probability; tokens that make a character together stand together."""
    held: list[int] = []
    chance = 0.0
    for place, (id, logprob) in enumerate(zip(piece.ids, piece.logprobs, strict=True), 1):
        held.append(id)
        chance += logprob
        word = decode(held)
        if not word.endswith("\N{REPLACEMENT CHARACTER}") or place == len(piece.ids):
            yield word, chance
            held, chance = [], 0.0
